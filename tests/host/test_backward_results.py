"""What a backward call returns and where: names, shapes, dtypes, memory order, sums, out=, vjp."""

from __future__ import annotations

import inspect
import itertools
import math

import numpy as np
import pytest

import cupy_flash as cf
from by_hand import draw
from cupy_flash import attention, attention_backward, attention_vjp, reference, workspace_size
from cupy_flash.gradients import NAMES
from problems import DTYPES

MATRICES = ("q", "k", "v")


def call(seed=0, dtype="float64", heads=(4, 2), **shapes):
    """Return the positional arguments of a backward call with grouped heads, and its options."""
    sizes = {"q": (2, heads[0], 5, 4), "k": (2, heads[1], 6, 4), "v": (2, heads[1], 6, 3)} | shapes
    q, k, v = draw(seed, *sizes.values(), dtype=dtype)
    options = {"bias": draw(seed + 1, (4, 5, 6), dtype=dtype)[0]}
    options |= {"sinks": np.zeros(4), "alibi_slopes": np.full(4, 0.25, np.float32)}
    o, lse = attention(q, k, v, return_lse=True, **options)
    (do,) = draw(seed + 2, o.shape, dtype=dtype)
    return (do, q, k, v, o, lse), options


def close(got, want):
    for one, other in zip(got, want, strict=True):
        rtol = 1e-10 if one.dtype == np.float64 else 1e-6
        np.testing.assert_allclose(one, np.asarray(other).astype(float), rtol=rtol, atol=1e-12)


def test_fields_are_the_names_in_their_order():
    arrays, options = call()
    whole = attention_backward(*arrays, wrt=NAMES, **options)
    assert type(whole).__name__ == "Gradients"
    for count in (1, 2, 3):
        for wrt in itertools.permutations(NAMES, count):
            got = attention_backward(*arrays, wrt=wrt, **options)
            assert got._fields == wrt
            for name, gradient in zip(wrt, got, strict=True):
                np.testing.assert_array_equal(gradient, getattr(whole, name))
    default = attention_backward(*arrays, **options)
    assert default._fields == MATRICES
    do, *rest = arrays
    exact = reference.attention_backward(do, *rest[:3], wrt=NAMES, **options)
    close(whole, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_gradient_has_the_dtype_of_its_array(dtype):
    arrays, options = call(dtype=dtype)
    got = attention_backward(*arrays, wrt=NAMES, **options)
    assert {x.dtype.name for x in (got.q, got.k, got.v, got.bias)} == {dtype}
    assert (got.sinks.dtype, got.alibi_slopes.dtype) == (np.float64, np.float32)
    assert got.scale.shape == ()
    assert got.scale.dtype == arrays[-1].dtype


def test_mixed_dtypes():
    (_, q, k, v, *_), _ = call()
    q, k = q.astype(np.float16), k.astype(np.float32)
    out, pullback = attention_vjp(q, k, v)
    got = pullback(np.ones_like(out))
    assert [x.dtype for x in got] == [np.float16, np.float32, np.float64]
    exact = reference.attention_backward(np.ones_like(out), q, k, v)
    np.testing.assert_allclose(got.v, exact.v.astype(float), rtol=1e-12)
    np.testing.assert_allclose(got.k, exact.k.astype(float), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(got.q.astype(float), exact.q.astype(float), rtol=1e-3, atol=1e-5)


def test_a_fresh_gradient_has_the_memory_order_of_its_array():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, h, d)) for n, h, d in ((5, 4, 4), (6, 2, 4), (6, 2, 3)))
    bias = rng.standard_normal((5, 6, 4)).transpose(2, 0, 1)
    views = [x.swapaxes(1, 2) for x in (q, k, v)]
    out, pullback = attention_vjp(*views, bias=bias)
    got = pullback(np.ones_like(out), wrt=("q", "k", "v", "bias"))
    for gradient, x in zip(got, (q, k, v), strict=False):
        back = gradient.swapaxes(1, 2)
        assert back.shape == x.shape
        assert back.flags.c_contiguous
        assert not gradient.flags.c_contiguous
    assert got.bias.transpose(1, 2, 0).flags.c_contiguous
    plain = attention_vjp(*map(np.ascontiguousarray, views), bias=bias)[1](np.ones_like(out))
    for one, other in zip(got, plain, strict=False):
        assert other.flags.c_contiguous
        np.testing.assert_array_equal(one, other)


def test_stride_0_of_full_extent_has_a_full_gradient_and_extent_1_the_sum():
    (do, q, k, v, *_), _ = call()
    one = k[:, :1]
    full = np.broadcast_to(one, k.shape)
    assert full.strides[1] == 0
    bias, pairs = np.zeros((5, 1)), np.broadcast_to(np.zeros((5, 1)), (5, 6))
    got = attention_vjp(q, full, v, bias=pairs)[1](do, wrt=("k", "bias"))
    summed = attention_vjp(q, one, v, bias=bias)[1](do, wrt=("k", "bias"))
    assert got.k.shape == k.shape
    assert got.bias.shape == (5, 6)
    assert summed.k.shape == one.shape
    assert np.abs(got.k[:, 0] - got.k[:, 1]).max() > 1e-3
    np.testing.assert_allclose(summed.k, got.k.sum(axis=1, keepdims=True), rtol=1e-12, atol=1e-15)
    by_rows = got.bias.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(summed.bias, by_rows, rtol=1e-12, atol=1e-15)


BROADCAST = {
    "q without batch": ((4, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3)),
    "q of one head": ((2, 1, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3)),
    "k without heads": ((2, 4, 5, 4), (6, 4), (2, 2, 6, 3)),
    "v of one batch entry": ((3, 4, 5, 4), (3, 2, 6, 4), (1, 2, 6, 3)),
    "3d": ((3, 5, 4), (6, 4), (1, 6, 3)),
    "5d": ((2, 1, 4, 5, 4), (3, 1, 6, 4), (2, 1, 2, 6, 3)),
}


@pytest.mark.parametrize("shapes", BROADCAST.values(), ids=BROADCAST)
def test_axes_that_broadcast_are_summed(shapes):
    q, k, v = draw(3, *shapes, dtype="float64")
    out, pullback = attention_vjp(q, k, v, causal=True)
    (do,) = draw(4, out.shape, dtype="float64")
    # Any strides: an overlapping do too.
    for given in (do, np.broadcast_to(do[..., :1], do.shape), do[..., ::-1]):
        got = pullback(given)
        assert [x.shape for x in got] == list(shapes)
        close(got, reference.attention_backward(np.array(given), q, k, v, causal=True))


@pytest.mark.parametrize("axis", ["m", "n", "d", "p", "batch", "heads", "k's batch"])
def test_nothing_along_an_axis(axis):
    sizes = {"m": 3, "n": 4, "d": 2, "p": 2, "batch": 2, "heads": 2} | {axis: 0}
    m, n, d, p, *leading = list(sizes.values())[:6]
    kv = (0, 2) if axis == "k's batch" else tuple(leading)
    leading = (1, 2) if axis == "k's batch" else tuple(leading)
    q, k, v, bias, sinks = draw(
        9, (*leading, m, d), (*kv, n, d), (*kv, n, p), (m, 1), (1,), dtype="float64"
    )
    wrt = ("q", "k", "v", "bias", "sinks", "scale")
    out, pullback = attention_vjp(q, k, v, bias=bias, sinks=sinks)
    (do,) = draw(1, out.shape, dtype="float64")
    dlse = np.ones(out.shape[:-1])
    got = pullback(do, dlse, wrt)
    exact = reference.attention_backward(do, q, k, v, dlse=dlse, bias=bias, sinks=sinks, wrt=wrt)
    for one, other in zip(got, exact, strict=True):
        assert one.shape == other.shape
    close(got, exact)
    if axis == "n":
        assert (got.q == 0).all()
        assert got.sinks == 12
    if axis == "m":
        assert got.k.size
        assert not got.k.any()
        assert not got.v.any()
    if axis == "k's batch":
        assert got.q.shape == (1, 2, 3, 2)
        assert not got.q.any()


def test_results_lie_in_out_and_none_is_fresh():
    arrays, options = call()
    want = attention_backward(*arrays, wrt=("k", "v", "scale", "q"), **options)
    # dk and dv side by side in one buffer.
    buffer = np.full((2, 2, 6, 7), 7.0)
    dk, dv, dscale = buffer[..., :4], buffer[..., 4:], np.array(7.0)
    got = attention_backward(
        *arrays, wrt=("k", "v", "scale", "q"), out=(dk, dv, dscale, None), **options
    )
    assert got.k is dk
    assert got.v is dv
    assert got.scale is dscale
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    backwards = np.zeros((2, 2, 6, 4))[::-1, :, ::-1]
    got = attention_backward(*arrays, wrt=("k",), out=(backwards,), **options)
    assert got.k is backwards
    np.testing.assert_array_equal(backwards, want.k)
    assert attention_backward(*arrays, out=(None,) * 3, **options).k.shape == dk.shape


def test_q_may_be_k_and_v():
    (x,) = draw(0, (5, 4), dtype="float64")
    got = attention_vjp(x, x, x, causal=True)[1](x)
    close(got, reference.attention_backward(x, x, x, x, causal=True))
    assert not np.shares_memory(got.q, got.k)


@pytest.mark.parametrize("deterministic", [True, False, np.True_])
def test_deterministic_and_a_workspace_change_nothing(deterministic):
    arrays, options = call()
    want = attention_backward(*arrays, **options)
    workspace = np.full(100, 7, np.uint8)
    got = attention_backward(*arrays, deterministic=deterministic, workspace=workspace, **options)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (workspace == 7).all()


def test_vjp_is_the_two_calls():
    arrays, options = call()
    do, q, k, v, *_ = arrays
    options |= {"scale": 0.3, "causal": True, "window": (3, None), "offset": 2, "softcap": 2.0}
    out, pullback = attention_vjp(q, k, v, **options)
    want, lse = attention(q, k, v, return_lse=True, **options)
    np.testing.assert_array_equal(out, want)
    dlse = np.cos(lse)
    for wrt in (MATRICES, ("sinks", "k")):
        got = pullback(do, dlse, wrt)
        grads = attention_backward(do, q, k, v, out, lse, dlse=dlse, wrt=wrt, **options)
        assert got._fields == wrt
        for one, other in zip(got, grads, strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(pullback(do).q, pullback(do, None, ("q",)).q)
    assert np.abs(pullback(do).q - pullback(do, dlse).q).max() > 1e-3


def test_signatures_have_the_options_of_attention():
    def options(function):
        found = inspect.signature(function).parameters
        return {name: x.default for name, x in found.items() if x.kind is x.KEYWORD_ONLY}

    shared = options(attention)
    del shared["out"], shared["return_lse"]
    assert options(attention_vjp) == shared
    own = options(attention_backward)
    assert {name: own.pop(name) for name in shared} == shared
    assert own == {
        "dlse": None,
        "wrt": MATRICES,
        "out": None,
        "workspace": None,
        "deterministic": True,
    }
    names = ("attention_backward", "attention_vjp", "workspace_size")
    assert set(names) <= set(cf.__all__)


def test_numpy_arrays_need_no_workspace():
    (_, q, k, v, *_), options = call()
    assert workspace_size(q, k, v, wrt=("bias", "scale"), causal=True, **options) == 0


def test_the_loss_falls_along_the_gradient():
    """A user's loop: every array learns."""
    rng = np.random.default_rng(5)
    q, k, v, target = (rng.standard_normal((2, 6, 3)) for _ in range(4))
    losses = []
    for _ in range(40):
        out, pullback = attention_vjp(q, k, v)
        losses.append(float(((out - target) ** 2).sum()))
        grads = pullback(2 * (out - target))
        q, k, v = (x - 0.1 * g for x, g in zip((q, k, v), grads, strict=True))
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] / 3
