"""`bench` measures what its sweeps say and shows what it measured, and nothing else."""

from __future__ import annotations

import json
import math
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from command_line import NO_GPU, ROOT, hide_gpu, refused, replaced_attend, scaled
from cupy_flash import attention, blocked, gpus
from cupy_flash.__main__ import main
from cupy_flash.commands import (
    bench,
    bench_measure,
    bench_pictures,
    bench_results,
    bench_text,
    sampled,
)
from cupy_flash.commands.bench_sweeps import SWEEPS, Point, Sweep
from cupy_flash.commands.bench_table import legend, table

TINY = Sweep("two lengths", "n", tuple(Point("float32", 1, 4, 2, n, n, 8, True) for n in (16, 32)))
FIGURES = {"seconds", "least", "most", "rounds", "array_bytes", "extra_bytes"}
ERRORS = {"max_error", "rms_error", "error_over_bound"}


@pytest.fixture
def no_gpu(monkeypatch):
    hide_gpu(monkeypatch)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(bench, "SWEEPS", {"small": TINY})


def measured_results(tmp_path, *options):
    path = tmp_path / "results.json"
    code = main(["bench", "--numpy", "--rounds=2", f"--json={path}", *options])
    return code, json.loads(path.read_text())


def made_up(gpu="NVIDIA H200", candidates=("ours", "unfused")):
    """Results with round numbers for pictures and tables; not measured."""
    points = []
    for causal in (False, True):
        for n in (1024, 2048):
            point = Point("float16", 1, 8, 8, n, n, 64, causal).as_dict()
            found = {
                "seconds": 1e-3,
                "least": 0.9e-3,
                "most": 1.2e-3,
                "rounds": 9,
                "array_bytes": 4 * 8 * n * 64 * 2,
                "extra_bytes": 0,
                "max_error": 1e-4,
                "rms_error": 1e-5,
                "error_over_bound": 0.5,
            }
            point["candidates"] = {name: dict(found) for name in candidates}
            points.append(point)
    machine = {"gpu": gpu, "cupy": "14.2.0", "nvrtc": "13.0", "numpy": "2.4.0"}
    machine |= {"cupy_flash": "0.1.0", "date": "2026-01-02 03:04 UTC"}
    return {"schema": 1, "machine": machine, "sweep": "length", "x": "n", "points": points}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_varies_its_size_and_is_a_valid_problem(name):
    sweep = SWEEPS[name]
    assert len(set(sweep.points)) == len(sweep.points)
    assert len({getattr(point, sweep.x) for point in sweep.points}) > 2
    for point in sweep.points:
        assert point.heads % point.kv_heads == 0
        assert min(point.batch, point.kv_heads, point.m, point.n, point.d) >= 1
        assert bench_results.cost(point.as_dict(), "ours").products > 0


def test_the_growth_sweep_reaches_a_million_tokens():
    points = SWEEPS["growth"].points
    assert [points[0].n, points[-1].n] == [512, 2**20]
    assert {(p.m == p.n, p.d, p.causal, p.batch) for p in points} == {(True, 128, True, 1)}


def test_the_numpy_path_is_measured_on_request(no_gpu, tiny, tmp_path, capsys):
    code, results = measured_results(tmp_path)
    assert code == 0
    assert set(results) == {"schema", "machine", "sweep", "x", "points"}
    assert results["schema"] == bench_results.SCHEMA
    assert {"processor", "numpy", "cupy_flash", "date"} == set(results["machine"])
    assert [point["n"] for point in results["points"]] == [16, 32]
    for point in results["points"]:
        ours, unfused = point["candidates"]["ours"], point["candidates"]["unfused"]
        assert set(ours) == FIGURES | ERRORS | {"kernel"}
        assert set(unfused) == FIGURES | ERRORS
        assert ours["kernel"] == "blocked"
        assert 0 < ours["least"] <= ours["seconds"] <= ours["most"]
        assert ours["rounds"] == 2
        # q and out of four heads, k and v of two.
        assert ours["array_bytes"] == (2 * 4 + 2 * 2) * point["n"] * 8 * 4
        assert 0 < ours["error_over_bound"] <= 1
    text = capsys.readouterr().out
    assert "NumPy path on " in text
    assert len(re.findall(r"^float32 .* causal ", text, flags=re.MULTILINE)) == 4


def test_only_ours(no_gpu, tiny, tmp_path):
    _, results = measured_results(tmp_path, "--only-ours")
    assert [set(point["candidates"]) for point in results["points"]] == [{"ours"}] * 2


def test_a_wrong_result_is_an_error(no_gpu, tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(blocked, "attend", replaced_attend(scaled))
    code, results = measured_results(tmp_path)
    assert code == 1
    assert results["points"][0]["candidates"]["ours"]["error_over_bound"] > 1


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("cuBLAS says no")])
def test_what_unfused_attention_cannot_do_is_told(
    error, no_gpu, tiny, tmp_path, monkeypatch, capsys
):
    def fail(*arrays, **options):
        raise error

    monkeypatch.setattr(bench_measure, "standard_attention", fail)
    code, results = measured_results(tmp_path)
    assert code == 0
    why = f"{type(error).__name__}: {error}"
    assert results["points"][0]["candidates"]["unfused"] == {"not_possible": why}
    assert f"not possible, unfused: {why}" in capsys.readouterr().out


def test_a_failure_of_ours_is_not_hidden(no_gpu, tiny, tmp_path, monkeypatch):
    def fail(*arrays, **options):
        raise RuntimeError("broken kernel")

    monkeypatch.setattr(bench_measure, "attention", fail)
    with pytest.raises(RuntimeError, match="broken kernel"):
        measured_results(tmp_path)


def test_arrays_that_do_not_fit_are_told(no_gpu, tiny, tmp_path, monkeypatch):
    def fail(*arguments):
        raise MemoryError("too long")

    monkeypatch.setattr(bench_measure, "normal", fail)
    _, results = measured_results(tmp_path)
    for point in results["points"]:
        for found in point["candidates"].values():
            assert found == {"not_possible": "MemoryError: too long"}


@pytest.mark.parametrize("tqdm", [True, False])
def test_progress_goes_to_stderr(tqdm, no_gpu, tiny, tmp_path, monkeypatch, capsys):
    if tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    measured_results(tmp_path)
    shown = capsys.readouterr()
    for point in TINY.points:
        assert str(point) in shown.err
        assert str(point) not in shown.out
    assert ("[2/2]" in shown.err) is not tqdm


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bench", f"{NO_GPU}; --numpy measures the NumPy path"),
        ("bench length --device 1", NO_GPU),
        ("bench --numpy --device 0", "exclude each other"),
        ("bench lengths", "invalid choice: 'lengths'"),
        ("bench --rounds 0 --numpy", "--rounds is 0; it must be >= 1"),
        ("bench --numpy --plot curves.jpg", "must end in one of .png, .svg, .pdf, .txt, or be -"),
        ("bench --from nowhere.json", "--from nowhere.json: FileNotFoundError"),
        ("bench small --from results.json", "--from measures nothing"),
    ],
)
def test_a_bad_argument_is_named(text, words, no_gpu, capsys):
    assert words in refused(capsys, text)


@pytest.mark.parametrize(
    ("content", "words"),
    [("[]", "isn't what"), ("{", "JSONDecodeError"), ('{"sweep": "length"}', "schema is None")],
)
def test_a_file_that_is_no_sweep_is_refused(content, words, tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_text(content)
    assert words in refused(capsys, f"bench --from {path}")


def test_missing_matplotlib_is_told_before_anything_is_measured(no_gpu, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(bench, "measure_point", lambda *_: pytest.fail("it measured"))
    said = refused(capsys, "bench --numpy --plot curves.png")
    assert "pip install 'cupy-flash[bench]'; --plot - draws in the terminal" in said


def test_results_are_read_and_drawn_as_text(tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(made_up()))
    assert main(["bench", f"--from={path}", "--plot=-"]) == 0
    text = capsys.readouterr().out
    assert "NVIDIA H200, cupy_flash 0.1.0, CuPy 14.2.0, NVRTC 13.0, NumPy 2.4.0, 2026-01-02" in text
    # 4 * 8 * 1024^2 * 64 FLOPs in 1 ms.
    assert re.search(r"1024 +1024 +64 +full +ours +1\.00 ms +30% +2\.15 ", text)
    for words in ("TFLOP/s against n", "time against n", "memory with q, k, v and out against n"):
        assert words in text
    assert main(["bench", f"--from={path}", f"--plot={tmp_path / 'plot.txt'}"]) == 0
    assert (tmp_path / "plot.txt").read_text() == bench_text.plots(made_up()) + "\n"


def test_the_share_of_the_limit_is_the_roofline_over_the_time():
    point = made_up()["points"][0]
    share = bench_results.share_of_limit(point, "ours", gpus.find_gpu("H200"))
    assert share == pytest.approx(4 * 8 * 1024**2 * 64 / 764e12 / 1e-3, rel=1e-3)


def test_only_whole_names_of_gpus_have_limits():
    assert gpus.gpu_of_driver("NVIDIA H200").name == "H200"
    assert gpus.gpu_of_driver("NVIDIA H100 PCIe") is None
    assert bench_results.known_gpu(made_up(gpu="NVIDIA T4")) is None
    assert {gpus.gpu_of_driver(name).name for name in gpus._DRIVER_NAMES} == set(gpus.GPUS)


def test_a_plain_plot_puts_markers_where_the_values_are():
    line = bench_results.Line("ours", "ours", (1, 10, 100), (1, 10, 100))
    rows = bench_text.plot("speed", "n", [line], lambda value: f"{value:g}").splitlines()
    body = [row.split("|")[1] for row in rows[1 : 1 + bench_text.HEIGHT]]
    found = [(row.index("o"), -i) for i, row in enumerate(body) if "o" in row]
    assert len(found) == 3
    assert found[0] == (bench_text.WIDTH - 1, 0)
    assert found[-1] == (0, 1 - bench_text.HEIGHT)
    assert rows[1].startswith("100 |")
    assert rows[bench_text.HEIGHT].startswith("  1 |")
    assert rows[-1].strip() == "o ours"
    flat = bench_results.Line("flat", "ours", (1, 2), (3, 3))
    assert "o" in bench_text.plot("speed", "n", [flat], str)
    assert bench_text.plot("speed", "n", [], str) == "speed: nothing was measured"


@pytest.mark.parametrize(("gpu", "panels"), [("NVIDIA H200", 3), ("some GPU", 2)])
def test_the_picture_has_labelled_axes_and_the_roofline_of_a_known_gpu(gpu, panels):
    pytest.importorskip("matplotlib")
    figure = bench_pictures.figure(made_up(gpu=gpu))
    assert len(figure.axes) == panels
    assert all(axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)
    assert gpu in figure.get_suptitle()
    assert "2026-01-02" in figure.get_suptitle()
    labels = {line.get_label() for line in figure.axes[0].lines}
    assert labels == {f"{who} {mask}" for who in ("ours", "unfused") for mask in ("full", "causal")}
    if panels == 3:
        roof = figure.axes[2].lines[0]
        assert roof.get_xdata()[1] == pytest.approx(764 / 4.249)
        assert roof.get_ydata()[1:] == pytest.approx([764, 764])


@pytest.mark.parametrize("suffix", bench_pictures.SUFFIXES)
def test_pictures_are_written(suffix, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    source, path = tmp_path / "file.json", tmp_path / f"plot{suffix}"
    source.write_text(json.dumps(made_up()))
    assert main(["bench", f"--from={source}", f"--plot={path}"]) == 0
    assert path.stat().st_size > 1000
    if suffix == ".svg":
        ElementTree.parse(path)


def test_long_arrays_repeat_what_was_drawn(monkeypatch):
    monkeypatch.setattr(bench_measure, "DRAWN", 7)
    x = bench_measure.normal((4, 5), "bfloat16", 0).ravel()
    assert x.dtype.name == "bfloat16"
    assert (x[:7] == x[7:14]).all()
    assert len(set(x[:7].tolist())) == 7


@pytest.mark.parametrize("causal", [False, True])
def test_sampled_errors_find_one_wrong_element(causal):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 4, 40, 8))
    k, v = (rng.standard_normal((2, 2, 50, 8)) for _ in range(2))
    rows = sampled.exact_rows(q, k, v, causal, sampled.places(40, 3), np.asarray)
    out = attention(q, k, v, causal=causal)
    right = sampled.errors(out, rows, "blocked", np.asarray)
    assert right["error_over_bound"] <= 1
    for where in ((0, 0, 0, 0), (0, 0, 20, 1), (1, 3, 39, 7)):
        wrong = out.copy()
        wrong[where] += 1e-3
        found = sampled.errors(wrong, rows, "blocked", np.asarray)
        assert found["error_over_bound"] > 1
        assert math.isclose(found["max_error"], 1e-3, rel_tol=1e-6)


def test_the_documented_table_has_the_columns_and_the_legend_of_the_real_one(capsys):
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    shown = page.split("$ python -m cupy_flash bench --numpy\n")[1].split("```")[0]
    results = made_up()
    assert f"{SWEEPS['small'].about}\n" in shown
    assert " ".join(table(results)[0].split()) in " ".join(shown.split())
    # Without limits, as on the machine of the page.
    results["machine"]["gpu"] = ""
    assert "\n".join(legend(results)) in shown
    for name in SWEEPS:
        assert f"| `{name}` |" in page
