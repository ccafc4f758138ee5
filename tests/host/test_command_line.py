"""The command line as a whole: parser, refusals, explain, logging, and the page about it."""

from __future__ import annotations

import logging
import re
import shlex

import pytest

import cupy_flash
from command_line import BLOCK_CUPY, NO_GPU, ROOT, fresh, hide_gpu, refused, two_gpus
from cupy_flash import env
from cupy_flash.__main__ import COMMANDS, main
from cupy_flash.commands.table import aligned
from cupy_flash.explanation import explain

DOCS = ROOT / "docs" / "command-line.md"


@pytest.fixture
def no_gpu(monkeypatch):
    hide_gpu(monkeypatch)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_is_accepted(command, capsys, monkeypatch):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    words = capsys.readouterr().out
    example = re.search(rf"python -m cupy_flash ({command} .*)", words.split("example:")[1])[1]
    ran = []
    monkeypatch.setattr(COMMANDS[command][0], "run", lambda args: ran.append(args) or 0)
    assert main(shlex.split(example.split(">")[0])) == 0
    assert len(ran) == 1


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"cupy_flash {cupy_flash.__version__}\n"


@pytest.mark.parametrize("text", ["", "fly", "info --loud"])
def test_an_unknown_command_or_option_is_refused(text, capsys):
    assert "usage: python -m cupy_flash" in refused(capsys, text)


def test_module_runs_from_the_shell():
    done = fresh("explain", "8,64", "--arch", "90")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("attention: ")
    assert fresh("explain", "8,-1").returncode == 2


@pytest.mark.parametrize("command", [["check", "--problem", "square"], ["demo", "--size=1,1,9,4"]])
def test_the_numpy_path_works_without_cupy(command):
    done = fresh(*command, code=BLOCK_CUPY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "No module named 'cupy'" in done.stdout


@pytest.mark.parametrize("index", [-1, 2])
def test_a_gpu_that_is_not_there_is_named(index, monkeypatch, capsys):
    two_gpus(monkeypatch)
    for command in ("check", "demo"):
        assert f"sees 2 GPUs, numbered from 0, and none is number {index}" in refused(
            capsys, f"{command} --device={index}"
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("check --seed -1", "--seed is -1; it must be >= 0"),
        ("check --device 0", NO_GPU),
        ("check --kernel simt", NO_GPU),
        ("check --kernel fast", "invalid choice: 'fast'"),
        ("check --problem fermat", "grouped-heads"),
        ("check --dtype int8", "bfloat16"),
        ("demo --device 0", NO_GPU),
        ("demo --size 4096", "'4096' is no size; say four numbers"),
        ("demo --size 1,2,0,4", "is no size"),
        ("demo --size 1,2,x,4", "is no size"),
    ],
)
def test_a_bad_argument_is_named(text, words, no_gpu, capsys):
    assert words in refused(capsys, text)


def test_explain_prints_the_explanation(capsys):
    text = (
        "explain 2,8,10,64 2,2,12,64 2,2,12,32 --dtype float16 --v-dtype float32 --causal"
        " --offset -1 --scale 0.5 --kernel naive --arch 75 --return-lse"
    )
    assert main(shlex.split(text)) == 0
    expected = explain(
        ((2, 8, 10, 64), "float16"),
        ((2, 2, 12, 64), "float16"),
        ((2, 2, 12, 32), "float32"),
        arch=75,
        causal=True,
        offset=-1,
        scale=0.5,
        kernel="naive",
        return_lse=True,
    )
    assert capsys.readouterr().out == f"{expected}\n"


def test_explain_takes_the_options_as_shapes(capsys):
    text = (
        "explain 2,8,10,64 2,2,12,64 --window 3,none --softcap 30 --mask 2,1,1,12 --bias 10,12"
        " --bias-dtype int8 --alibi-slopes 8 --sinks 2,8 --q-lengths 2 --k-lengths 1 --arch 90"
    )
    assert main(shlex.split(text)) == 0
    k = ((2, 2, 12, 64), "float32")
    expected = explain(
        ((2, 8, 10, 64), "float32"),
        k,
        k,
        arch=90,
        window=(3, None),
        softcap=30.0,
        mask=((2, 1, 1, 12), "bool"),
        bias=((10, 12), "int8"),
        alibi_slopes=((8,), "float32"),
        sinks=((2, 8), "float32"),
        q_lengths=((2,), "int32"),
        k_lengths=((1,), "int32"),
    )
    assert capsys.readouterr().out == f"{expected}\n"


def test_explain_takes_missing_shapes_from_the_ones_before(capsys):
    printed = []
    for text in ("8,4,64", "8,4,64 8,4,64", "8,4,64 8,4,64 8,4,64"):
        assert main(["explain", *text.split(), "--arch=90", "--dtype=bfloat16"]) == 0
        printed.append(capsys.readouterr().out)
    assert len(set(printed)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2,8,64", "k has 8 rows"),
        ("64", "q has shape (64,)"),
        ("8,64 --arch 42", "arch is 42; known are"),
        ("8,64 --kernel fast", "kernel is 'fast'; allowed are"),
        ("8,600 --kernel simt --arch 90", "kernel='simt' can't compute this call"),
        ("8,64 --precision medium", "precision is 'medium'"),
        ("8,64 --window 3", "window is (3,); it must be a pair"),
        ("8,64 --window=-1,0", "window's left bound is -1"),
        ("8,64 --window 1,two", "'1,two' is no window; say two ints"),
        ("8,64 --softcap 0", "softcap is 0.0"),
        ("8,64 --mask 9", "mask has shape (9,)"),
        ("8,64 --sinks 2", "sinks has shape (2,)"),
        ("8,64 --bias 8x8", "'8x8' is no shape"),
        ("8,64 --scale nan", "scale is nan"),
        ("8,64 --q-dtype float16 --k-dtype bfloat16", "no common dtype"),
        ("8,64 --dtype int8", "invalid choice: 'int8'"),
        ("8x64", "'8x64' is no shape; say extents"),
        ("8,-64", "is no shape"),
    ],
)
def test_explain_refuses_what_attention_refuses(text, words, capsys):
    if text == "2,8,64":
        text = "2,8,64 2,8,64 2,9,64"
    assert words in refused(capsys, f"explain {text}")


@pytest.fixture
def logger():
    logger = logging.getLogger("cupy_flash")
    handlers, level = logger.handlers[:], logger.level
    logger.handlers.clear()
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("value", [None, ""])
def test_the_logger_is_silent_by_default(value, logger, monkeypatch, capsys):
    monkeypatch.delenv(env.LOG, raising=False)
    if value is not None:
        monkeypatch.setenv(env.LOG, value)
    level = logger.level
    env.configure_logging()
    logger.propagate = False
    logger.error("nobody hears")
    logger.propagate = True
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    assert logger.level == level
    assert capsys.readouterr().err == ""


def test_the_variable_sends_messages_to_stderr_once(logger, monkeypatch, capsys):
    monkeypatch.setenv(env.LOG, "info")
    env.configure_logging()
    env.configure_logging()
    logger.info("compiling")
    logger.debug("too small")
    assert capsys.readouterr().err == "cupy_flash INFO: compiling\n"


@pytest.mark.parametrize("value", ["LOUD", "10", "true"])
def test_an_unknown_level_is_a_warning(value, logger, monkeypatch):
    monkeypatch.setenv(env.LOG, value)
    with pytest.warns(UserWarning, match=f"CUPY_FLASH_LOG is '{value}'.*DEBUG, INFO, WARNING"):
        env.configure_logging()
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]


def test_columns_line_up():
    rows = [("a", "1"), ("long", "222")]
    assert aligned(rows) == ["a       1", "long  222"]
    assert aligned(rows, right=False) == ["a     1", "long  222"]


def test_the_page_tells_of_every_command_and_variable():
    page = DOCS.read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"$ python -m cupy_flash {command}" in page
    for variable in env.OURS:
        assert variable.name in page


def test_the_documented_explanation_is_what_the_command_prints(capsys):
    shown = DOCS.read_text(encoding="utf-8").split("$ python -m cupy_flash explain ")[1]
    arguments, output = shown.split("```")[0].split("\n", 1)
    assert main(["explain", *shlex.split(arguments)]) == 0
    assert capsys.readouterr().out == output
