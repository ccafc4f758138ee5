"""The pass rules with options: right results are within them, those of a fault are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cupy_flash import accuracy, reference
from problems import DTYPES, Case
from tolerance import check

SIZES = {"m": 48, "n": 200, "d": 40, "p": 24}
# Each option alone, and all of them.
OPTIONS = {
    "softcap": {"softcap": 1.5},
    "bias": {"bias": "pairs"},
    "alibi": {"alibi": "heads"},
    "sinks": {"sinks": "heads"},
    "window": {"window": (60, 3)},
    "mask": {"mask": "pairs"},
}
OPTIONS["all"] = {name: value for option in OPTIONS.values() for name, value in option.items()}
LITTLE = 2.0**-10


def case_of(dtype, seed, **changes):
    """Build a case of one batch entry and two heads whose numbers are the ones below."""
    case = Case((1,), 2, 1, dtypes=(dtype,) * 3, seed=seed, **(SIZES | changes))
    arrays = case.build()
    rng = np.random.default_rng(seed)
    if arrays.bias is not None:
        bias = rng.normal(0, 2, arrays.bias.shape)
        arrays.bias.numpy()[...] = np.where(rng.random(bias.shape) < 0.1, -np.inf, bias)
    if arrays.mask is not None:
        arrays.mask.numpy()[...] = rng.random(arrays.mask.shape) < 0.8
    if arrays.alibi_slopes is not None:
        arrays.alibi_slopes.numpy()[...] = (0.125, 0.03)
    if arrays.sinks is not None:
        arrays.sinks.numpy()[...] = (3.0, 5.5)
    return arrays


def model(arrays, fault=None, off=None):
    """Compute a case as a kernel does, in its precision, with one fault or one option `off`."""
    case = arrays.case
    dtype = DTYPES[case.dtypes[0]]
    sums = np.dtype(accuracy.accumulation(dtype.name))
    number = sums.type
    factor = {name: number(1 + LITTLE if name == off else 1) for name in OPTIONS}
    q, k, v = (x.numpy().astype(sums) for x in arrays.inputs().values())
    small = {name: x.numpy() for name, x in arrays.small().items()}
    offset = case.n - case.m
    distance = np.arange(case.n) - (np.arange(case.m)[:, None] + offset)
    if fault == "ALiBi from the first key":
        distance = distance + offset
    if fault != "ALiBi on one side alone":
        distance = np.abs(distance)
    left, right = case.window or (None, None)
    if fault == "window loses its oldest key":
        left -= 1
    if fault == "window sees one key more":
        right += 1
    seen = reference.visibility(
        case.m,
        case.n,
        offset=offset,
        window=(left, right),
        mask=small.get("mask"),
        bias=None if fault == "bias of -inf is a score" else small.get("bias"),
    )
    if fault == "mask shifted by a key":
        seen = np.roll(seen, 1, axis=1)
    S = q @ k.swapaxes(-1, -2) * number(1 / math.sqrt(case.d))
    bias = small.get("bias", np.zeros((), np.float32)).astype(sums) * factor["bias"]
    if fault == "bias of -inf is a score":
        bias = np.where(bias == -np.inf, number(-5), bias)
    if fault == "bias before softcap":
        S, bias = S + np.where(seen, bias, 0), number(0)
    if case.softcap is not None:
        c = number(case.softcap) * factor["softcap"]
        S = c * np.tanh(S / c)
    S = S + bias
    if "alibi_slopes" in small:
        slopes = small["alibi_slopes"].astype(sums)[:, None, None] * factor["alibi"]
        S = S - slopes * distance.astype(sums)
    S = np.where(seen, S, number(-np.inf))
    sinks = np.full((2, 1, 1), -np.inf, sums)
    if "sinks" in small:
        sinks[:, 0, 0] = small["sinks"] * factor["sinks"]
    m = np.maximum(S.max(axis=-1, keepdims=True), sinks)
    m = np.where(np.isfinite(m), m, 0)
    P = np.exp(S - m)
    l = P.sum(axis=-1, keepdims=True)
    with_sink = l + np.exp(sinks - m)
    O = P @ v / np.maximum(l if fault == "sink missing in out" else with_sink, number(1e-30))
    with np.errstate(divide="ignore"):
        lse = m + np.log(l if fault == "sink missing in lse" else with_sink)
    return O.astype(dtype), lse[..., 0]


@pytest.mark.parametrize("values", ["normal", "x30", "outlier", "level"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_result_passes(dtype, name, values):
    for seed in range(2):
        arrays = case_of(dtype, seed, values=values, **OPTIONS[name])
        assert check(arrays, *model(arrays)) <= 1


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", ["softcap", "bias", "alibi", "sinks"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_option_that_is_off_by_a_thousandth_fails(dtype, name, together):
    for seed in range(2):
        arrays = case_of(dtype, seed, **OPTIONS["all" if together else name])
        with pytest.raises(AssertionError, match=r"out: |lse: |rule: "):
            check(arrays, *model(arrays, off=name))


FAULTS = {
    "bias before softcap": "all",
    "bias of -inf is a score": "bias",
    "ALiBi on one side alone": "alibi",
    "ALiBi from the first key": "alibi",
    "window loses its oldest key": "window",
    "window sees one key more": "window",
    "mask shifted by a key": "mask",
    "sink missing in out": "sinks",
    "sink missing in lse": "sinks",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_fault_is_caught(dtype, fault):
    for seed in range(2):
        arrays = case_of(dtype, seed, **OPTIONS[FAULTS[fault]])
        with pytest.raises(AssertionError, match=r"out: |lse: |rule: "):
            check(arrays, *model(arrays, fault))


def test_a_cap_takes_the_errors_of_large_scores_away():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((40, 16)).astype(np.float32) for _ in range(3))
    q *= 200
    bounds = {}
    for softcap in (None, 1e6, 1.0, 1e-3):
        exact = reference.attention(q, k, v, softcap=softcap)
        bounds[softcap] = accuracy.lse_bound(exact, "float32", q, k, 0.25).max()
    e = 2.0**-24
    assert bounds[None] <= bounds[1e6] <= 2 * bounds[None]
    # Where a score lies within the cap, its error does too; lse is near ln(40).
    assert bounds[1.0] < 200 * e + 2e-3
    assert bounds[1e-3] < 90 * e + 2e-6


def test_nothing_is_allowed_where_only_the_sink_is_left():
    q, k, v = (np.ones((3, 2), np.float32) for _ in range(3))
    options = {"sinks": np.array(0.1), "mask": np.array([[False], [True], [True]])}
    exact = reference.attention(q, k, v, **options)
    bound = accuracy.lse_bound(exact, "float32", q, k, 1.0)
    assert bound[0] == 2.0**-24 * 0.1 < bound[1]
    assert abs(np.float32(0.1) - exact.lse[0]) <= bound[0]
    assert accuracy.out_bound(exact, "float32", q, k, v, 1.0)[0].max() < 1e-30
