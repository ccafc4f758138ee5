"""The benchmarks of the backward pass: their cases, exact gradients, and whole runs in NumPy."""

from __future__ import annotations

import json
import pickle
import sys

import numpy as np
import pytest

pytest.importorskip("cupy")

import backward_options
import compile_ahead
import exact_gradients
import option_cases
import peers
import peers_backward
import protocol
import time_backward
import time_backward_options
from backward_options import BACKWARD_OPTIONS, backward_case
from cupy_flash import attention_backward, reference
from exact_gradients import exact_parts, gradient_errors
from option_cases import CAUSAL, FULL, OPTIONS
from peers_backward import BackwardCase, Drawn, OursBackward, make_backward_arrays
from pretended_gpu import pretend


@pytest.fixture
def small(monkeypatch):
    """NumPy in CuPy's place, and points of 2 x 4 heads at n = 48, d = 8."""
    modules = (peers, peers_backward, protocol, option_cases, exact_gradients, compile_ahead)
    pretend(monkeypatch, *modules, time_backward, time_backward_options)
    monkeypatch.setattr(protocol, "_clock", lambda stream: lambda: 1755.0)
    for module in (time_backward, backward_options):
        monkeypatch.setattr(module, "TOKENS", 96)
        monkeypatch.setattr(module, "WIDTH", 32)
    monkeypatch.setattr(compile_ahead, "N", 24)
    for name, n in (("CHECKED_N", 24), ("CHECKED_N_OF_WINDOWS", 32)):
        monkeypatch.setattr(time_backward_options, name, n)
    for module in (time_backward, time_backward_options):
        monkeypatch.setattr(module, "machine", lambda: {"gpu": "none"})


def case_of(dtype="float32", causal=True, layout="bnhd", part="backward"):
    return BackwardCase(dtype, 2, 4, 4, 48, 8, causal, layout, part)


class Peer(peers.Candidate):
    """Computes gradients of which the one of k is multiplied."""

    def __init__(self, name, factor=1.0, fails=None):
        super().__init__(name)
        self.factor, self.fails = factor, fails

    def call(self, case, arrays):
        def run():
            if self.fails:
                raise self.fails
            x = arrays
            if case.part == "forward":
                return x.o
            dq, dk, dv = attention_backward(x.do, x.q, x.k, x.v, x.o, x.lse, causal=case.causal)
            return dq, dk * np.float32(self.factor), dv

        return run


def test_points_are_those_of_the_papers():
    found = time_backward.cases(
        ["bfloat16", "float64"], time_backward.LENGTHS, time_backward.DIMS, (False, True)
    )
    assert len(found) == 36 + 24
    assert {case.n for case in found if case.dtype == "float64"} == {512, 1024, 2048, 4096}
    for case in found:
        assert (case.batch * case.n, case.heads * case.d) == (16_384, 2048)
        assert case.layout == "bnhd"
    assert len(time_backward.tasks(found)) == 2 * 3 * 2 * 3


def test_flops_are_two_and_a_half_times_those_of_the_forward_call():
    forward = case_of(part="forward").flops
    assert forward == 4 * 2 * 4 * 48**2 * 8 / 2
    assert case_of().flops == 2.5 * forward
    assert case_of(part="both").flops == 3.5 * forward
    option = backward_case(OPTIONS[CAUSAL], "float16", 2048, 64)
    assert option.flops == 2.5 * 4 * 8 * 32 * 64 * 2048 * 2049 / 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [7, 2048])
def test_exact_rows_are_those_of_the_whole_problem(causal, block, small, monkeypatch):
    monkeypatch.setattr(exact_gradients, "BLOCK", block)
    x = make_backward_arrays(case_of(causal=causal), Drawn())
    whole = reference.attention_backward(x.do, x.q, x.k, x.v, causal=causal)
    parts = exact_parts(x, causal, 5)
    assert len(parts) == 2 * 3 * 3
    for part in parts:
        np.testing.assert_allclose(part.exact, whole[part.gradient][part.where], atol=1e-12)
    assert gradient_errors(whole, parts, np.asarray)["max_error"] < 1e-12


def test_one_wrong_row_or_nan_is_an_error(small):
    x = make_backward_arrays(case_of(), Drawn())
    parts = exact_parts(x, True)
    found = [a.copy() for a in reference.attention_backward(x.do, x.q, x.k, x.v, causal=True)]
    found[2][-1, -1, -1, 0] += 1
    assert gradient_errors(found, parts, np.asarray)["max_error"] > 0.1
    found[1][0, 0, 0, 0] = np.nan
    assert np.isnan(list(gradient_errors(found, parts, np.asarray).values())).all()


@pytest.mark.parametrize("layout", peers.LAYOUTS)
def test_arrays_share_what_is_drawn_and_nothing_that_is_written(layout, small):
    drawn, case = Drawn(), case_of(layout=layout)
    first, second = (make_backward_arrays(case, drawn) for _ in range(2))
    assert np.shares_memory(first.q, second.q)
    written = [a for x in (first, second) for a in (x.o, x.out, x.lse, x.out_lse, *x.gradients)]
    for i, a in enumerate(written):
        for b in [*written[:i], first.q, first.k, first.v, first.do]:
            assert not np.shares_memory(a, b)
    for x in (first.q, first.o, *first.gradients):
        assert x.shape == (2, 4, 48, 8)
        assert x.swapaxes(1, 2).flags.c_contiguous is (layout == "bnhd")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_point_has_all_parts_of_all_candidates(dtype, small):
    failing = Peer("failing", fails=RuntimeError("no kernel image"))
    standard, right = peers_backward.StandardBackward(), Peer(time_backward.FA2)
    candidates = [OursBackward("auto"), standard, right, Peer("wrong", 1.2), failing]
    point = time_backward.measure(case_of(dtype), candidates, 2, Drawn())
    assert list(point["parts"]) == ["forward", "backward", "both"]
    for part, found in point["parts"].items():
        able = found["candidates"]
        assert able["auto"]["max_error"] < 0.1
        assert able["failing"] == {"not_possible": "RuntimeError: no kernel image"}
        assert ("wrong" in able["wrong"]) is (part != "forward")
        assert ("seconds" in able["unfused"]) is (dtype in peers_backward.WIDE)
        assert "wrong" not in able["unfused"]
        assert found["ratio"] == pytest.approx(1, rel=1e-6)
        seconds = able["auto"]["seconds"]
        assert able["auto"]["tflops"] == pytest.approx(case_of(part=part).flops / seconds / 1e12)
    rows = time_backward.table([point], "backward")
    assert all(len(row) == len(rows[0]) for row in rows)
    assert sum("WRONG" in cell for cell in rows[1]) == 1
    assert any("no kernel image" in line for line in time_backward.reasons([point]))
    bars = {"float32": ", bar 1.0", "float64": ", bar 0.7"}
    (line,) = (x for x in time_backward.summary([point]) if ", backward" in x)
    assert line.endswith(f"geometric mean 1.000{bars.get(dtype, '')}")


def test_ratios_need_right_results():
    candidates = {
        "auto": {"tflops": 300.0},
        "torch FA2": {"tflops": 200.0},
        "fast": {"tflops": 400.0},
        "faster": {"tflops": 500.0, "wrong": True},
    }
    found = time_backward.ratios(candidates, "float16")
    assert found == {"ratio": 1.5, "best": "fast", "ratio_to_best": 0.75}
    assert "ratio" not in time_backward.ratios(candidates, "float32")
    candidates["torch FA2"]["wrong"] = True
    assert "ratio" not in time_backward.ratios(candidates, "float16")
    candidates["auto"]["wrong"] = True
    assert time_backward.ratios(candidates, "float16") == {}


def test_gradients_that_nobody_wrote_are_wrong(small, monkeypatch):
    def nothing(*arrays, out, **options):
        return out

    monkeypatch.setattr(peers_backward, "attention_backward", nothing)
    point = time_backward.measure(case_of(), [OursBackward("auto")], 2, Drawn())
    found = point["parts"]["backward"]["candidates"]["auto"]
    assert np.isnan(found["max_error"])
    assert found["wrong"] is True


def in_this_process(tasks):
    for task in pickle.loads(pickle.dumps(tasks)):
        assert compile_ahead.compile_one(task) is None


def test_the_script_writes_what_it_prints(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(time_backward, "LENGTHS", (24, 48))
    monkeypatch.setattr(time_backward, "DIMS", (4, 8))
    monkeypatch.setattr(time_backward, "compile_ahead", in_this_process)
    path = tmp_path / "backward.json"
    asked = ["time_backward.py", "--rounds=1", f"--json={path}", "--add", "--peers="]
    monkeypatch.setattr(sys, "argv", [*asked, "--dtype", "bfloat16", "float64", "--d=8"])
    time_backward.main()
    shown = capsys.readouterr().out
    assert "8/8 float64 batch=2 heads=4 n=48 d=8 causal backward: auto" in shown
    assert "float64, backward: ours / unfused on 4 points: least 1.000" in shown
    monkeypatch.setattr(sys, "argv", [*asked, "--dtype=float32", "--d=4", "--n=48", "--causal=no"])
    time_backward.main()
    results = json.loads(path.read_text())
    assert len(results["points"]) == 9
    assert results["points"][-4:] == [p for p in results["points"] if p["dtype"] == "float64"]
    assert (results["rounds"], results["machine"]) == (1, {"gpu": "none"})


def test_lengths_that_are_too_long_are_told(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["time_backward.py", "--dtype=float32", "--n=16384"])
    with pytest.raises(SystemExit, match="up to n = 4096"):
        time_backward.main()


def test_a_kernel_that_is_not_compiled_is_told(small):
    task = compile_ahead.Task(case_of(), ("bias",))
    assert "not compiled: float32 batch=2" in compile_ahead.compile_one(task)


def test_options_are_asked_for_with_their_gradients():
    asked = BACKWARD_OPTIONS
    assert {word for word, one in asked.items() if "bias" in one.wrt} == {
        "dbias",
        "dbias-float32",
        "dbias-heads",
        "dbias-keys",
    }
    assert {one.bar for one in asked.values() if "bias" in one.wrt} == {1.60}
    assert {one.bar for one in asked.values() if "bias" not in one.wrt} == {1.25}
    given = {name for one in asked.values() for name in one.option.names}
    assert {"mask", "softcap", "alibi_slopes", "window", "sinks", "q_lengths"} < given
    assert time_backward_options.with_plain(["window-left", "dbias"]) == [
        FULL,
        CAUSAL,
        "window-left",
        "dbias",
    ]
    kinds = [("bias", "float16", 64), ("dbias", "float16", 64), ("dbias-keys", "float16", 64)]
    tasks = time_backward_options.tasks(kinds, OursBackward("sm80"))
    assert [task.wrt for task in tasks] == [
        (),
        ("q",),
        ("k", "v"),
        ("bias",),
        (),
        ("q",),
        ("k", "v", "bias"),
    ]
    assert {task.kernel for task in tasks} == {"sm80"}


def test_costs_are_for_the_same_pairs():
    def one(seconds, error=0.01):
        return {"seconds": seconds, "max_error": error}

    options = {FULL: one(4.0), CAUSAL: one(2.0), "window-left": one(1.5), "dbias": one(6.0, 0.2)}
    pairs = {FULL: 100, CAUSAL: 50, "window-left": 25, "dbias": 100}
    time_backward_options.add_costs(options, pairs)
    assert [found["cost"] for found in options.values()] == [1.0, 1.0, 1.5, 1.5]
    assert [word for word, found in options.items() if "wrong" in found] == ["dbias"]


def test_the_options_script_writes_what_it_prints(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(time_backward_options, "LENGTHS", (24, 48))
    monkeypatch.setattr(time_backward_options, "DIMS", (4, 8))
    monkeypatch.setattr(time_backward_options, "compile_ahead", in_this_process)
    path = tmp_path / "options.json"
    asked = ["time_backward_options.py", "--rounds=1", f"--json={path}", "--add", "--d=8"]
    monkeypatch.setattr(sys, "argv", [*asked, "--n=48"])
    time_backward_options.main()
    shown = capsys.readouterr().out
    assert f"compared {len(BACKWARD_OPTIONS)} small problems with exact gradients" in shown
    assert "WRONG" not in shown
    assert "bias (n,) and its gradient: at most 1.000 (bfloat16, d = 8, n = 48), within" in shown
    (point,) = json.loads(path.read_text())["points"]
    assert list(point["options"]) == list(BACKWARD_OPTIONS)
    for found in point["options"].values():
        assert found["max_error"] < 0.1
