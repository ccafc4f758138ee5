"""The oracle against loops over Python numbers that anybody can check by reading."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from by_hand import by_hand, dot, draw
from cupy_flash import reference
from problems import DTYPES
from strategies import cases


@given(
    st.sampled_from(tuple(DTYPES)),
    st.tuples(*[st.integers(0, 5)] * 4),
    st.booleans(),
    st.integers(-6, 6),
    st.sampled_from((0.5, -1.25, 0.0, 3.0)),
)
def test_one_head_against_loops(dtype, sizes, causal, offset, scale):
    m, n, d, p = sizes
    q, k, v = draw(m + n, (m, d), (n, d), (n, p), dtype=dtype)
    got = reference.attention(q, k, v, scale=scale, causal=causal, offset=offset)
    out, lse = by_hand(q, k, v, scale=scale, causal=causal, offset=offset)
    np.testing.assert_allclose(got.out.astype(float), out, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(got.lse.astype(float), lse, rtol=1e-13, atol=1e-14)
    seen = [max(0, min(n, i + offset + 1)) if causal else n for i in range(m)]
    assert got.visible.tolist() == seen


# Of each option, by name, a value for one head of m rows and n keys; None leaves it out.
OPTION_VALUES = {
    "window": lambda rng, m, n: tuple(map(OPTIONAL.__getitem__, rng.integers(0, 5, 2))),
    "mask": lambda rng, m, n: rng.random((m, n)) < 0.6,
    "bias": lambda rng, m, n: np.where(rng.random((m, n)) < 0.2, -np.inf, rng.normal(0, 3, (m, n))),
    "softcap": lambda rng, m, n: float(rng.choice((0.001, 1.0, 15.0, 1e6))),
    "slope": lambda rng, m, n: float(rng.choice((0.0, 0.25, 2.0, -1.5))),
    "sink": lambda rng, m, n: float(rng.choice((-np.inf, -1.0, 3.0, 100.0))),
}
OPTIONAL = (None, 0, 1, 2, 5)


@given(
    st.sets(st.sampled_from(tuple(OPTION_VALUES)), min_size=1),
    st.sampled_from(("float32", "float64")),
    st.tuples(*[st.integers(0, 5)] * 2),
    st.booleans(),
    st.integers(-4, 4),
    st.integers(0, 1 << 16),
)
def test_every_option_against_loops(names, dtype, sizes, causal, offset, seed):
    m, n = sizes
    rng = np.random.default_rng(seed)
    q, k, v = draw(seed, (m, 3), (n, 3), (n, 2), dtype=dtype)
    own = {name: OPTION_VALUES[name](rng, m, n) for name in sorted(names)}
    out, lse = by_hand(q, k, v, scale=2.0, causal=causal, offset=offset, **own)
    arrays = {"slope": "alibi_slopes", "sink": "sinks"}
    options = {
        arrays.get(name, name): np.array(value) if name in arrays else value
        for name, value in own.items()
    }
    got = reference.attention(q, k, v, scale=2.0, causal=causal, offset=offset, **options)
    np.testing.assert_allclose(got.out.astype(float), out, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(got.lse.astype(float), lse, rtol=1e-12, atol=1e-13)
    assert (got.out[got.visible == 0] == 0).all()


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_the_default_scale(d):
    q, k, v = draw(d, (3, d), (4, d), (4, 2), dtype="float64")
    out, lse = by_hand(q, k, v, scale=Fraction(1 / math.sqrt(d)))
    got = reference.attention(q, k, v)
    np.testing.assert_allclose(got.out.astype(float), out, rtol=1e-13)
    np.testing.assert_allclose(got.lse.astype(float), lse, rtol=1e-13)


@given(
    st.sampled_from((None, "q", "k", "both")),
    st.booleans(),
    st.sampled_from((None, 0, -1, 2)),
    st.sampled_from(((4, 2), (2, 1), (1, 3), (3, 3))),
    st.integers(0, 1 << 16),
)
def test_batches_heads_and_lengths_against_loops(lengths, causal, offset, heads, seed):
    q_heads, kv_heads = heads
    q, k, v = draw(seed, (2, 2, q_heads, 3, 2), (2, kv_heads, 4, 2), (1, 1, kv_heads, 4, 3))
    rng = np.random.default_rng(seed)
    q_lengths = rng.integers(0, 4, (2, 2)) if lengths in ("q", "both") else None
    k_lengths = rng.integers(0, 5, (2,)) if lengths in ("k", "both") else None
    got = reference.attention(
        q, k, v, causal=causal, offset=offset, q_lengths=q_lengths, k_lengths=k_lengths
    )
    total = max(heads)
    assert got.out.shape == (2, 2, total, 3, 3)
    for a, b, h in itertools.product(range(2), range(2), range(total)):
        rows = 3 if q_lengths is None else int(q_lengths[a, b])
        keys = 4 if k_lengths is None else int(k_lengths[b])
        out, lse = by_hand(
            q[a, b, h if q_heads > 1 else 0],
            k[b, h * kv_heads // total],
            v[0, 0, h * kv_heads // total],
            scale=Fraction(1 / math.sqrt(2)),
            causal=causal,
            offset=keys - rows if offset is None else offset,
            rows=rows,
            keys=keys,
        )
        np.testing.assert_allclose(got.out[a, b, h], out, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(got.lse[a, b, h], lse, rtol=1e-13, atol=1e-14)


@given(
    st.tuples(*[st.sampled_from((1, 2))] * 2),
    st.sampled_from(((), (1,), (4,), (2, 1), (2, 4), (1, 4))),
    st.sampled_from(((), (3,), (2, 3), (4, 1, 3), (2, 1, 1, 3), (2, 4, 2, 1), (2, 4, 2, 3))),
    st.booleans(),
)
def test_options_broadcast_over_batch_and_heads(batch_and_group, leading, pairs, as_mask):
    batch, group = batch_and_group
    if leading[:-1] == (2,) or pairs[:-3] == (2,):
        batch = 2
    q, k, v = draw(7, (batch, 4, 2, 3), (batch, 4 // group, 3, 3), (batch, 4 // group, 3, 2))
    rng = np.random.default_rng(len(pairs))
    slopes, sinks = rng.normal(0, 1, leading), rng.normal(0, 1, leading)
    added = rng.random(pairs) < 0.5 if as_mask else rng.normal(0, 1, pairs)
    name = "mask" if as_mask else "bias"
    got = reference.attention(
        q, k, v, scale=1.0, offset=1, alibi_slopes=slopes, sinks=sinks, **{name: added}
    )
    for b, h in itertools.product(range(batch), range(4)):
        out, lse = by_hand(
            q[b, h],
            k[b, h // group],
            v[b, h // group],
            scale=1.0,
            offset=1,
            slope=np.broadcast_to(slopes, (batch, 4))[b, h],
            sink=float(np.broadcast_to(sinks, (batch, 4))[b, h]),
            **{name: np.broadcast_to(added, (batch, 4, 2, 3))[b, h]},
        )
        np.testing.assert_allclose(got.out[b, h], out, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(got.lse[b, h], lse, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("dtypes", "exact"),
    [
        (("float16",) * 3, np.float64),
        (("float32", "bfloat16", "float32"), np.float64),
        (("float64",) * 3, np.longdouble),
        (("float32", "float32", "float64"), np.longdouble),
    ],
)
def test_precision_is_above_that_of_the_inputs(dtypes, exact):
    q, k, v = (draw(0, (3, 4), dtype=dtype)[0] for dtype in dtypes)
    got = reference.attention(q, k, v)
    assert got.out.dtype == got.lse.dtype == exact


@pytest.mark.skipif(
    np.finfo(np.longdouble).nmant <= 52, reason="this machine's long double is a double"
)
def test_float64_inputs_are_exact_beyond_float64():
    q, k, v = draw(2, (4, 30), (50, 30), (50, 3), dtype="float64")
    got = reference.attention(q, k, v, scale=0.25)
    scores = [[Fraction(1, 4) * dot(row, key) for key in k] for row in q]
    for i, row in enumerate(scores):
        # e^x of a rational by its series, far below the rounding of long double.
        top = max(row)
        weights = [exponential(s - top) for s in row]
        total = sum(weights)
        for x in range(3):
            want = sum(w * Fraction(float(v[j, x])) for j, w in enumerate(weights)) / total
            error = Fraction(*got.out[i, x].as_integer_ratio()) - want
            assert abs(error) < Fraction(1, 2**60), float(error)


def exponential(x):
    term = total = Fraction(1)
    halvings = 8
    x = Fraction(round(x * 2**120), 2**120) / 2**halvings
    for k in range(1, 30):
        term = Fraction(round(term * x / k * 2**140), 2**140)
        total += term
    for _ in range(halvings):
        total = Fraction(round(total * total * 2**140), 2**140)
    return total


@given(cases("float32", rows=9, dims=(5,), mixed=False))
def test_equals_the_formula_on_whole_arrays(case):
    arrays = replace(case, poison=False).build()
    q, k, v = (x.numpy().astype(np.float64) for x in arrays.inputs().values())
    got = reference.attention(q, k, v, scale=0.5)
    if (case.heads or 1) > (case.kv_heads or 1) > 1:
        k, v = (np.repeat(x, case.heads // case.kv_heads, axis=-3) for x in (k, v))
    if case.n == 0:
        assert (got.out == 0).all()
        assert (got.lse == -np.inf).all()
        return
    scores = 0.5 * q @ k.swapaxes(-1, -2)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    size = weights / total @ np.abs(v)
    shape = np.broadcast_shapes(got.out.shape, size.shape)
    assert got.out.shape == shape
    allowed = (
        1e-12 * (size + 1e-300) * (1 + np.abs(scores).max(initial=1, where=np.isfinite(scores)))
    )
    assert (np.abs(got.out - weights / total @ v) <= allowed).all()
    np.testing.assert_allclose(
        (top + np.log(total))[..., 0].astype(float), got.lse.astype(float), rtol=1e-12
    )


def test_rows_and_keys_that_nobody_sees_never_matter():
    q, k, v = draw(3, (4, 3), (5, 3), (5, 2), dtype="float64")
    clean = reference.attention(q, k, v, causal=True, k_lengths=np.array(3), q_lengths=np.array(2))
    k[3:] = v[3:] = q[2:] = np.nan
    spoiled = reference.attention(
        q, k, v, causal=True, k_lengths=np.array(3), q_lengths=np.array(2)
    )
    for field in ("out", "lse", "out_errors", "lse_errors"):
        np.testing.assert_array_equal(getattr(spoiled, field), getattr(clean, field))
    assert np.isfinite(clean.out).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_pairs_hidden_by_mask_or_bias_never_matter(poison):
    q, k, v = draw(6, (4, 3), (6, 3), (6, 2))
    bias = np.random.default_rng(0).normal(0, 1, (4, 6))
    # Keys 2 and 4 are hidden from all, one by each; row 1 sees nothing; one pair more.
    mask = np.ones((4, 6), bool)
    mask[:, 2] = mask[1] = mask[3, 0] = False
    bias[:, 4] = -np.inf
    options = {"mask": mask, "alibi_slopes": np.array(0.5), "sinks": np.array(2.5)}
    clean = reference.attention(q, k, v, bias=bias, **options)
    k[[2, 4]] = v[[2, 4]] = q[1] = bias[~mask] = poison
    spoiled = reference.attention(q, k, v, bias=bias, **options)
    for field in ("out", "lse", "out_errors", "lse_errors", "visible"):
        np.testing.assert_array_equal(getattr(spoiled, field), getattr(clean, field))
    assert np.isfinite(clean.out).all()
    assert clean.visible.tolist() == [4, 0, 4, 3]
    assert (clean.out[1] == 0).all()
    assert clean.lse[1] == 2.5


def test_padded_rows_have_the_lse_of_their_sink():
    q, k, v = draw(8, (2, 3, 2), (2, 4, 2), (2, 4, 2))
    got = reference.attention(
        q, k, v, sinks=np.array([0.5, -np.inf]), q_lengths=np.array([2, 1]), k_lengths=np.array(0)
    )
    assert got.lse.tolist() == [[0.5] * 3, [-np.inf] * 3]
    assert (got.out == 0).all()


def test_a_nan_value_reaches_only_rows_that_see_it():
    q, k, v = draw(4, (3, 2), (3, 2), (3, 2))
    v[2] = np.nan
    out = reference.attention(q, k, v, causal=True).out
    assert np.isfinite(out[:2]).all()
    assert np.isnan(out[2]).all()


@pytest.mark.parametrize("names", [(), ("softcap",), ("bias",), ("alibi",), ("sink",), "all"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_unfused_is_the_formula_with_every_step_rounded(dtype, names):
    q, k, v = (x.astype(dtype) for x in draw(5, (6, 4), (7, 4), (7, 3), dtype="float64"))
    seen = reference.visibility(6, 7, causal=True, offset=-2)
    bias = np.random.default_rng(5).normal(0, 1, (6, 7)).astype(dtype)
    distance = np.abs(np.arange(6)[:, None] - 2 - np.arange(7))
    given = {"softcap": 0.75, "bias": bias, "alibi": 0.5 * distance, "sink": 0.25}
    given = {name: x for name, x in given.items() if names == "all" or name in names}
    got = reference.unfused(q, k, v, seen, 0.5, dtype, **given)
    options = {"alibi": "alibi_slopes", "sink": "sinks"}
    given = {options.get(name, name): x for name, x in given.items()}
    given |= {
        name: np.array(x) for name, x in (("alibi_slopes", 0.5), ("sinks", 0.25)) if name in given
    }
    exact = reference.attention(q, k, v, scale=0.5, causal=True, offset=-2, **given).out
    assert got.dtype == dtype
    assert (got[:2] == 0).all()
    error = np.abs(got - exact).max()
    assert 0 < error < 40 * np.finfo(dtype).eps


def test_visibility_draws_the_table_of_the_docstring():
    def text(m, n, **options):
        table = reference.visibility(m, n, causal=True, **options)
        return ["".join(".x"[int(cell)] for cell in row) for row in table]

    assert text(2, 5, offset=3) == ["xxxx.", "xxxxx"]
    assert text(2, 5, offset=0) == ["x....", "xx..."]
    assert text(5, 2, offset=-3) == ["..", "..", "..", "x.", "xx"]
    assert text(3, 4, offset=1, rows=2, keys=2) == ["xx..", "xx..", "...."]
    assert text(3, 4, offset=1, window=(1, 0)) == ["xx..", ".xx.", "..xx"]
    assert text(3, 4, offset=1, window=(0, None)) == [".x..", "..x.", "...x"]
    hidden = np.array([True, False, True, True])
    assert text(2, 4, offset=1, mask=hidden) == ["x...", "x.x."]
    assert text(2, 4, offset=1, bias=np.array([[0.0], [-np.inf]])) == ["xx..", "...."]
