"""`check` passes for right kernels, and fails, with the way to see it alone, for wrong ones."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from command_line import NO_GPU, hide_gpu, refused, replaced_attend, scaled, two_gpus
from cupy_flash import attention, blocked
from cupy_flash.__main__ import main
from cupy_flash.arrays import FLOAT_NAMES, describe, planned
from cupy_flash.commands import check as check_command
from cupy_flash.commands.check_case import KINDS, LAYOUTS
from cupy_flash.commands.check_problems import CHECKS
from cupy_flash.explanation import explain
from cupy_flash.problem import SMALL_ARRAYS


@pytest.fixture
def no_gpu(monkeypatch):
    hide_gpu(monkeypatch)


def rows_of(text):
    """Return the first table's rows as {(kernel, dtype): the other cells}."""
    cells = (line.split() for line in text.split("\n\n")[0].splitlines())
    return {(row[0], row[1]): row[2:] for row in cells if len(row) > 2 and row[1] in FLOAT_NAMES}


def test_check_passes(no_gpu, capsys):
    assert main(["check"]) == 0
    text = capsys.readouterr().out
    assert f"NumPy path only: {NO_GPU}" in text
    rows = rows_of(text)
    assert list(rows) == [("blocked", dtype) for dtype in FLOAT_NAMES]
    for problems, ratio, error, _, verdict in rows.values():
        assert (problems, verdict) == (str(len(CHECKS)), "ok")
        assert 0 < float(ratio) <= 1
        assert float(error) > 0


def options_of(text):
    """Return the second table as {(kernel, dtype): {kind: cell}}."""
    header, *rows = text.split("each option:\n")[1].split("\n\n")[0].splitlines()
    assert tuple(header.split()[2:]) == KINDS
    cells = [row.split() for row in rows]
    return {(row[0], row[1]): dict(zip(KINDS, row[2:], strict=True)) for row in cells}


def test_the_worst_of_every_option_is_shown(no_gpu, capsys):
    assert main(["check", "--dtype", "float64"]) == 0
    text = capsys.readouterr().out
    shown = options_of(text)["blocked", "float64"]
    assert all(0 < float(cell) <= 1 for cell in shown.values())
    assert max(shown.values()) == rows_of(text)["blocked", "float64"][1]
    assert main(["check", "--dtype", "float64", "--problem", "window-causal"]) == 0
    alone = options_of(capsys.readouterr().out)["blocked", "float64"]
    assert {kind for kind, cell in alone.items() if cell != "-"} == {"causal", "window"}


def ignoring(name):
    """Compute a problem as if an option hadn't been given."""
    attend = blocked.attend

    def wrong(Q, K, V, scores, sink):
        if name == "window":
            right = 0 if scores.problem.right == 0 else None
            scores = replace(scores, problem=replace(scores.problem, left=None, right=right))
        elif name == "softcap":
            scores = replace(scores, problem=replace(scores.problem, softcap=None))
        elif name == "sinks":
            sink = sink.dtype.type(-np.inf)
        else:
            scores = replace(scores, **{name: None})
        return attend(Q, K, V, scores, sink)

    return wrong


@pytest.mark.parametrize(
    ("name", "failing"),
    [
        ("window", {"window", "causal", "lengths"}),
        ("mask", {"mask", "causal"}),
        ("bias", {"bias"}),
        ("softcap", {"softcap"}),
        ("slope", {"ALiBi", "lengths"}),
        ("sinks", {"sinks", "causal"}),
    ],
)
def test_an_option_that_is_ignored_fails_the_columns_of_its_problems(
    name, failing, no_gpu, monkeypatch, capsys
):
    monkeypatch.setattr(blocked, "attend", ignoring(name))
    assert main(["check", "--dtype", "float32"]) == 1
    shown = options_of(capsys.readouterr().out)["blocked", "float32"]
    assert {kind for kind, cell in shown.items() if cell == "FAIL"} == failing | {"all"}


def without_last_key(attend, Q, K, V, scores, sink):
    return attend(Q, K[:-1], V[:-1], scores, sink)


def one_key_further(attend, Q, K, V, scores, sink):
    return attend(Q, K, V, replace(scores, offset=scores.offset + 1), sink)


def lse_base_two(attend, Q, K, V, scores, sink):
    O, lse = attend(Q, K, V, scores, sink)
    return O, lse / np.log(2).astype(lse.dtype)


def nan_for_empty_rows(attend, Q, K, V, scores, sink):
    O, lse = attend(Q, K, V, scores, sink)
    O[np.isneginf(lse)] = np.nan
    return O, lse


def raising(attend, Q, K, V, scores, sink):
    raise RuntimeError("the kernel fell over")


@pytest.mark.parametrize(
    "fault",
    [scaled, without_last_key, one_key_further, lse_base_two, nan_for_empty_rows, raising],
)
def test_check_finds_a_fault_and_says_how_to_see_it_alone(fault, no_gpu, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(blocked, "attend", replaced_attend(fault))
        assert main(["check", "--dtype", "float32", "--seed", "3"]) == 1
        text = capsys.readouterr().out
        assert re.search(r"blocked +float32 .* \d+ FAIL\n", text)
        assert "within" not in text
        alone = re.search(r"  python -m cupy_flash (check .* --seed 3)\n", text)[1]
        assert main(shlex.split(alone)) == 1
        if fault is raising:
            assert "RuntimeError: the kernel fell over" in text
    assert main(shlex.split(alone)) == 0


def on_fake_gpu(monkeypatch, fault="no kernel"):
    """Let NumPy arrays pass for CuPy's: real choices of kernels, and `blocked` for each of them."""
    two_gpus(monkeypatch)
    numpy_attention = check_command.attention

    def attention(*arrays, kernel, **options):
        if kernel == fault:
            raise RuntimeError(f"{kernel} fell over")
        return numpy_attention(*arrays, **options)

    def explain_planned(*arrays, kernel, **options):
        pretended = [planned(x.shape, x.dtype) for x in arrays]
        for name, x in options.items():
            if isinstance(x, np.ndarray):
                options[name] = planned(x.shape, x.dtype)
        return explain(*pretended, kernel=kernel, arch=90, **options)

    monkeypatch.setattr(check_command, "attention", attention)
    monkeypatch.setattr(check_command, "explain", explain_planned)


def test_check_runs_every_kernel_on_what_it_can(monkeypatch, capsys):
    on_fake_gpu(monkeypatch)
    assert main(["check", "--dtype", "float64"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("GPU 0: a GPU of compute capability 9.0, sm_90\n")
    rows = rows_of(text)
    assert {kernel for kernel, _ in rows} == {"blocked", "naive", "simt", "sm80", "sm90"}
    assert int(rows["naive", "float64"][0]) == len(CHECKS)
    # Two problems are wider than simt's largest bucket.
    assert int(rows["simt", "float64"][0]) == len(CHECKS) - 2
    for (kernel, _), row in rows.items():
        if row[0] == "0":
            reason = text.split(f"\n{kernel} ")[1].split("\n")[0].split("-", 3)[-1].strip()
            assert len(reason.split()) > 2, kernel


def test_a_kernel_that_raises_fails_the_check(monkeypatch, capsys):
    on_fake_gpu(monkeypatch, fault="simt")
    assert main(["check", "--kernel=simt", "--dtype=float16", "--device=1"]) == 1
    text = capsys.readouterr().out
    assert "RuntimeError: simt fell over" in text
    assert "--kernel simt --dtype float16 --problem" in text
    assert "--device 1 --seed 0" in text


def test_a_check_that_checks_nothing_is_no_success(monkeypatch, capsys):
    on_fake_gpu(monkeypatch)
    error = refused(capsys, "check --kernel simt --dtype float16 --problem columns-257")
    assert error == "check: no problem was computed\n"


def test_problems_cover_what_kernels_get_wrong():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert {check.layout for check in CHECKS} == set(LAYOUTS)
    for shape, axis in (("q", -2), ("k", -2), ("q", -1), ("v", -1), ("q", 0)):
        assert any(getattr(check, shape)[axis] == 0 for check in CHECKS), (shape, axis)
    assert any(check.q_lengths and check.k_lengths for check in CHECKS)
    assert any(check.options.get("offset") == 0 for check in CHECKS)
    grouped = [c for c in CHECKS if len(c.q) > 3 and c.q[-3] > c.k[-3]]
    assert len(grouped) >= 2
    assert any(check.q[-1] > 256 for check in CHECKS)
    assert {kind for check in CHECKS for kind in check.kinds} == {*KINDS}
    (every,) = (check for check in CHECKS if check.name == "all-options")
    assert every.kinds == ("all",)
    assert every.data("float32", 0).keys() == {"q", "k", "v", *SMALL_ARRAYS}
    assert every.options.keys() == {"window", "causal", "softcap"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_keys_that_no_row_sees_are_nan_and_no_others(check):
    """Judged by the weights of attention over equal scores, values being the unit matrix."""
    arrays = check.data("float64", 0)
    q, k, v = (arrays.pop(name) for name in "qkv")
    *leading, n, _ = k.shape
    if not {"window", "mask", "bias", "lengths", "all"} & {*check.kinds}:
        assert not any(np.isnan(x).any() for x in (k, v))
        return
    nan = np.isnan(k).any(axis=-1)
    np.testing.assert_array_equal(nan, np.isnan(v).any(axis=-1))
    small = {name: x for name, x in arrays.items() if name not in ("alibi_slopes", "sinks")}
    options = {name: x for name, x in check.options.items() if name != "softcap"}
    unit = np.broadcast_to(np.eye(n), (*leading, n, n))
    weights = attention(np.zeros_like(q), np.zeros_like(k), unit, **small, **options)
    seen = (weights.reshape(*leading, -1, *weights.shape[-2:]) != 0).any(axis=(-3, -2))
    if {"window", "mask", "bias", "all"} & {*check.kinds}:
        np.testing.assert_array_equal(nan, ~seen)
    else:
        # Keys within a length may be seen by no row, when no row counts.
        assert not (nan & seen).any()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_layout_changes_the_memory_and_nothing_else(check):
    arrays = check.data("float32", 0)
    placed = check_command._placed(check, arrays, on_gpu=False)
    for name, x in arrays.items():
        np.testing.assert_array_equal(placed[name], x)
    if check.layout != "plain":
        info = describe("q", placed["q"])
        assert not placed["q"].flags.c_contiguous or info.pointer % 16


def test_every_dtype_gets_the_same_numbers_and_every_seed_others():
    check = CHECKS[0]
    exact = check.data("float64", 0)["q"]
    for dtype in FLOAT_NAMES:
        x = check.data(dtype, 0)["q"]
        assert x.dtype.name == dtype
        np.testing.assert_array_equal(x, exact.astype(x.dtype))
    assert (check.data("float64", 1)["q"] != exact).any()
