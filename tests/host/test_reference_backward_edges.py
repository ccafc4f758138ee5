"""The oracle's gradients where they can be written down: one key, hidden keys, limits, copies."""

from __future__ import annotations

import numpy as np
import pytest

from by_hand import draw
from cupy_flash import reference
from cupy_flash.reference import attention_backward
from differences import gradients


def test_one_key():
    q, k, v, do = draw(0, (3, 2), (1, 2), (1, 4), (3, 4), dtype="float64")
    got = attention_backward(do, q, k, v)
    assert got._fields == ("q", "k", "v")
    assert (got.q == 0).all()
    assert (got.k == 0).all()
    np.testing.assert_allclose(got.v.astype(float), do.sum(axis=0, keepdims=True), rtol=1e-15)
    dlse = np.array([1.0, -2.0, 0.5])
    got = attention_backward(0 * do, q, k, v, dlse=dlse, scale=3.0)
    np.testing.assert_allclose(got.q.astype(float), 3 * dlse[:, None] * k, rtol=1e-15)
    np.testing.assert_allclose(got.k.astype(float), 3 * dlse[None] @ q, rtol=1e-15)


@pytest.mark.parametrize("hidden", ["mask", "bias", "k_lengths", "q_lengths"])
def test_rows_without_keys_give_lse_alone_to_the_sink_whatever_is_there(hidden):
    nan = np.full((3, 2), np.nan)
    dlse = np.array([1.0, 2.0, 4.0])
    options = {
        "mask": {"mask": np.array(False)},
        "bias": {"bias": np.array(-np.inf)},
        "k_lengths": {"k_lengths": np.array(0)},
        "q_lengths": {"q_lengths": np.array(0)},
    }[hidden]
    options |= {"sinks": np.array(2.0), "alibi_slopes": np.array(0.5), "softcap": 1.0}
    names = ("sinks", "scale", "v", "q", "alibi_slopes", "k")
    names += ("bias",) if hidden == "bias" else ()
    assert (reference.attention(nan, nan, nan, **options).lse == 2.0).all()
    got = attention_backward(nan, nan, nan, nan, dlse=dlse, wrt=names, **options)
    assert got._fields == names
    for name, gradient in zip(names, got, strict=True):
        assert (gradient == (7 if name == "sinks" else 0)).all()
    options["sinks"] = np.array(-np.inf)
    for gradient in attention_backward(nan, nan, nan, nan, dlse=nan[:, 0], wrt=names, **options):
        assert (gradient == 0).all()


def test_a_sink_beside_one_key():
    """Two equal scores, one without a value: P = 1/2, out = v/2, lse = log 2."""
    zero, v = np.zeros((1, 1)), np.array([[3.0]])
    got = attention_backward(
        np.array([[5.0]]),
        zero,
        zero,
        v,
        dlse=np.array([7.0]),
        sinks=np.array(0.0),
        bias=zero,
        wrt=("v", "sinks", "bias"),
    )
    assert (got.v, got.sinks, got.bias) == (2.5, 0.5 * 7 - 0.25 * 15, 0.5 * 7 + 0.25 * 15)
    for dtype in ("float32", "float64"):
        none = attention_backward(
            np.full((1, 1), np.nan),
            *(x.astype(dtype) for x in (zero, zero, v)),
            sinks=np.array(-np.inf),
            wrt=("sinks",),
        )
        assert none.sinks == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_a_row_does_not_see_never_reaches_it(poison):
    q, k, v, do = draw(3, (4, 3), (5, 3), (5, 2), (4, 2))
    # Key 3 is seen by row 2 alone, that doesn't see key 0; key 4 by none; row 3 sees 0 and 1.
    mask = np.ones((4, 5), bool)
    mask[:, 3:] = mask[3, 2] = mask[2, 0] = False
    mask[2, 3] = True
    bias = np.random.default_rng(0).normal(0, 1, (4, 5)).astype(np.float32)
    options = {"mask": mask, "softcap": 2.0, "sinks": np.array(0.5), "wrt": ("q", "k", "v", "bias")}
    clean = attention_backward(do, q, k, v, bias=bias, **options)
    k[4] = v[4] = bias[~mask] = poison
    same = attention_backward(do, q, k, v, bias=bias, **options)
    for one, other in zip(clean, same, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (clean.bias[~mask] == 0).all()
    for spoiled in ({"k": k.copy(), "v": v}, {"k": k, "v": v.copy()}):
        spoiled["k" if spoiled["v"] is v else "v"][3] = poison
        got = attention_backward(do, q, *spoiled.values(), bias=bias, **options)
        others = [0, 1, 3]
        np.testing.assert_allclose(got.q[others], clean.q[others], rtol=1e-12)
        np.testing.assert_array_equal(got.bias[others], clean.bias[others])
        assert (got.bias[~mask] == 0).all()
        assert np.isnan(got.q[2]).all()
    # Row 3 doesn't see key 2.
    do[3] = q[3] = poison
    got = attention_backward(do, q, k, v, bias=bias, **options)
    np.testing.assert_allclose(got.v[2:], clean.v[2:], rtol=1e-12)
    np.testing.assert_allclose(got.k[2:], clean.k[2:], rtol=1e-12)
    assert np.isnan(got.k[:2]).all()


def test_a_bias_of_minus_infinity_is_a_mask():
    q, k, v, do = draw(4, (2, 3, 3), (2, 5, 3), (2, 5, 2), (2, 3, 2), dtype="float64")
    mask = np.random.default_rng(1).random((2, 3, 5)) < 0.6
    bias = np.where(mask, 0.25, -np.inf)
    hidden = attention_backward(do, q, k, v, bias=bias, wrt=("q", "k", "v", "bias"))
    masked = attention_backward(do, q, k, v, mask=mask)
    for one, other in zip(hidden, masked, strict=False):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-14, atol=1e-16)
    assert (hidden.bias[~mask] == 0).all()
    assert (hidden.bias[mask] != 0).any()


def test_softcaps_at_the_ends():
    q, k, v, do = draw(5, (3, 4), (5, 4), (5, 2), (3, 2), dtype="float64")
    plain = attention_backward(do, q, k, v)
    for one, other in zip(attention_backward(do, q, k, v, softcap=1e9), plain, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-13)
    # Every score is the cap, up to its sign and 1e-300: no gradient passes, and weights are equal.
    got = attention_backward(do, q, k, v, softcap=1e-300, wrt=("q", "k", "scale", "v"))
    assert all((x == 0).all() for x in got[:3])
    mean = np.broadcast_to(do.mean(axis=0) * 3 / 5, (5, 2))
    np.testing.assert_allclose(got.v.astype(float), mean, rtol=1e-14)


def test_a_scale_of_zero():
    q, k, v, do = draw(6, (3, 4), (5, 4), (5, 2), (3, 2), dtype="float64")
    got = attention_backward(do, q, k, v, scale=0.0, wrt=("q", "k", "v", "scale"))
    assert (got.q == 0).all()
    assert (got.k == 0).all()
    np.testing.assert_allclose(got.v.astype(float), np.tile(do.sum(axis=0) / 5, (5, 1)), rtol=1e-14)
    # With equal weights the derivative of out along scale is a covariance over the keys.
    moved = (q @ k.T) @ (v - v.mean(axis=0)) / 5
    np.testing.assert_allclose(float(got.scale), (do * moved).sum(), rtol=1e-13)


def test_copies_share_the_sum_of_their_gradients():
    q, k, v, do = draw(7, (2, 6, 3, 2), (2, 4, 2), (1, 2, 4, 3), (2, 6, 3, 3), dtype="float64")
    bias, sinks = (np.random.default_rng(2).normal(0, 1, shape) for shape in ((3, 1), (6,)))
    wrt = ("q", "k", "v", "bias", "sinks")
    whole = {
        "q": q,
        "k": np.repeat(np.tile(k, (2, 1, 1, 1)), 3, axis=1),
        "v": np.repeat(np.tile(v, (2, 1, 1, 1)), 3, axis=1),
        "bias": np.tile(bias, (2, 6, 1, 4)),
        "sinks": np.tile(sinks, (2, 1)),
    }
    got = gradients(do, {"q": q, "k": k, "v": v, "bias": bias, "sinks": sinks}, wrt=wrt)
    each = gradients(do, whole, wrt=wrt)
    groups = each.k.reshape(2, 2, 3, 4, 2), each.v.reshape(2, 2, 3, 4, 3)
    wanted = (
        each.q,
        groups[0].sum(axis=(0, 2)),
        groups[1].sum(axis=(0, 2))[None],
        each.bias.sum(axis=(0, 1, 3))[:, None],
        each.sinks.sum(axis=0),
    )
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=1e-13)
