"""The NumPy path's gradients on random problems of every kind, against the oracle."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings

from backward_calls import compare, relative_errors
from cover import cover
from cupy_flash import attention, attention_backward, blocked
from cupy_flash.blocked_scores import Scores
from differences import COMBINED, call_of, combined, excess, names_of, of_results
from drawn import Coverage
from problems import DTYPES, VALUES, Case
from strategies import cases, own_draws

EXAMPLES = 250
BLOCK_M, BLOCK_N = blocked.BLOCK_M, blocked.BLOCK_N
MATRICES = ("q", "k", "v")


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_problems_are_within_their_bounds(dtype, record_property):
    coverage = Coverage()
    ratios = []

    @own_draws(f"backward {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(cases(dtype, rows=50, dims=(24,)))
    def one(case):
        coverage.add(case)
        ratios.append(compare(case))

    one()
    record_property("drawn", coverage.report(f"worst error / bound {max(ratios):.3f}"))
    coverage.check(EXAMPLES * 9 // 10, dtype=(dtype,))


# Of the largest element of the gradient: roundings of scores, of lse and of results.
RELATIVE = {"float64": 1e-12, "float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}


@pytest.mark.parametrize("dtype", RELATIVE)
def test_ordinary_values_have_small_errors(dtype):
    options = {"bias": "full", "bias_dtype": dtype, "softcap": 15.0, "alibi": "heads"}
    options |= {"alibi_dtype": dtype, "sinks": "heads", "sinks_dtype": dtype, "causal": True}
    for fields in ({}, options):
        case = Case((2,), 4, 2, 70, 90, 16, 8, (dtype,) * 3, seed=1, **fields)
        for name, error in relative_errors(case).items():
            assert error <= RELATIVE[dtype], (name, error)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize(
    ("m", "n"),
    [
        *((BLOCK_M - 1, BLOCK_N), (BLOCK_M, BLOCK_N), (BLOCK_M + 1, BLOCK_N + 1)),
        *((1, BLOCK_N + 1), (2 * BLOCK_M, BLOCK_N - 1), (3 * BLOCK_M + 2, 2), (2, 3 * BLOCK_N)),
    ],
)
@pytest.mark.parametrize("offset", [None, -BLOCK_M, BLOCK_N - 1])
def test_sizes_around_the_blocks(dtype, m, n, offset):
    options = {"bias": "rows", "bias_dtype": dtype, "sinks": "one", "alibi": "one"}
    case = Case(
        (), None, None, m, n, 5, 3, (dtype,) * 3, causal=True, offset=offset, seed=m + n, **options
    )
    compare(case)


@pytest.mark.parametrize("window", [(0, 0), (BLOCK_N, 0), (None, 3), (1, BLOCK_N)])
def test_windows_around_the_blocks(window):
    m, n = 2 * BLOCK_M + 1, 2 * BLOCK_N + 3
    options = {"mask": "keys", "bias": "keys", "sinks": "one", "poison": True}
    compare(Case((), None, None, m, n, 5, 3, ("float32",) * 3, window=window, **options))


@pytest.mark.parametrize("values", VALUES)
def test_every_kind_of_values_across_several_blocks(values):
    for dtype in DTYPES:
        compare(Case((), None, None, 40, BLOCK_N + 9, 16, 8, (dtype,) * 3, values=values, seed=3))


def results_of(call):
    """Return out and lse of a call by name; the scale as a number."""
    options = {name: x for name, x in call.items() if name not in MATRICES}
    return attention(*(call[name] for name in MATRICES), return_lse=True, **options)


def gradients_of(call, do, dlse, wrt):
    options = {name: x for name, x in call.items() if name not in MATRICES}
    matrices = [call[name] for name in MATRICES]
    return attention_backward(do, *matrices, *results_of(call), dlse=dlse, wrt=wrt, **options)


def test_pairs_of_options_by_differences_of_the_path_itself():
    moved = dict.fromkeys(("q", "k", "v", "bias", "sinks", "alibi_slopes", "scale"), 0)
    for seed, row in itertools.product(range(4), cover(COMBINED)):
        case = combined(row, seed)
        call = call_of(case)
        rng = np.random.default_rng(case.seed)
        do, dlse = of_results(rng, call)
        names = names_of(call)
        got = gradients_of(call, do, dlse, names)
        for name, gradient in zip(names, got, strict=True):
            assert np.isfinite(gradient).all(), case
            directions = rng.choice((-1.0, 0.5, 1.0), (2, *gradient.shape))
            off = excess(call, do, dlse, name, gradient, directions, results_of)
            assert off <= 0, (name, off, case)
            moved[name] += np.abs(gradient).max(initial=0) > 1e-3
    # The others have no visible key, or a sink beyond all scores.
    assert min(moved.values()) >= 10, moved


def test_blocks_that_a_window_does_not_reach_are_not_computed(monkeypatch):
    x = np.ones((8 * BLOCK_N, 2), np.float32)
    o, lse = attention(x, x, x, window=(BLOCK_N, 0), return_lse=True)
    computed = []
    scores_of = Scores.of
    monkeypatch.setattr(
        Scores,
        "of",
        lambda self, products, rows, keys: (
            computed.append((rows.start, keys.start)) or scores_of(self, products, rows, keys)
        ),
    )
    attention_backward(x, x, x, x, o, lse, window=(BLOCK_N, 0))
    assert len(set(computed)) == len(computed) <= 3 * len(x) // BLOCK_M


def test_memory_is_linear():
    def peak(n):
        x = np.ones((n, 4), np.float32)
        bias = np.zeros(n, np.float32)
        o, lse = attention(x, x, x, bias=bias, causal=True, return_lse=True)
        tracemalloc.start()
        try:
            wrt = ("q", "k", "v", "bias", "scale")
            attention_backward(x, x, x, x, o, lse, bias=bias, causal=True, wrt=wrt)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(2 * BLOCK_N), peak(8 * BLOCK_N)
    # Blocks of scores, and 80 numbers for each row.
    assert long - short < 6 * BLOCK_N * 80 * 4


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_without_keys_never_matters(dtype):
    case = Case((2,), 2, 1, 5, 6, 4, 3, (dtype,) * 3, lengths="both", poison=True, seed=2)
    arrays = case.build()
    arrays.q_lengths[...], arrays.k_lengths[...] = (3, 0), (4, 6)
    q, k, v = (np.where(np.isnan(x.numpy()), 0, x.numpy()) for x in arrays.inputs().values())
    options = {"q_lengths": arrays.q_lengths, "k_lengths": arrays.k_lengths}
    o, lse = attention(q, k, v, return_lse=True, **options)
    do = np.ones(o.shape, o.dtype)
    clean = attention_backward(do, q, k, v, o, lse, dlse=np.ones_like(lse), **options)
    q[0, :, 3:] = q[1] = k[0, :, 4:] = v[0, :, 4:] = k[1] = v[1] = np.nan
    do[0, :, 3:] = do[1] = np.nan
    dlse = np.where(np.isneginf(lse), np.nan, np.ones_like(lse))
    for one, other in zip(
        clean, attention_backward(do, q, k, v, o, lse, dlse=dlse, **options), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert (clean.q[1] == 0).all()
    assert (clean.q[0, :, :3] != 0).any()
    assert (clean.v[0, :, :4] != 0).any()


def test_a_weight_is_at_most_one_whatever_lse_was_rounded_to():
    """Scores of 2**60 leave an lse 2**36 off; the exponential of that would be infinite."""
    x = np.full((1, 1), 2.0**30, np.float32)
    v = np.ones((1, 1), np.float32)
    o, lse = attention(x, x, v, return_lse=True)
    below = np.nextafter(lse, np.float32(0))
    got = attention_backward(v, x, x, v, o, below)
    assert got.v == 1
    assert got.q == got.k == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_scores_that_overflow_to_minus_infinity_give_zeros(dtype):
    large = 1e200 if dtype == "float64" else 1e30
    q, k = (np.full((2, 3), x).astype(DTYPES[dtype]) for x in (-large, large))
    o, lse = attention(q, k, k, return_lse=True)
    assert np.isneginf(lse).all()
    wrt = (*MATRICES, "scale")
    for gradient in attention_backward(np.ones_like(o), q, k, k, o, lse, wrt=wrt):
        assert (gradient == 0).all()
