"""Softmax of NumPy arrays: right, the same bits for a row wherever it is, and every refusal."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import cupy_flash as cf
from cupy_flash import accuracy, reference
from cupy_flash.softmaxes import blocked
from layouts import OUT_LAYOUTS, strided
from problems import DTYPES
from softmaxes import METHODS, SENTINEL, VALUES, SoftmaxCase, check_softmax, drawn, softmax_cases
from strategies import own_draws

every_method = pytest.mark.parametrize("method", METHODS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def result(case):
    x = case.build().numpy()
    if case.out_layout is None:
        return x, cf.softmax(x, case.axis, method=case.method)
    target = strided(case.shape, x.dtype, case.out_layout, SENTINEL)
    out = target.numpy()
    assert cf.softmax(x, case.axis, method=case.method, out=out) is out
    untouched = np.array(SENTINEL, x.dtype).view(f"u{x.itemsize}")
    assert (target.outside() == untouched).all()
    return x, out


@every_dtype
def test_random_softmaxes_are_within_their_bounds(dtype, record_property):
    counted = Counter()
    worst = 0.0

    @own_draws(f"host softmax {dtype}")
    @settings(max_examples=100)
    @given(softmax_cases(dtype, 20_000))
    def one(case):
        nonlocal worst
        counted.update([case.values, case.method])
        x, out = result(case)
        worst = max(worst, check_softmax(x, out, case.axis))

    one()
    record_property("drawn", f"worst error / bound {worst:.3f}: {sorted(counted.items())}")
    assert {*VALUES, *METHODS} <= set(counted)


@every_dtype
@every_method
@pytest.mark.parametrize("step", [1, 1000, blocked.BLOCK])
def test_a_maximum_that_rises_in_every_block(dtype, method, step):
    n = 5 * blocked.BLOCK + 3
    blocks = np.arange(n) // step
    x = np.random.default_rng(0).random((2, n)) + 1.5 * (blocks - blocks[-1])
    x[1] *= 0.1
    x = x.astype(DTYPES[dtype])
    check_softmax(x, cf.softmax(x, method=method), -1)


def test_a_sum_that_is_not_rescaled_is_noticed(monkeypatch):
    """What a published description of the online softmax gets wrong, both ways."""
    x = np.repeat(np.arange(3.0), blocked.BLOCK)[None]

    def no_rescaling(rows, dtype):
        m, l = blocked.online(rows, dtype)
        return m, l + 2 * blocked.BLOCK * np.exp(-1.0)

    def own_maximum(rows, dtype):
        m, l = blocked.online(rows, dtype)
        return m, np.full_like(l, x.size)

    for wrong in (no_rescaling, own_maximum):
        monkeypatch.setitem(blocked.METHODS, "online", wrong)
        with pytest.raises(AssertionError, match="error / bound"):
            check_softmax(x, cf.softmax(x), -1)


@every_method
@every_dtype
def test_special_values(dtype, method):
    inf, nan = np.inf, np.nan
    rows = [[0, -inf, 0], [-inf, -inf, -inf], [nan, 0, 1], [inf, 0, 1], [-inf, nan, -inf]]
    x = np.array(rows).astype(DTYPES[dtype])
    out = cf.softmax(x, method=method).astype(float)
    np.testing.assert_array_equal(out[:2], [[0.5, 0, 0.5], [0, 0, 0]])
    assert np.isnan(out[2:]).all()


@every_method
@every_dtype
def test_a_row_does_not_depend_on_the_others_or_on_the_layout(dtype, method):
    for n in (1, 7, 100, 3 * blocked.BLOCK):
        rows = drawn((9, n), dtype, "x30", n).astype(DTYPES[dtype])
        want = cf.softmax(rows, method=method)
        for row, exact in zip(rows, want, strict=True):
            assert cf.softmax(row, method=method).tobytes() == exact.tobytes()
        assert cf.softmax(rows.T, 0, method=method).T.tobytes() == want.tobytes()
        for layout in OUT_LAYOUTS:
            x = strided(rows.shape, rows.dtype, layout)
            x.numpy()[...] = rows
            assert cf.softmax(x.numpy(), method=method).tobytes() == want.tobytes(), layout


@every_method
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_zero_sizes(shape, method):
    for axis in range(len(shape)):
        assert cf.softmax(np.empty(shape, np.float32), axis, method=method).shape == shape


def test_a_new_result_is_contiguous_in_the_order_of_x():
    x = np.ones((3, 4, 5)).transpose(2, 0, 1)
    assert cf.softmax(x, 0).strides == x.strides
    assert cf.softmax(x[::2, ::-1], 1).transpose(1, 2, 0).flags.c_contiguous
    assert cf.softmax(np.broadcast_to(np.ones(3), (4, 3))).flags.c_contiguous


@every_method
def test_in_place(method):
    x = drawn((5, 9000), "float32", "x30", 1).astype(np.float32)
    before = x.copy()
    assert cf.softmax(x, method=method, out=x) is x
    check_softmax(before, x, -1)
    view = before.copy()
    cf.softmax(view, method=method, out=view[:])
    np.testing.assert_array_equal(view, x)


class Subclass(np.ndarray):
    pass


X = np.ones((3, 4), np.float32)
READ_ONLY = X.copy()
READ_ONLY.flags.writeable = False
OVERLAPPING = np.ones(20, np.float32)
REFUSALS = {
    "list": ([[1.0]], {}, TypeError, r"x is a builtins.list; a NumPy or CuPy array is needed"),
    "int": (np.ones(3, int), {}, TypeError, r"x has dtype int64; allowed .* x.astype\(numpy.flo"),
    "bool": (np.ones(3, bool), {}, TypeError, "x has dtype bool"),
    "complex": (np.ones(3, complex), {}, TypeError, "complex numbers have no maximum"),
    "longdouble": (np.ones(3, np.longdouble), {}, TypeError, "no GPU has it"),
    "byte order": (np.ones(3, ">f4"), {}, TypeError, "byte order is not the machine's"),
    "masked": (np.ma.ones(3), {}, TypeError, r"masked array; .*x.filled\(-numpy.inf\)"),
    "subclass": (X.view(Subclass), {}, TypeError, "x is a Subclass; pass numpy.asarray"),
    "no axis": (np.array(1.0), {}, ValueError, r"x has shape \(\), no axis .* pass x\[None\]"),
    "axis too large": (X, {"axis": 2}, ValueError, r"axis is 2 and x has shape .* -2 to 1"),
    "axis too small": (X, {"axis": -3}, ValueError, r"axis is -3 .* allowed are -2 to 1"),
    "axis float": (X, {"axis": 1.0}, TypeError, r"axis is 1.0; it must be an int"),
    "axis bool": (X, {"axis": True}, TypeError, r"axis is True; it must be an int"),
    "axis None": (X, {"axis": None}, TypeError, r"axis is None; it must be an int"),
    "axes": (X, {"axis": (0, 1)}, TypeError, r"axis is \(0, 1\); it must be one int.*x.reshape"),
    "method": (X, {"method": "fast"}, ValueError, "method is 'fast'; allowed are 'online' and"),
    "method None": (X, {"method": None}, ValueError, "method is None"),
    "out shape": (X, {"out": X.T}, ValueError, r"out has shape \(4, 3\); it must be x's, \(3, 4"),
    "out dtype": (X, {"out": X.astype(float)}, TypeError, "out has dtype float64; the result is"),
    "out list": (X, {"out": [1]}, TypeError, "out is a builtins.list"),
    "out read-only": (X, {"out": READ_ONLY}, ValueError, "out is read-only"),
    "out broadcast": (
        X,
        {"out": np.lib.stride_tricks.as_strided(OVERLAPPING, (3, 4), (0, 4))},
        ValueError,
        "out has elements that share memory",
    ),
    "out overlaps": (
        OVERLAPPING[:16],
        {"out": OVERLAPPING[1:17]},
        ValueError,
        "out shares memory with x.*pass x itself or another array",
    ),
    "out reversed": (OVERLAPPING, {"out": OVERLAPPING[::-1]}, ValueError, "shares memory with x"),
    "unaligned": (
        np.ndarray(3, np.float32, bytearray(16), 2),
        {},
        ValueError,
        r"x's elements don't lie at multiples of their 4 bytes .*pass x.copy\(\)",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals_name_the_argument_and_the_way_out(what):
    x, options, error, words = REFUSALS[what]
    with pytest.raises(error, match="^softmax: .*" + words.lstrip("^")):
        cf.softmax(x, **options)


def test_the_reference_is_the_formula():
    x = np.array([[1.0, 2.0, -np.inf], [-np.inf] * 3])
    np.testing.assert_allclose(
        reference.softmax(x).astype(float), [[1 / (1 + np.e), np.e / (1 + np.e), 0], [0] * 3]
    )


@every_dtype
def test_known_defects_are_beyond_the_bound(dtype):
    x = drawn((20, 500), dtype, "normal", 3).astype(DTYPES[dtype])
    exact = reference.softmax(x)
    bound = accuracy.softmax_bound(x, exact)
    right = cf.softmax(x).astype(exact.dtype)
    assert accuracy.compare(right, exact, bound).ok
    for wrong in (right * 1.01, right[::-1], np.roll(right, 1, 1), right * (x.shape[-1] - 9) / 500):
        assert not accuracy.compare(wrong, exact, bound).ok
    if np.dtype(ml_dtypes.bfloat16) == x.dtype:
        return
    low = np.float16 if x.dtype != np.float16 else ml_dtypes.bfloat16
    assert not accuracy.compare(right.astype(low), exact, bound).ok


def test_case_is_reproducible():
    case = SoftmaxCase((2, 9), -1, "float16", values="outlier", seed=4)
    assert eval(repr(case)) == case
    assert case.build().numpy().tobytes() == case.build().numpy().tobytes()
