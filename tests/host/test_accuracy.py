"""The pass rules themselves: a right result is within them, and each known defect is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_flash import accuracy, products, reference
from problems import DTYPES, Case
from tolerance import check

SIZES = {"m": 64, "n": 400, "d": 40, "p": 24}
SIXTEEN = ("float16", "bfloat16")


def model(arrays, defect=None):
    """Compute a case as a kernel does, in its precision, with one thing wrong.

    Scores and sums in float32 (float64), the result rounded once.
    """
    case = arrays.case
    dtype = DTYPES[case.dtypes[0]]
    sums = np.dtype(accuracy.accumulation(dtype.name))
    q, k, v = (x.numpy().astype(sums) for x in arrays.inputs().values())
    scale = 1 / math.sqrt(case.d)
    if defect == "scale of the padded d":
        scale = 1 / math.sqrt(64)
    seen = reference.visibility(case.m, case.n, causal=case.causal, offset=case.n - case.m)
    if defect == "last key dropped":
        seen[:, -1] = False
    if defect == "diagonal off by one":
        seen = reference.visibility(case.m, case.n, causal=True, offset=case.n - case.m - 1)
    if defect == "padding key not masked":
        k, v = (np.vstack([x, np.zeros_like(x[:1])]) for x in (k, v))
        seen = np.hstack([seen, np.ones_like(seen[:, :1])])
    if defect == "last feature unused":
        q[:, -1] = 0
    S = np.where(seen, q @ k.T * sums.type(scale), -np.inf)
    if defect == "scores in 16 bit":
        S = S.astype(dtype).astype(sums)
    m = S.max(axis=1, keepdims=True)
    P = np.exp(S - m)
    l = P.sum(axis=1, keepdims=True)
    if defect == "sum of unrounded P, product of truncated P":
        P = truncated(P, DTYPES["bfloat16"])
    if defect == "sum in 16 bit":
        l = in_steps(P[:, :, None], dtype)
    O = in_steps(P[:, :, None] * v, dtype) if defect == "accumulator in 16 bit" else P @ v
    out = O / l
    if defect == "one element 1 % off":
        out[np.unravel_index(np.abs(out).argmax(), out.shape)] *= 1.01
    if defect == "last row not written":
        out[-1] = 0
    out = truncated(out, dtype) if defect == "truncation" else out.astype(dtype)
    lse = (m + np.log(l))[:, 0]
    if defect == "lse in base 2":
        lse = lse / sums.type(math.log(2))
    return out, lse


def in_steps(terms, dtype, keys=16):
    """Sum over axis 1, rounding to `dtype` after each tile of keys."""
    total = np.zeros_like(terms[:, 0])
    for key in range(0, terms.shape[1], keys):
        total = (total + terms[:, key : key + keys].sum(axis=1)).astype(dtype).astype(terms.dtype)
    return total


def truncated(x, dtype):
    """Round toward zero."""
    rounded = x.astype(dtype)
    too_large = np.abs(rounded.astype(x.dtype)) > np.abs(x)
    return np.where(too_large, np.nextafter(rounded, dtype.type(0)), rounded).astype(dtype)


def case_of(dtype, seed, **changes):
    return Case((), None, None, dtypes=(dtype,) * 3, seed=seed, **(SIZES | changes)).build()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", ["normal", "x30", "outlier", "equal", "integers"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_result_passes(dtype, values, causal):
    for seed in range(3):
        arrays = case_of(dtype, seed, values=values, causal=causal)
        worst = check(arrays, *model(arrays))
        assert worst <= 1


DEFECTS = {
    "last key dropped": tuple(DTYPES),
    "padding key not masked": tuple(DTYPES),
    "diagonal off by one": tuple(DTYPES),
    "scale of the padded d": tuple(DTYPES),
    "last feature unused": tuple(DTYPES),
    "last row not written": tuple(DTYPES),
    "lse in base 2": tuple(DTYPES),
    "one element 1 % off": tuple(DTYPES),
    "scores in 16 bit": SIXTEEN,
    "accumulator in 16 bit": SIXTEEN,
    "sum in 16 bit": SIXTEEN,
    "truncation": SIXTEEN,
    "sum of unrounded P, product of truncated P": ("bfloat16", "float32"),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("defect", "dtype"), [(defect, dtype) for defect, dtypes in DEFECTS.items() for dtype in dtypes]
)
def test_each_known_defect_is_caught(defect, dtype, seed):
    arrays = case_of(dtype, seed, causal=defect == "diagonal off by one")
    with pytest.raises(AssertionError, match=r"out: |lse: |rule: "):
        check(arrays, *model(arrays, defect))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bounds_are_the_formulas(dtype):
    q, k, v = (x.numpy() for x in case_of(dtype, 5).inputs().values())
    exact = reference.attention(q, k, v, scale=0.5)
    u = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24, "float64": 2**-53}[dtype]
    e = 2**-53 if dtype == "float64" else 2**-24
    A = exact.probabilities_abs_v
    n, d = SIZES["n"], SIZES["d"]
    want = u * abs(exact.out) + exact.out_errors
    want = want + 2 * e * (math.sqrt(n) + n / 64 + 8) * A
    got = accuracy.out_bound(exact, dtype, q, k, v, 0.5)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-6)
    S = (0.5 * np.abs(q.astype(float)) @ np.abs(k.astype(float)).T).max(axis=1)
    want = e * ((4 + 3 * math.sqrt(d)) * S + np.abs(exact.lse) + 64 + math.sqrt(n))
    got = accuracy.lse_bound(exact, dtype, q, k, 0.5)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-6)


E = 2.0**-24


@pytest.mark.parametrize(
    ("how", "lost"),
    [
        (products.SIX_BFLOAT16, E),
        (products.THREE_BFLOAT16, 2.0**-15),
    ],
    ids=lambda x: getattr(x, "how", ""),
)
def test_products_in_parts_are_allowed_what_the_formulas_say(how, lost):
    q, k, v = (x.numpy() for x in case_of("float32", 5).inputs().values())
    plain = reference.attention(q, k, v, scale=0.5)
    exact = reference.attention(q, k, v, scale=0.5, products=how)
    assert (exact.out == plain.out).all()
    A = exact.probabilities_abs_v
    more, before = (accuracy.out_bound(x, "float32", q, k, v, 0.5) for x in (exact, plain))
    want = exact.out_errors - plain.out_errors + (lost + 3 * 4 * E) * A
    np.testing.assert_allclose(more - before, want, rtol=1e-4)
    d = SIZES["d"]
    S = 0.5 * np.abs(q.astype(float)) @ np.abs(k.astype(float)).T
    more, before = (accuracy.lse_bound(x, "float32", q, k, 0.5) for x in (exact, plain))
    error = lost + 3 * math.ceil(d / 16) * E
    np.testing.assert_allclose(more - before, error * S.max(axis=1), rtol=1e-4)
    assert (exact.out_errors > plain.out_errors).all()


def split(x, parts, bits):
    """Return the parts of float32 numbers of so many bits, and what is left of them."""
    x, terms = x.astype(np.float64), []
    for _ in range(parts):
        significand, exponent = np.frexp(x)
        terms.append(np.ldexp(np.round(np.ldexp(significand, bits)), exponent - bits))
        x = x - terms[-1]
    return terms, x


def hard_factors():
    """Return float32 numbers of all bits and those just above powers of two, ones behind them."""
    rng = np.random.default_rng(0)
    few = 1 + np.arange(1 << 14) * 2.0**-23
    return np.concatenate([few, 1 + rng.integers(0, 1 << 23, 1 << 14) * 2.0**-23])


@pytest.mark.parametrize(
    ("parts", "bits", "dropped", "allowed"),
    [
        (3, 8, ((1, 2), (2, 1), (2, 2)), products.SIX_BFLOAT16.lost),
        (2, 8, ((1, 1),), products.THREE_BFLOAT16.lost),
    ],
)
def test_what_terms_miss_is_within_what_products_are_allowed(parts, bits, dropped, allowed):
    x = hard_factors()
    terms, left = split(x, parts, bits)
    if parts == 3:
        assert not left.any()
    relative = np.abs(left / x)
    lost = 2 * relative.max() + relative.max() ** 2
    for i, j in dropped:
        lost += np.abs(terms[i] / x).max() * np.abs(terms[j] / x).max()
    assert lost <= allowed * (1 + 2.0**-7)
    assert lost >= allowed / 2.5


def test_by_family_the_loosest_products_are_taken():
    assert products.loosest("simt", "float32") == products.SIX_BFLOAT16
    assert products.loosest("simt", "float32", "highest") == products.SIX_BFLOAT16
    assert products.loosest("simt", "float32", "tf32") == products.THREE_BFLOAT16
    for family, dtype in (("naive", "float32"), ("simt", "float64"), (None, "float32")):
        assert products.loosest(family, dtype, "tf32") == products.FMA
    assert products.loosest("sm80", "float16", "tf32") == products.FMA


def test_a_row_without_keys_has_no_allowance():
    q, k, v = (np.ones((3, 2), np.float32) for _ in range(3))
    exact = reference.attention(q, k, v, causal=True, offset=-1)
    bound = accuracy.lse_bound(exact, "float32", q, k, 1.0)
    assert bound[0] == 0 < bound[1]
    assert accuracy.out_bound(exact, "float32", q, k, v, 1.0)[0].max() < 1e-30


def test_the_bound_grows_with_the_data_and_never_shrinks_with_keys():
    def bound(factor, n):
        q, k, v = (np.full((rows, 8), factor, np.float32) for rows in (2, n, n))
        return accuracy.out_bound(reference.attention(q, k, v), "float32", q, k, v, 0.35).min()

    assert bound(1, 10) < bound(2, 10) < bound(8, 10)
    assert bound(1, 10) < bound(1, 1000)


floats = st.floats(-8, 8, width=32)


@given(st.lists(st.tuples(floats, floats, st.floats(0.01, 4)), min_size=1, max_size=20))
def test_compare_finds_the_worst_ratio(rows):
    got, want, bound = (np.array(x) for x in zip(*rows, strict=True))
    compared = accuracy.compare(got, want, bound)
    ratios = [abs(a - b) / c for a, b, c in rows]
    assert compared.ratio == max(ratios)
    assert ratios[compared.worst[0]] == max(ratios)
    assert compared.ok == all(abs(a - b) <= c for a, b, c in rows)
    assert compared.max_error == max(abs(a - b) for a, b, _ in rows)
    assert (compared.got, compared.want) == rows[compared.worst[0]][:2]
    np.testing.assert_allclose(compared.rms_error, np.sqrt(np.mean((got - want) ** 2)))


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("got", "want", "bound", "ok"),
    [
        (NAN, 1.0, 1.0, False),
        (NAN, NAN, 1.0, False),
        (1.0, NAN, 1.0, False),
        (NAN, INF, INF, False),
        (INF, 1.0, 1.0, False),
        (1.0, INF, 1.0, False),
        (1.0, -INF, 1.0, False),
        (INF, -INF, 1.0, False),
        (INF, 3e38, 1e30, False),
        (INF, INF, 1.0, True),
        (-INF, -INF, 0.0, True),
        (1.0, 1.0, 0.0, True),
        (1.0, 1.5, 0.0, False),
        (1.0, 1.5, NAN, False),
        (0.0, -0.0, 0.0, True),
        (1.0, 1.5, 0.5, True),
    ],
)
@pytest.mark.parametrize("place", [0, 3])
def test_compare_accepts_no_nan_and_no_wrong_infinity(got, want, bound, ok, place):
    arrays = np.ones(4), np.ones(4), np.full(4, 0.5)
    for array, value in zip(arrays, (got, want, bound), strict=True):
        array[place] = value
    compared = accuracy.compare(*arrays)
    assert compared.ok is ok
    assert ok or compared.worst == (place,)


def test_compare_of_other_shapes_and_of_nothing():
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\) differ"):
        accuracy.compare(np.ones(2), np.ones(3), np.ones(3))
    assert accuracy.compare(np.ones((0, 3)), np.ones((0, 3)), np.ones((0, 3))).ok


def test_the_text_says_where_and_how_much():
    compared = accuracy.compare(
        np.array([[1.0, 2.0]]), np.array([[1.0, 1.5]]), np.full((1, 2), 0.1)
    )
    assert str(compared).startswith("error / bound = 5 at (0, 1) (got 2.0, exact 1.5); max 0.5")


@pytest.mark.parametrize(
    ("dtype", "sums"),
    [
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "float32"),
        ("float64", "float64"),
    ],
)
def test_sums_run_in(dtype, sums):
    assert accuracy.accumulation(dtype) == sums


def test_check_demands_shapes_dtypes_and_exact_empty_rows():
    arrays = Case((), None, None, 5, 3, 4, 2, ("float16",) * 3, causal=True).build()
    q, k, v = (x.numpy() for x in arrays.inputs().values())
    exact = reference.attention(q, k, v, causal=True)
    out, lse = exact.out.astype(np.float16), exact.lse.astype(np.float32)
    check(arrays, out, lse)
    wrong = [
        (out[:-1], lse),
        (out, lse[:-1]),
        (out.astype(np.float32), lse),
        (out, lse.astype(np.float64)),
        (np.where(out == 0, np.float16(2**-24), out), lse),
        (np.where(np.arange(5)[:, None] == 1, np.float16(np.nan), out), lse),
        (out, np.where(np.isinf(lse), np.float32(-3e38), lse)),
        (out, np.where(np.isinf(lse), np.float32(np.nan), lse)),
    ]
    for bad in wrong:
        with pytest.raises(AssertionError):
            check(arrays, *bad)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_only_kernels_that_round_p_may_be_off_by_it(dtype):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((9, 8)).astype(DTYPES[dtype]) for _ in range(3))
    exact = reference.attention(q, k, v)
    strict, simt, sm80 = (
        accuracy.out_bound(exact, dtype, q, k, v, 0.35, family) for family in (None, "simt", "sm80")
    )
    assert (strict == simt).all()
    more = sm80 - strict
    assert (more >= accuracy.ROUNDING[dtype] * exact.probabilities_abs_v * 0.999).all()
    assert (more <= 1.01 * accuracy.ROUNDING[dtype] * exact.probabilities_abs_v).all()
