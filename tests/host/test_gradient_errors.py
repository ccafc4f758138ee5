"""The benchmark of gradients' errors: its unfused baseline, its rule, and whole runs in NumPy."""

from __future__ import annotations

import json
import sys

import ml_dtypes
import numpy as np
import pytest

import gradient_cases
import measure_gradient_errors as script
import unfused_gradients
from cupy_flash import reference
from gradient_cases import OPTIONS, ErrorCase, calls, cases


def exact_of(call):
    arrays = (call.arguments[name] for name in "qkv")
    return reference.attention_backward(
        call.do, *arrays, wrt=call.wrt, **script.options_of(call)
    )._asdict()


def test_every_dtype_meets_every_option_and_head_dim():
    found = cases(512, gradient_cases.FAMILIES)
    assert len(set(found)) == len(found) == 4 * (2 * 9 + 1) + 9 + 1
    assert {case.dtype for case in found if case.kernel == "sm80"} == {"float16", "bfloat16"}
    assert {case.n for case in found if case.dtype == "float64"} == {256}
    assert {case.n for case in found if case.dtype != "float64"} == {512}
    assert {case.d for case in found if case.kernel == "naive"} == {32, 64}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("option", OPTIONS)
def test_unfused_gradients_are_the_formulas_rounded(option, dtype):
    for call in calls(ErrorCase(dtype, None, 16, option, 40)):
        found = unfused_gradients.unfused_gradients(call.do, call.arguments, call.wrt)
        for name, want in exact_of(call).items():
            got = found[name]
            assert (got.shape, got.dtype) == (want.shape, call.arguments[name].dtype)
            # Two roundings of 16 bits; large scores take their own share of float32.
            relative = 8 * float(ml_dtypes.finfo(dtype).eps)
            relative += 2e3 * float(np.finfo("f8" if dtype == "float64" else "f4").eps)
            off = np.abs(got.astype(want.dtype) - want).max()
            assert off <= relative * max(np.abs(want).max(), np.abs(want).sum() / 400), (
                call.data,
                name,
            )


def test_factors_are_rounded_to_16_bits_and_a_chain_rounds_each_term():
    (call, *_) = calls(ErrorCase("bfloat16", None, 16, "plain", 40))
    wide = {name: x.astype(np.float32) for name, x in call.arguments.items()}
    rounded, plain = (
        unfused_gradients.unfused_gradients(call.do.astype(x["q"].dtype), x, ("v",))["v"]
        for x in (call.arguments, wide)
    )
    want = exact_of(call)["v"]
    errors = [np.abs(x.astype(float) - want).max() for x in (rounded, plain)]
    assert errors[0] > 100 * errors[1] > 0
    ones = np.ones((1, 3), np.float32) * np.float32(2**-24)
    ones[0, 0] = 1
    # Each term is half an ulp of the sum before it, and rounds to even; both together would not.
    assert unfused_gradients.chained(ones, np.ones((3, 1), np.float32)) == 1


def test_data_is_what_it_is_called():
    found = {call.data: call for call in calls(ErrorCase("float32", None, 64, "plain", 64))}
    scores = {data: script.largest_score(call) for data, call in found.items()}
    assert scores["normal"] < 8 < scores["outlier"] < script.LARGEST_SCORE < scores["x30"]
    assert 110 < scores["offset"] < 130
    (recorded,) = calls(ErrorCase("float16", None, 32, "plain", 512))
    assert recorded.arguments["q"].shape == (1, 4, 301, 32)
    (sinks,) = (x for x in calls(ErrorCase("float32", None, 8, "sinks", 8)) if x.data == "offset")
    assert sinks.arguments["sinks"].tolist() == [-118, -121]
    assert sinks.wrt == ("q", "k", "v", "sinks")


def test_the_rule_has_a_factor_and_an_ulp():
    want = np.array([[1.0, 2.0]])
    eps = float(np.finfo(np.float16).eps)
    plain, ours = (np.float16(want + np.array([[0, steps * 2 * eps]])) for steps in (1, 3))
    found = script.beside(ours, plain, want, True)
    assert [found["max_ratio"], found["rms_ratio"]] == pytest.approx([3, 3])
    # Twice the unfused one, and an ulp of 2.
    assert found["of_allowed_max"] == 1
    assert found["of_allowed_rms"] == pytest.approx(3 / 1.3)
    assert "of_allowed_max" not in script.beside(ours, plain, want, False)
    right = script.beside(np.float16(want), np.float16(want), want, True)
    assert right["max_ratio"] == right["of_allowed_rms"] == 0


def point(**one):
    return {
        "dtype": "float16",
        "kernel": "sm80",
        "d": 64,
        "option": "plain",
        "data": "normal",
        "gradients": {"q": one},
    }


def test_the_summary_names_what_is_beyond():
    near = point(of_allowed_max=0.5, of_allowed_rms=0.9)
    lost = point(of_allowed_max=float("nan"), of_allowed_rms=0.1)
    first, *beyond = script.summary([near, point(max_error=1.0)])
    assert first.startswith("1 of 1 gradients within what is allowed, worst 0.90 (dq of float16")
    assert first.endswith("; 1 not judged")
    assert beyond == []
    first, *beyond = script.summary([near, lost])
    assert first.startswith("1 of 2 gradients within")
    assert beyond == ["beyond: dq of float16 sm80 64 plain normal: nan"]


def test_the_script_writes_what_it_prints(monkeypatch, tmp_path, capsys):
    path = tmp_path / "errors.json"
    asked = ["measure_gradient_errors.py", "--numpy", "--n=24", f"--json={path}"]
    monkeypatch.setattr(sys, "argv", [*asked, "--processes=1", "--dtype", "float16", "float32"])
    script.main()
    shown = capsys.readouterr().out
    assert "146 problems in" in shown
    results = json.loads(path.read_text())
    assert "processor" in results["machine"]
    found = results["points"]
    assert len(found) == 2 * (2 * 9 * 4 + 1)
    assert {(p["dtype"], p["kernel"]) for p in found} == {
        ("float16", "numpy"),
        ("float32", "numpy"),
    }
    for p in found:
        extra = {"bias": {"bias"}, "sinks": {"sinks"}, "ALiBi": {"alibi_slopes"}}
        assert {*p["gradients"]} == {"q", "k", "v"} | extra.get(p["option"], set())
        for name, one in p["gradients"].items():
            assert 0 < one["max_error"] < 0.05 * one["exact_max"], p
            judged = p["largest_score"] <= 30 and name in ("q", "k", "v", "bias")
            assert ("of_allowed_max" in one) is judged
    assert sum(line.startswith("float") for line in shown.splitlines()) == len(found)


def test_a_gradient_that_is_off_is_beyond(monkeypatch):
    right = script.computed

    def wrong(case, call):
        found = right(case, call)
        found["k"][0, 0, 3] *= np.float32(1.1)
        return found

    monkeypatch.setattr(script, "computed", wrong)
    points = script.measure(ErrorCase("float32", None, 8, "plain", 24))
    beyond = [line.split(":")[1] for line in script.summary(points)[1:]]
    # Where scores are large nothing is judged.
    assert [line for line in beyond if "dk" in line] == [
        " dk of float32 numpy 8 plain normal",
        " dk of float32 numpy 8 plain outlier",
    ]
