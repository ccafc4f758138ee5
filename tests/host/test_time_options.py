"""What options cost: points, arrays, exact rows, and what follows from a made-up run."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest

pytest.importorskip("cupy")

import option_cases
import option_report
import peers
import protocol
import time_options
from cupy_flash import attention, reference
from cupy_flash.commands import sampled
from option_cases import CAUSAL, FULL, OPTIONS, Tables, case_of
from pretended_gpu import pretend

# As small as the tests' sequences.
WINDOWS = {"window-left": (9, 0), "window-both": (5, 7)}


@pytest.fixture
def small(monkeypatch):
    """NumPy in CuPy's place, and points of 2 x 4 heads at n = 48, d = 8."""
    pretend(monkeypatch, peers, protocol, option_cases, time_options)
    monkeypatch.setattr(protocol, "_clock", lambda stream: lambda: 1755.0)
    monkeypatch.setattr(option_cases, "TOKENS", 96)
    monkeypatch.setattr(option_cases, "WIDTH", 32)
    monkeypatch.setattr(option_cases, "BLOCK", 8)
    for word, window in WINDOWS.items():
        changed = dataclasses.replace(OPTIONS[word], values={"window": window})
        monkeypatch.setitem(OPTIONS, word, changed)


def given(word, dtype="float16"):
    case = case_of(OPTIONS[word], dtype, 48, 8)
    return case, Tables(peers.make_arrays(case)).of(case)


def test_every_option_is_measured_at_the_papers_points():
    kinds = {name for option in OPTIONS.values() for name in option.names}
    assert kinds == {"window", "mask", "bias", "softcap", "alibi_slopes", "sinks"}
    assert OPTIONS["all"].names == {"mask", "bias", "softcap", "sinks"}
    for n in time_options.LENGTHS:
        for d in time_options.DIMS:
            case = case_of(OPTIONS["alibi"], "float16", n, d)
            assert (case.batch * n, case.heads * d, case.layout) == (16_384, 2048, "bhnd")
            assert case.causal
    large = [
        (n, d)
        for n in time_options.LENGTHS
        for d in time_options.DIMS
        if OPTIONS["bias-heads"].too_large(case_of(OPTIONS["bias-heads"], "float16", n, d))
    ]
    assert large == [(16_384, 64), (16_384, 128)]


@pytest.mark.parametrize("n", [1, 5, 12, 600, 1500])
@pytest.mark.parametrize("word", OPTIONS)
def test_pairs_of_a_band_are_counted(word, n):
    option = OPTIONS[word]
    band = reference.visibility(n, n, causal=option.causal, window=option.window)
    assert option.pairs(n) == band.sum()
    case = case_of(option, "float16", 2048, 64)
    assert case.flops == 4 * 8 * 32 * 64 * option.pairs(2048)


@pytest.mark.parametrize("word", OPTIONS)
def test_exact_rows_are_those_of_the_whole_problem(word, small):
    case, arrays = given(word)
    x, found = arrays, sampled.exact_rows
    rows = found(x.q, x.k, x.v, case.causal, sampled.places(48, 5), np.asarray, arrays.options)
    whole = reference.attention(x.q, x.k, x.v, causal=case.causal, **arrays.options)
    assert len(rows) == 6
    for part in rows:
        np.testing.assert_allclose(part.exact.out, whole.out[part.where], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(part.exact.visible, whole.visible[part.where])
    seen = whole.visible.mean() / 48
    assert option_cases.visible(case, arrays) == pytest.approx(seen)


@pytest.mark.parametrize("shape", [(48, 48), (48,), (4, 48, 48), (2, 1, 48, 1), (2, 4, 1, 48), ()])
def test_exact_rows_take_biases_of_every_shape(shape, small):
    _, x = given(FULL)
    options = {
        "bias": np.random.default_rng(1).normal(0, 3, shape),
        "alibi_slopes": np.array([[0.1], [0.7]]),
    }
    rows = sampled.exact_rows(x.q, x.k, x.v, True, sampled.places(48, 5), np.asarray, options)
    whole = reference.attention(x.q, x.k, x.v, causal=True, **options)
    for part in rows:
        np.testing.assert_allclose(part.exact.out, whole.out[part.where], rtol=0, atol=1e-12)


def test_masks_are_what_they_are_called(small):
    tables = {word: given(word)[1].options["mask"] for word in ("mask", "mask-keys", "mask-blocks")}
    random, keys, blocks = tables.values()
    assert random.shape == (48, 48)
    assert random.any(axis=1).all()
    assert 0.4 < random.mean() < 0.6
    assert keys.shape == (2, 1, 1, 48)
    assert keys.mean() == pytest.approx(0.75)
    # 8 x 8 tiles, each row of tiles with half of them.
    tiles = blocks.reshape(6, 8, 6, 8).swapaxes(1, 2)
    assert (tiles.all(axis=(2, 3)) == tiles.any(axis=(2, 3))).all()
    assert (tiles.all(axis=(2, 3)).sum(axis=1) == 3).all()


class OursOnNumpy(peers.Ours):
    def describe(self, case, arrays):
        return {"kernel": "blocked"}


class Peer(peers.Candidate):
    """Takes no sinks, and multiplies what it finds."""

    def __init__(self, name, factor):
        super().__init__(name)
        self.factor = np.float16(factor)

    def why_not(self, case):
        return "takes no sinks" if "sinks" in case.option.names else None

    def call(self, case, arrays):
        x, options = arrays, {"causal": case.causal, **arrays.options}
        return lambda: attention(x.q, x.k, x.v, **options) * self.factor


def test_a_point_is_checked_and_timed_option_by_option(small):
    candidates = [OursOnNumpy("auto"), Peer("right", 1), Peer("wrong", 1.1)]
    point = time_options.measure("float16", 48, 8, list(OPTIONS), candidates, 2)
    assert {"n": 48, "d": 8, "heads": 4, "batch": 2, "dtype": "float16"}.items() <= point.items()
    assert list(point["options"]) == list(OPTIONS)
    for word, found in point["options"].items():
        ours = found["candidates"]["auto"]
        assert found["text"] == OPTIONS[word].text
        assert ours["error_over_bound"] <= 1, word
        assert ours["calls"] == 8
        assert ours["seconds"] == pytest.approx(2e-3 / 8)
        assert ours["cost"] == pytest.approx(1)
        flops = case_of(OPTIONS[word], "float16", 48, 8).flops
        assert ours["tflops"] == pytest.approx(flops / ours["seconds"] / 1e12)
        if "sinks" in OPTIONS[word].names:
            assert found["candidates"]["right"] == {"not_possible": "takes no sinks"}
            assert "ratio" not in found
        else:
            assert found["candidates"]["wrong"]["wrong"] is True
            assert (found["beside"], found["ratio"]) == ("right", pytest.approx(1))
    shown = "\n".join(" ".join(r) for r in option_report.table([point], "auto", ["right", "wrong"]))
    assert "float16 8 48 softcap 100.0% 0.250 1.000" in shown
    assert shown.count("WRONG") == len(OPTIONS) - 2
    assert "right, sinks, causal: takes no sinks" in option_report.reasons([point])


def test_a_table_too_large_is_left_out(small, monkeypatch):
    monkeypatch.setattr(option_cases, "MOST_BYTES", 4 * 48 * 48 * 2 - 1)
    words = time_options.with_plain(["bias-heads"])
    point = time_options.measure("float16", 48, 8, words, [OursOnNumpy("auto")], 2)
    assert list(point["options"]) == [FULL]


def test_plain_calls_are_measured_too():
    assert time_options.with_plain(["sinks"]) == [CAUSAL, "sinks"]
    assert time_options.with_plain(["mask", "bias"]) == [FULL, "bias", "mask"]
    assert time_options.with_plain(["window-both"]) == [FULL, CAUSAL, "window-both"]


def made_up():
    def one(seconds, tflops, **more):
        return {"seconds": seconds, "tflops": tflops, "error_over_bound": 0.5, **more}

    return {
        FULL: {"visible": 1.0, "candidates": {"sm80": one(4.0, 400.0), "peer": one(5.0, 320.0)}},
        CAUSAL: {"visible": 0.5, "candidates": {"sm80": one(2.5, 320.0), "peer": one(4.0, 200.0)}},
        "softcap-causal": {
            "visible": 0.5,
            "candidates": {"sm80": one(5.0, 160.0), "peer": one(2.0, 400.0, wrong=True)},
        },
        "window-left": {
            "visible": 0.1,
            "candidates": {"sm80": one(1.0, 240.0), "peer": one(0.5, 480.0, not_captured="x")},
        },
        "mask": {
            "visible": 0.5,
            "candidates": {"sm80": one(6.0, 266.0), "peer": {"not_possible": "takes none"}},
        },
    }


def test_costs_are_over_the_plain_call_of_the_same_candidate():
    options = made_up()
    time_options.add_costs(options, "sm80", ["peer"])
    ours = {word: found["candidates"]["sm80"] for word, found in options.items()}
    costs = {FULL: 1.0, CAUSAL: 1.0, "softcap-causal": 2.0, "window-left": 0.25, "mask": 1.5}
    assert {word: found["cost"] for word, found in ours.items()} == costs
    assert options["window-left"]["candidates"]["peer"]["cost"] == 0.1
    # Over the pairs that each one sees.
    assert ours["window-left"]["of_causal"] == 0.75
    assert options["window-left"]["candidates"]["peer"]["of_causal"] == 2.4
    assert not any("of_causal" in ours[word] for word in ours if word != "window-left")
    ratios = {word: found.get("ratio") for word, found in options.items()}
    assert ratios[FULL] == 1.25
    assert ratios["window-left"] == 0.5
    assert ratios["softcap-causal"] is None
    assert ratios["mask"] is None
    point = {"dtype": "float16", "n": 4096, "d": 64, "options": options}
    rows = option_report.table([point], "sm80", ["peer"])
    assert all(len(row) == len(rows[0]) for row in rows)
    assert rows[3][5:] == ["5000.000", "2.000", "", "0.500", "2000.000 (0.500) WRONG", "-", "-"]
    assert rows[4][7:10] == ["0.750", "0.500", "500.000 (0.100), called"]
    assert rows[5][-3:] == ["-", "-", "-"]


def test_a_file_keeps_the_points_that_were_not_measured_again(tmp_path):
    def results(*points, **more):
        found = [{"dtype": "float16", "d": d, "n": n, "options": what} for d, n, what in points]
        return {"points": found, "peers": {}, **more}

    path = tmp_path / "options.json"
    new = results((64, 4096, "new"), (64, 2048, "new"), rounds=20)
    assert time_options.merged(new, path) == new
    path.write_text(json.dumps(results((64, 4096, "old"), (128, 2048, "old"), growth="old")))
    both = time_options.merged(new, path)
    assert [(p["d"], p["n"], p["options"]) for p in both["points"]] == [
        (64, 2048, "new"),
        (64, 4096, "new"),
        (128, 2048, "old"),
    ]
    assert (both["growth"], both["rounds"]) == ("old", 20)


def test_time_along_n(small, monkeypatch):
    ours = OursOnNumpy("auto")
    growth = time_options.measure_growth("float16", [16, 32, 48], ours, 2)
    assert [point["n"] for point in growth["points"]] == [16, 32, 48]
    # The pretended time is always the same.
    assert growth["exponents"] == pytest.approx({"window-left": 0, CAUSAL: 0}, abs=1e-9)
    assert len(option_report.growth_table(growth)) == 4
    points = [
        {"n": n, "window-left": {"seconds": 3e-9 * n}, CAUSAL: {"seconds": 1e-12 * n**2}}
        for n in time_options.GROWTH_LENGTHS
    ]
    assert time_options.exponents(points) == pytest.approx({"window-left": 1, CAUSAL: 2})


def test_the_script_writes_what_it_prints(small, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(time_options, "LENGTHS", (24, 48))
    monkeypatch.setattr(time_options, "DIMS", (4, 8))
    monkeypatch.setattr(time_options, "GROWTH_LENGTHS", (16, 32, 48))
    monkeypatch.setattr(time_options, "Ours", OursOnNumpy)
    monkeypatch.setattr(time_options, "machine", lambda: {"gpu": "none"})
    path = tmp_path / "options.json"
    asked = ["time_options.py", "--kernel=auto", "--rounds=1", f"--json={path}", "--add"]
    monkeypatch.setattr(sys, "argv", [*asked, "--only", "softcap", "--growth"])
    time_options.main()
    assert "softcap" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*asked, "--d=8", "--n=48", "--only", "softcap", "sinks"])
    time_options.main()
    results = json.loads(path.read_text())
    found = {(p["d"], p["n"]): list(p["options"]) for p in results["points"]}
    one, two = [FULL, "softcap"], [FULL, CAUSAL, "softcap", "sinks"]
    assert found == {(4, 24): one, (4, 48): one, (8, 24): one, (8, 48): two}
    assert len(results["growth"]["points"]) == 3
    assert (results["rounds"], results["kernel"]) == (1, "auto")


def test_a_quick_run_is_short(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["time_options.py", "--quick"])
    args = time_options.arguments()
    assert (args.n, args.d, args.rounds, args.peers) == ([4096, 16_384], [128], 5, [])
