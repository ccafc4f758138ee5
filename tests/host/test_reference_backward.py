"""The oracle's gradients: central differences, cases done by hand, and identities."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from by_hand import draw
from cover import cover
from cupy_flash import reference
from cupy_flash.reference import attention_backward
from differences import (
    COMBINED,
    call_of,
    combined,
    excess,
    gradients,
    names_of,
    of_results,
    one_by_one,
)
from option_arrays import LEADING, PAIRS
from problems import DTYPES, Case

SMALL = Case(batch=(2,), heads=2, kv_heads=1, m=3, n=4, d=2, p=2, dtypes=("float64",) * 3, seed=41)
ALONE = {
    "nothing": {},
    "scale": {"scale": -0.7},
    "causal": {"causal": True},
    "offset": {"causal": True, "offset": 0},
    "window": {"window": (1, 0)},
    "softcap": {"softcap": 0.5},
    "a small softcap": {"softcap": 1e-3, "scale": 1e-3},
    "q_lengths": {"lengths": "q"},
    "k_lengths": {"lengths": "k"},
    "lengths": {"lengths": "both", "causal": True},
    "k and v without batch": {"squeeze": True},
    "q without heads": {"heads": 1, "kv_heads": 2},
    **{f"mask: {kind}": {"mask": kind} for kind in PAIRS},
    **{f"bias: {kind}": {"bias": kind} for kind in PAIRS},
    **{f"alibi_slopes: {kind}": {"alibi": kind} for kind in LEADING},
    **{f"sinks: {kind}": {"sinks": kind} for kind in LEADING},
}


@pytest.mark.parametrize("fields", ALONE.values(), ids=ALONE)
def test_every_element_by_differences(fields):
    call = call_of(replace(SMALL, **fields))
    names = names_of(call)
    do, dlse = of_results(np.random.default_rng(5), call)
    got = gradients(do, call, dlse=dlse, wrt=names)
    for name, gradient in zip(names, got, strict=True):
        assert gradient.shape == np.shape(call.get(name, 0.0))
        assert excess(call, do, dlse, name, gradient, one_by_one(gradient)) <= 0, name
        # A seed of which no option hides all, and no sink is beyond all scores.
        assert np.abs(gradient).max() > 1e-4


def test_pairs_of_options_by_differences():
    moved = dict.fromkeys(("q", "k", "v", "bias", "sinks", "alibi_slopes", "scale"), 0)
    for seed, row in itertools.product(range(8), cover(COMBINED)):
        case = combined(row, seed)
        call = call_of(case)
        rng = np.random.default_rng(case.seed)
        do, dlse = of_results(rng, call)
        names = names_of(call)
        got = gradients(do, call, dlse=dlse, wrt=names)
        for name, gradient in zip(names, got, strict=True):
            assert np.isfinite(gradient).all(), case
            directions = rng.choice((-1.0, 0.5, 1.0), (2, *gradient.shape))
            assert excess(call, do, dlse, name, gradient, directions) <= 0, (name, case)
            moved[name] += np.abs(gradient).max(initial=0) > 1e-3
    # The others have no visible key, or a sink beyond all scores.
    assert min(moved.values()) >= 20, moved


def one_call(seed, **fields):
    """Return a call with a bias of all pairs, and gradients of its out and lse."""
    call = call_of(replace(SMALL, bias="full", seed=seed, **fields))
    do, dlse = of_results(np.random.default_rng(seed), call)
    return call, do, dlse


def zero_where_nan(x):
    return np.where(np.isnan(x), 0, x)


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("lengths", [None, "both"])
def test_a_row_s_gradient_of_scores_sums_to_that_of_lse(softcap, lengths):
    """A number added to all scores of a row leaves out as it is, and is added to lse."""
    fields = {"softcap": softcap, "lengths": lengths, "causal": True, "alibi": "heads"}
    call, do, dlse = one_call(3, **fields)
    without = gradients(do, call, wrt=("bias",)).bias
    assert np.abs(without).max() > 0.1
    assert np.abs(without.sum(axis=-1)).max() < 1e-17
    of_rows = gradients(do, call | {"bias": np.zeros((3, 1))}, wrt=("bias",)).bias
    assert np.abs(of_rows).max() < 1e-17
    summed = gradients(do, call, dlse=dlse, wrt=("bias",)).bias.sum(axis=-1)
    np.testing.assert_allclose(summed.astype(float), zero_where_nan(dlse), rtol=1e-13, atol=1e-16)
    # A sink is one more score of every row.
    call["sinks"] = np.array([0.5, -1.0])
    got = gradients(do, call, dlse=zero_where_nan(dlse), wrt=("bias", "sinks"))
    total = got.bias.sum(axis=(0, 2, 3)) + got.sinks
    np.testing.assert_allclose(total.astype(float), zero_where_nan(dlse).sum(axis=(0, 2)))


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("sinks", [None, "full"])
def test_products_with_the_arrays(softcap, sinks):
    """A factor of q is one of k and one of the scale; a factor of v is one of out."""
    call, do, dlse = one_call(4, softcap=softcap, sinks=sinks, window=(2, 0), scale=-0.7)
    got = gradients(do, call, dlse=dlse, wrt=("q", "k", "scale", "v"))
    by_q = (got.q * call["q"]).sum(axis=(0, 2, 3))
    by_k = (got.k * call["k"]).sum(axis=(0, 2, 3))
    assert np.abs(by_q).max() > 0.1
    np.testing.assert_allclose(by_q.sum().astype(float), by_k.sum().astype(float), rtol=1e-13)
    scaled = call["scale"] * got.scale
    np.testing.assert_allclose(by_q.sum().astype(float), scaled.astype(float), rtol=1e-13)
    sees = np.isfinite(do)
    results = reference.attention(**call)
    by_out = (results.out[sees] * do[sees]).sum()
    np.testing.assert_allclose(float((got.v * call["v"]).sum()), float(by_out), rtol=1e-13)


def test_gradients_of_v_sum_to_those_of_out():
    call, do, dlse = one_call(5, lengths="q", window=(1, None), kv_heads=2)
    got = gradients(do, call, dlse=dlse, wrt=("v",)).v.sum(axis=-2)
    assert np.isnan(do).any()
    np.testing.assert_allclose(got.astype(float), zero_where_nan(do).sum(axis=-2), rtol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_precision_is_above_that_of_the_inputs(dtype):
    arrays = draw(8, (3, 2), (3, 4), (5, 4), (5, 2), dtype=dtype)
    do, q, k, v = arrays
    got = attention_backward(do, q, k, v)
    assert {x.dtype for x in got} == {np.dtype(np.longdouble if dtype == "float64" else float)}
    wide = attention_backward(*(x.astype(float) for x in arrays))
    for one, other in zip(got, wide, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("axis", ["m", "n", "d", "p", "batch", "heads"])
def test_nothing_along_an_axis(axis):
    sizes = {"m": 3, "n": 4, "d": 2, "p": 2, "batch": 2, "heads": 2} | {axis: 0}
    m, n, d, p, *leading = sizes.values()
    q, k, v, do, bias, sinks = draw(
        9, (*leading, m, d), (*leading, n, d), (*leading, n, p), (*leading, m, p), (m, 1), (1,)
    )
    wrt = ("q", "k", "v", "bias", "sinks", "scale")
    got = attention_backward(
        do, q, k, v, dlse=np.ones((*leading, m)), bias=bias, sinks=sinks, wrt=wrt
    )
    for name, gradient, x in zip(wrt, got, (q, k, v, bias, sinks, np.array(0)), strict=True):
        assert gradient.shape == x.shape
        if axis == "n" and name == "sinks":
            # Each lse is the sink.
            assert gradient == 12
        elif axis not in ("d", "p"):
            assert (gradient == 0).all()
    if axis == "p":
        assert np.abs(got.q).max() > 0.01
    if axis == "d":
        assert np.abs(got.v).max() > 0.01


GOOD = {"do": (2, 3, 4, 2), "q": (2, 3, 4, 5), "k": (3, 6, 5), "v": (3, 6, 2)}


@pytest.mark.parametrize(
    ("error", "words", "wrong"),
    [
        (TypeError, ("wrt is 'q'", "tuple", "'alibi_slopes'", "wrt=('q',)"), {"wrt": "q"}),
        (TypeError, ("wrt is ['q']", "tuple", "wrt=(name,)"), {"wrt": ["q"]}),
        (ValueError, ("wrt is empty", "'q'", "'scale'"), {"wrt": ()}),
        (ValueError, ("wrt names 'mask'", "allowed are 'q'"), {"wrt": ("q", "mask")}),
        (ValueError, ("wrt names 3", "allowed are 'q'"), {"wrt": (3,)}),
        (ValueError, ("wrt names 'k' 2 times", "once"), {"wrt": ("k", "v", "k")}),
        (ValueError, ("'bias', but bias is None", "pass bias="), {"wrt": ("bias",)}),
        (ValueError, ("'sinks', but sinks is None", "leave it out"), {"wrt": ("q", "sinks")}),
        (ValueError, ("do has shape (3, 4, 2)", "(2, 3, 4, 2)"), {"do": np.ones((3, 4, 2))}),
        (ValueError, ("do has shape (2, 3, 4, 1)",), {"do": np.ones((2, 3, 4, 1))}),
        (ValueError, ("do has shape ()", "numpy.full((2, 3, 4, 2)"), {"do": np.array(1.0)}),
        (ValueError, ("dlse has shape (2, 3)", "(2, 3, 4)", "lse"), {"dlse": np.ones((2, 3))}),
        (TypeError, ("do is a list", "numpy.asarray"), {"do": [1.0]}),
        (TypeError, ("dlse is a float", "NumPy array"), {"dlse": 1.0}),
        (TypeError, ("do has dtype int64", "float16", "longdouble"), {"do": np.ones(1, "int64")}),
        (TypeError, ("dlse has dtype complex128", "astype"), {"dlse": np.ones(1, complex)}),
        (TypeError, ("casual",), {"casual": True}),
    ],
)
def test_refusals(error, words, wrong):
    call = {name: np.ones(shape) for name, shape in GOOD.items()} | wrong
    arrays = [call.pop(name) for name in GOOD]
    with pytest.raises(error) as caught:
        attention_backward(*arrays, **call)
    assert caught.type is error
    for word in words:
        assert word in str(caught.value)
