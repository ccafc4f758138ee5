"""The NumPy path on random problems of every kind, against the oracle and its bounds."""

from __future__ import annotations

import doctest
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_flash import accuracy, api, attention, blocked
from cupy_flash.blocked_scores import Scores
from drawn import Coverage
from layouts import OUT_LAYOUTS, strided
from problems import DTYPES, VALUES, Case, result_dtype
from strategies import cases, own_draws
from tolerance import check

EXAMPLES = 250
SENTINEL = 7.0
BLOCK_M, BLOCK_N = blocked.BLOCK_M, blocked.BLOCK_N


def out_shape(case):
    heads = () if case.heads is None else (max(case.heads, case.kv_heads),)
    return (*case.batch, *heads, case.m, case.p)


def run(arrays):
    """Compute a case and check that it wrote its results and nothing else."""
    case = arrays.case
    dtype = result_dtype(case)
    shape = out_shape(case)
    accumulate = np.dtype(accuracy.accumulation(dtype))
    targets = {}
    if case.out_layout is not None:
        targets["out"] = strided(shape, DTYPES[dtype], case.out_layout, SENTINEL)
        targets["lse"] = strided(shape[:-1], accumulate, "contiguous", SENTINEL)
    inputs = arrays.inputs().values()
    before = [x.buffer.tobytes() for x in inputs]
    given_out = tuple(target.numpy() for target in targets.values()) or None
    out, lse = attention(
        *(x.numpy() for x in inputs), **arrays.options(), return_lse=True, out=given_out
    )
    assert [x.buffer.tobytes() for x in inputs] == before, "an input changed"
    if given_out is not None:
        assert out is given_out[0]
        assert lse is given_out[1]
    for name, target in targets.items():
        sentinel = np.array(SENTINEL, target.buffer.dtype).tobytes()
        beside = target.outside().tobytes()
        assert beside == sentinel * (len(beside) // len(sentinel)), f"beside {name} was written"
    return out, lse


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_problems_are_within_their_bounds(dtype, record_property):
    coverage = Coverage()
    ratios = []

    @own_draws(dtype)
    @settings(max_examples=EXAMPLES)
    @given(cases(dtype, rows=70, dims=(32,)))
    def one(case):
        coverage.add(case)
        arrays = case.build()
        ratios.append(check(arrays, *run(arrays)))

    one()
    record_property("drawn", coverage.report(f"worst error / bound {max(ratios):.3f}"))
    coverage.check(EXAMPLES * 9 // 10, out=("None", *OUT_LAYOUTS), dtype=(dtype,))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize(
    ("m", "n"),
    [
        *((BLOCK_M - 1, BLOCK_N), (BLOCK_M, BLOCK_N), (BLOCK_M + 1, BLOCK_N + 1)),
        *((1, BLOCK_N + 1), (2 * BLOCK_M, BLOCK_N - 1), (BLOCK_M + 1, 2 * BLOCK_N + 3)),
        *((3 * BLOCK_M + 2, 2), (BLOCK_M, 1), (2, 3 * BLOCK_N)),
    ],
)
@pytest.mark.parametrize("offset", [None, 0, -BLOCK_M, BLOCK_N - 1])
def test_sizes_around_the_blocks(dtype, m, n, offset):
    case = Case((), None, None, m, n, 5, 3, (dtype,) * 3, causal=True, offset=offset, seed=m + n)
    arrays = case.build()
    check(arrays, *run(arrays))


@pytest.mark.parametrize("offset", [None, 0, -BLOCK_M, BLOCK_N - 1])
@pytest.mark.parametrize(
    "window",
    [(0, 0), (BLOCK_N, 0), (BLOCK_N - 1, 1), (None, 3), (2 * BLOCK_N, None), (1, BLOCK_N)],
)
def test_windows_around_the_blocks(window, offset):
    m, n = 2 * BLOCK_M + 1, 2 * BLOCK_N + 3
    options = {"mask": "keys", "bias": "keys", "sinks": "one", "poison": True}
    case = Case(
        (), None, None, m, n, 5, 3, ("float32",) * 3, window=window, offset=offset, **options
    )
    arrays = case.build()
    check(arrays, *run(arrays))


def test_blocks_that_a_window_does_not_reach_are_not_computed(monkeypatch):
    computed = []
    scores_of = Scores.of
    monkeypatch.setattr(
        Scores,
        "of",
        lambda self, products, rows, keys: (
            computed.append((rows.start, keys.start)) or scores_of(self, products, rows, keys)
        ),
    )
    x = np.ones((8 * BLOCK_N, 2), np.float32)
    attention(x, x, x, window=(BLOCK_N, 0))
    blocks = len(x) // BLOCK_M
    assert len(set(computed)) == len(computed) <= 3 * blocks
    computed.clear()
    attention(x, x, x, window=(0, 0), offset=10**9)
    assert not computed


@pytest.mark.parametrize("values", VALUES)
def test_every_kind_of_values_across_several_blocks(values):
    dtypes = ("bfloat16", "float16", "float32")
    for dtype in dtypes if values != "subnormal" else (*dtypes, "float64"):
        case = Case((), None, None, 40, 2 * BLOCK_N + 9, 16, 8, (dtype,) * 3, values=values, seed=3)
        arrays = case.build()
        check(arrays, *run(arrays))


def test_memory_is_linear():
    n = 20_000
    q, k, v = (np.ones((n, 4), np.float32) for _ in range(3))
    options = {
        "mask": np.ones(n, bool),
        "bias": np.broadcast_to(np.ones(n, np.float16), (600, n)),
        "alibi_slopes": np.array(0.1),
        "softcap": 3.0,
        "window": (n, 0),
    }
    tracemalloc.start()
    try:
        attention(q[:600], k, v, return_lse=True)
        across = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        attention(q, k[:600], v[:600], return_lse=True)
        down = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        attention(q[:600], k, v, **options)
        with_options = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Some blocks of scores in float32 and their masks, the results, and no (600, n) matrix.
    allowed = 10 * 4 * BLOCK_M * BLOCK_N + 8 * 4 * n * 4
    assert across < allowed < 4 * 600 * n
    assert down < allowed
    # Distances are int64.
    assert with_options < 2 * allowed < 4 * 600 * n


def test_the_docstring_of_attention_runs():
    results = doctest.testmod(api)
    assert results.attempted >= 4
    assert results.failed == 0


@given(st.sampled_from(tuple(DTYPES)), st.integers(1, 40), st.integers(1, 20), st.booleans())
def test_one_array_may_be_q_k_and_v(dtype, rows, columns, causal):
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, columns)).astype(DTYPES[dtype])
    before = x.copy()
    same = attention(x, x, x, causal=causal)
    np.testing.assert_array_equal(same, attention(x.copy(), x.copy(), x.copy(), causal=causal))
    np.testing.assert_array_equal(x, before)


@given(st.integers(1, 30), st.integers(0, 12), st.sampled_from(("nan", "inf", "-inf")))
def test_what_no_row_sees_never_matters(n, hidden, poison):
    rng = np.random.default_rng(n)
    q, k, v = (rng.standard_normal((2, rows, 4)) for rows in (5, n + hidden, n + hidden))
    k_lengths = np.array([n, max(n - 1, 0)])
    clean = attention(q, k, v, k_lengths=k_lengths, return_lse=True)
    for entry, length in enumerate(k_lengths):
        k[entry, length:] = v[entry, length:] = float(poison)
    spoiled = attention(q, k, v, k_lengths=k_lengths, return_lse=True)
    for got, want in zip(spoiled, clean, strict=True):
        np.testing.assert_array_equal(got, want)
    # Causal, with row i at key i: no row sees beyond the fifth key.
    far = attention(q[0], k[0, :n], v[0, :n], causal=True, offset=0)
    k[0, 5:n] = v[0, 5:n] = float(poison)
    np.testing.assert_array_equal(attention(q[0], k[0, :n], v[0, :n], causal=True, offset=0), far)


def test_padded_rows_of_q_are_not_read():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 6, 4)) for _ in range(3))
    q[0, 2:] = q[1, 5:] = np.nan
    out, lse = attention(q, k, v, q_lengths=np.array([2, 5]), return_lse=True)
    for entry, rows in enumerate((2, 5)):
        assert np.isfinite(out[entry, :rows]).all()
        assert (out[entry, rows:] == 0).all()
        assert (lse[entry, rows:] == -np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_batch(dtype):
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((3, 4, n, 8)).astype(DTYPES[dtype]) for n in (9, 700, 700))
    whole = attention(q, k, v, causal=True)
    np.testing.assert_array_equal(
        attention(q[1:2, 2:3], k[1:2, 2:3], v[1:2, 2:3], causal=True)[0, 0], whole[1, 2]
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_near_the_end_of_the_range_stay_finite(dtype):
    top = 2.0**60 if dtype in ("bfloat16", "float32") else 2.0**7
    largest = float(np.finfo(np.float16).max) if dtype == "float16" else 3e38
    q = np.full((3, 16), top).astype(DTYPES[dtype])
    k = np.stack([np.full(16, sign * top) for sign in (1, -1, 0)]).astype(DTYPES[dtype])
    v = np.full((3, 2), largest).astype(DTYPES[dtype])
    out, lse = attention(q, k, v, return_lse=True)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(lse, 16 * top**2 / 4, rtol=1e-6)
    assert (out == v[0]).all()


def test_scores_that_rounding_moves_by_more_than_one_are_within_the_bound():
    # Scores near 2e6 in float32: their errors exceed 1, so exp(error) - 1 is far above the error.
    case = Case(
        (1,), 6, 2, 70, 69, 24, 6, ("bfloat16",) * 3, values="level", scale=2.0, squeeze=True
    )
    arrays = case.build()
    check(arrays, *run(arrays))


@pytest.mark.parametrize("exponent", [100, 126, 127, 130, 200])
def test_any_scale_whose_scores_are_in_range(exponent):
    # Every score is 2**120 or half of it.
    q = np.full((1, 1), 2.0 ** (120 - exponent) if exponent < 200 else 2.0**-40, np.float32)
    k = np.array([[1.0], [0.5]], np.float32) * (1 if exponent < 200 else np.float32(2.0**-40))
    v = np.array([[3.0], [5.0]], np.float32)
    out, lse = attention(q, k, v, scale=2.0**exponent, return_lse=True)
    assert (out[0, 0], lse[0]) == (3.0, 2.0**120)
