"""Every option: what is accepted and as what, what is refused with which words."""

from __future__ import annotations

import decimal
import fractions
import math
from dataclasses import FrozenInstanceError

import ml_dtypes
import numpy as np
import pytest

from cupy_flash import attention
from cupy_flash.arrays import FLOAT_NAMES, planned, to_dtype
from cupy_flash.options import KERNELS, Options, check_options
from cupy_flash.problem import make_problem

NAN, INF = float("nan"), float("inf")


class DeviceScalar:
    """A number on a GPU: reading it would wait."""

    ndim = 0

    @property
    def __cuda_array_interface__(self):
        return {"shape": (), "typestr": "<f4", "data": (0, False), "version": 3}

    def __float__(self):
        raise AssertionError("a number was read from the GPU")

    __int__ = __index__ = __bool__ = __float__


REAL = "a real number on the host"
PAIR = "must be a pair (left, right), each an int >= 0"
REFUSED = {
    "scale": [
        (NAN, ValueError, "must be finite"),
        (INF, ValueError, "scale is inf"),
        (-INF, ValueError, "scale is -inf"),
        (np.float32(INF), ValueError, "must be finite"),
        (10**400, ValueError, "must be finite"),
        (True, TypeError, "bool"),
        (np.True_, TypeError, REAL),
        ("0.5", TypeError, "scale is a str"),
        (1j, TypeError, "complex"),
        (np.complex64(1), TypeError, "complex64"),
        (decimal.Decimal(1), TypeError, REAL),
        ([0.5], TypeError, "list"),
        (np.ones(1), TypeError, "ndarray"),
        (np.array(1j), TypeError, "scale"),
        (DeviceScalar(), TypeError, "pass float(scale) yourself"),
    ],
    "causal": [
        (value, TypeError, "must be True or False")
        for value in (None, 1, 0, "yes", 1.0, np.ones(1, bool), "causal")
    ],
    "return_lse": [
        (value, TypeError, "must be True or False") for value in (None, 1, 0, "lse", np.int8(1))
    ],
    "offset": [
        (1.0, TypeError, "must be an int or None"),
        (np.float64(2), TypeError, "offset"),
        (NAN, TypeError, "offset is nan"),
        (True, TypeError, "offset is True"),
        (np.False_, TypeError, "int or None"),
        ("bottom-right", TypeError, "'bottom-right'"),
        ((0,), TypeError, "int or None"),
        (np.array([1]), TypeError, "int or None"),
        (2**62 + 1, ValueError, "within +-2**62"),
        (-(2**62) - 1, ValueError, "within +-2**62"),
        (10**30, ValueError, "within +-2**62"),
        (DeviceScalar(), TypeError, "int or None"),
    ],
    "window": [
        (3, TypeError, PAIR),
        (np.int64(3), TypeError, "say window=(w, 0)"),
        ((3,), TypeError, PAIR),
        ((), TypeError, PAIR),
        ((1, 2, 3), TypeError, PAIR),
        ([3, 0], TypeError, PAIR),
        ("33", TypeError, PAIR),
        ((1.0, 0), TypeError, "window's left bound is 1.0"),
        ((0, 2.5), TypeError, "window's right bound is 2.5"),
        ((True, 0), TypeError, "left bound"),
        ((-1, 0), ValueError, "window's left bound is -1"),
        ((3, -1), ValueError, "window's right bound is -1"),
        ((-1, -3), ValueError, "None for no bound"),
        ((-1, -1), ValueError, "Shift the band with offset="),
        ((2**61 + 1, 0), ValueError, "window's left bound is 2305843009213693953"),
        ((None, 10**30), ValueError, "at most 2**61, or None for no bound"),
        ((None, INF), TypeError, "window's right bound is inf"),
        ((DeviceScalar(), 0), TypeError, "left bound"),
    ],
    "mask": [
        (np.zeros((4, 6), dtype), TypeError, words)
        for dtype, words in (
            (np.float32, "mask has dtype float32"),
            (np.float64, "or bias= for numbers added to the score"),
            (np.int64, "mask has dtype int64"),
            (np.uint8, "mask.astype(bool)"),
            (object, "True = attend"),
            (ml_dtypes.bfloat16, "bfloat16"),
        )
    ]
    + [([[True]], TypeError, "list"), (True, TypeError, "mask is a builtins.bool")]
    + [
        (np.ones(shape, bool), ValueError, words)
        for shape, words in (
            ((4, 5), "mask has shape (4, 5); it must broadcast to (2, 3, 4, 6)"),
            ((6, 4), "out's leading axes, the rows and the keys"),
            ((3, 6), "mask has shape (3, 6)"),
            ((0,), "mask has shape (0,)"),
            ((1, 2, 3, 4, 6), "mask has shape (1, 2, 3, 4, 6)"),
            ((2, 6), "For one value per key of each batch entry say mask[..., None, None, :]"),
            ((2, 4, 6), "For the same values in all heads say mask[..., None, :, :]"),
            ((2, 1, 6), "in all heads say mask[..., None, :, :]"),
        )
    ],
    "softcap": [
        (0, ValueError, "must be > 0"),
        (0.0, ValueError, "None for no cap"),
        (-30.0, ValueError, "softcap is -30.0"),
        (-0.0, ValueError, "must be > 0"),
        (np.float32(-1), ValueError, "must be > 0"),
        (NAN, ValueError, "finite"),
        (INF, ValueError, "finite"),
        (True, TypeError, "bool"),
        ("30", TypeError, "str"),
        (np.ones(2), TypeError, "ndarray"),
        (DeviceScalar(), TypeError, "pass float(softcap) yourself"),
    ],
    "precision": [
        (value, ValueError, words)
        for value, words in (
            ("default", "'default'"),
            ("high", "JAX's 'default' and 'high'"),
            ("medium", "torch's 'high' and 'medium'"),
            ("HIGHEST", "choose 'highest' or 'tf32'"),
            ("float32", "'tf32'"),
            ("bf16", "allowed are None and 'highest'"),
            ("", "precision is ''"),
            (1, "precision is 1"),
            (np.float32, "precision"),
        )
    ],
    "kernel": [
        (value, ValueError, "None, 'naive', 'simt', 'sm80', 'sm90'")
        for value in ("cuda", "SIMT", "", "sm_80", "flash", 80, True, b"simt")
    ],
}
REFUSED["bias"] = [
    (np.zeros((4, 6), bool), TypeError, "For True = attend say mask="),
    (np.zeros((4, 6), ">i2"), TypeError, "bias.astype(int16)"),
    (np.zeros((4, 6), "m8[s]"), TypeError, "float64, int8, int16, int32, int64, uint8, uint16"),
    (np.zeros((4, 7)), ValueError, "bias has shape (4, 7); it must broadcast to (2, 3, 4, 6)"),
    (np.zeros((2, 6)), ValueError, "say bias[..., None, None, :]"),
    (np.zeros((2, 4, 6), np.int8), ValueError, "say bias[..., None, :, :]"),
]
for _name in ("alibi_slopes", "sinks"):
    REFUSED[_name] = [
        (np.zeros(3, int), TypeError, f"{_name} has dtype int64"),
        (np.zeros(3, bool), TypeError, f"{_name}.astype(numpy.float32)"),
        (np.zeros(4), ValueError, f"{_name} has shape (4,); it must broadcast to out's leading"),
        (np.zeros((2, 3, 1)), ValueError, "leading axes (2, 3)"),
        (np.zeros((3, 2)), ValueError, f"{_name} has shape (3, 2)"),
        (np.zeros(0), ValueError, f"{_name} has shape (0,)"),
        (np.zeros(2), ValueError, f"For one number per batch entry say {_name}[..., None]"),
    ]
for _name in ("bias", "alibi_slopes", "sinks"):
    REFUSED[_name] += [
        (np.zeros(3, bool), TypeError, "dtype bool"),
        (np.zeros(3, complex), TypeError, f"Scores are real: {_name}.real"),
        (np.zeros(3, object), TypeError, f"{_name}.astype(numpy.float32)"),
        (
            np.zeros(3, ">f4"),
            TypeError,
            f"byte order is not the machine's: {_name}.astype(float32)",
        ),
        (np.zeros(3, np.longdouble), TypeError, f"No GPU has it: {_name}.astype(numpy.float64)"),
        (np.zeros(3, ml_dtypes.float8_e4m3fn), TypeError, "float16, bfloat16, float32, float64"),
        (np.float32(0.5), TypeError, f"{_name} is a numpy.float32"),
        ([0.5, 0.25], TypeError, f"{_name} is a builtins.list"),
        (0.5, TypeError, f"{_name} is a builtins.float"),
        (np.ma.zeros(3), TypeError, "masked array"),
    ]
for _name in ("q_lengths", "k_lengths"):
    REFUSED[_name] = [
        ([3, 4], TypeError, f"{_name} is a builtins.list"),
        ((3, 4), TypeError, "tuple"),
        (3, TypeError, f"{_name} is a builtins.int"),
        (np.int32(3), TypeError, "numpy.int32"),
        (np.array([3, 4], np.int16), TypeError, "allowed are int32 and int64"),
        (np.array([3, 4], np.uint32), TypeError, f"{_name}.astype('int32')"),
        (np.array([3.0, 4.0]), TypeError, "dtype float64"),
        (np.array([True, False]), TypeError, "dtype bool"),
        (np.array([3, 4], ">i4"), TypeError, ">i4"),
        (np.array([3, 4, 4], np.int32), ValueError, "must broadcast to the batch axes (2,)"),
        (np.array([[3, 4]], np.int32), ValueError, f"{_name} has shape (1, 2)"),
        (np.zeros((2, 3), np.int32), ValueError, "shape (2, 3)"),
        (np.zeros(0, np.int32), ValueError, "shape (0,)"),
        (np.array([-1, 4], np.int32), ValueError, f"{_name} has values from -1 to 4"),
        (np.array([0, 7], np.int64), ValueError, "must lie in [0, "),
        (np.array(-(2**31), np.int32), ValueError, "must lie in [0, "),
        (np.array([2**40], np.int64), ValueError, "to 1099511627776"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        pytest.param(name, *row, id=f"{name}-{i}")
        for name, rows in REFUSED.items()
        for i, row in enumerate(rows)
    ],
)
def test_refused_before_anything_is_written(name, value, error, words):
    q, k, v = (np.ones((2, 3, rows, 5), np.float32) for rows in (4, 6, 6))
    out, lse = np.full((2, 3, 4, 5), 7.0, np.float32), np.full((2, 3, 4), 7.0, np.float32)
    with pytest.raises(error) as caught:
        attention(q, k, v, **{"out": (out, lse), "return_lse": True, name: value})
    assert caught.type is error
    assert name in str(caught.value)
    assert words in str(caught.value)
    assert (out == 7).all()
    assert (lse == 7).all()


def test_every_parameter_has_five_bad_values():
    counts = {name: len(rows) for name, rows in REFUSED.items()}
    assert min(counts.values()) >= 5, counts
    assert set(counts) == set(check_options.__kwdefaults__)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_are_for_cupy_arrays(kernel):
    x = np.ones((4, 5))
    out = np.full((4, 5), 7.0)
    with pytest.raises(ValueError, match=r"needs CuPy arrays.*kernel=None"):
        attention(x, x, x, kernel=kernel, out=out)
    assert (out == 7).all()


def test_unknown_and_positional_options():
    x = np.ones((4, 5))
    with pytest.raises(TypeError, match="is_causal"):
        attention(x, x, x, is_causal=True)
    with pytest.raises(TypeError):
        attention(x, x, x, 0.5)
    with pytest.raises(TypeError):
        attention(q=x, k=x, v=x)


def test_defaults():
    assert check_options() == Options()
    assert {getattr(Options(), name) for name in Options.__dataclass_fields__} == {None, False}


def test_options_are_frozen_and_hashable():
    options = check_options(scale=2, causal=True)
    with pytest.raises(FrozenInstanceError):
        options.scale = 3.0
    assert hash(options) == hash(check_options(scale=2.0, causal=np.True_))


@pytest.mark.parametrize(
    "scale",
    [
        *(1, 0.5, -0.25, 0, fractions.Fraction(1, 8), np.float16(0.5), np.float32(0.5)),
        *(np.float64(3), np.int8(2), np.longdouble(2), ml_dtypes.bfloat16(0.5), np.array(0.5)),
    ],
)
def test_scale_becomes_a_float(scale):
    got = check_options(scale=scale).scale
    assert type(got) is float
    assert got == float(scale)


@pytest.mark.parametrize("offset", [0, -3, np.int8(-3), np.uint64(7), 2**62, -(2**62)])
def test_offset_becomes_an_int(offset):
    got = check_options(offset=offset).offset
    assert type(got) is int
    assert got == offset


@pytest.mark.parametrize(
    ("causal", "window", "bounds"),
    [
        (False, None, (None, None)),
        (False, (None, None), (None, None)),
        (False, (3, 2), (3, 2)),
        (False, (0, None), (0, None)),
        (False, (None, 0), (None, 0)),
        (False, (np.int8(3), np.uint64(2)), (3, 2)),
        (False, (2**61, 2**61), (2**61, 2**61)),
        (True, None, (None, 0)),
        (True, (3, 2), (3, 0)),
        (True, (3, None), (3, 0)),
        (True, (None, 5), (None, 0)),
        (True, (0, 0), (0, 0)),
    ],
)
def test_a_causal_call_has_a_right_bound_of_0(causal, window, bounds):
    options = check_options(causal=causal, window=window)
    assert (options.left, options.right) == bounds
    assert all(type(bound) in (int, type(None)) for bound in (options.left, options.right))


@pytest.mark.parametrize(
    "softcap", [30, 30.0, np.float16(30), fractions.Fraction(30), 1e-300, 1e300]
)
def test_softcap_becomes_a_float(softcap):
    got = check_options(softcap=softcap).softcap
    assert type(got) is float
    assert got == float(softcap)


SMALL_DTYPES = {
    "mask": ("bool",),
    "bias": (*FLOAT_NAMES, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))),
    "alibi_slopes": FLOAT_NAMES,
    "sinks": FLOAT_NAMES,
}


@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, dtypes in SMALL_DTYPES.items() for dtype in dtypes]
)
def test_small_arrays_take_no_part_in_the_promotion(name, dtype):
    x = planned((2, 3, 4, 5), np.dtype(np.float16))
    info = planned((), to_dtype(dtype))
    problem = make_problem(x, x, x, check_options(**{name: info}))
    assert (problem.dtype, problem.accumulate) == ("float16", "float32")
    assert getattr(problem, name).dtype == dtype


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_booleans_become_bool(value):
    options = check_options(causal=value, return_lse=value)
    assert options.right == (0 if value else None)
    assert options.return_lse is bool(value)


@pytest.mark.parametrize("precision", [None, "highest", "tf32"])
def test_precisions(precision):
    assert check_options(precision=precision).precision == precision


@pytest.mark.parametrize("d", [1, 2, 3, 21, 57, 64, 80, 128, 203, 1000])
def test_the_default_scale_is_that_of_the_callers_d(d):
    x = planned((2, d), np.dtype(np.float32))
    assert make_problem(x, x, x, check_options()).scale == 1 / math.sqrt(d)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("lengths", [[0, 6], [6, 0], [3, 3], [5]])
def test_lengths_at_their_limits(dtype, lengths):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 3, rows, 5)) for rows in (4, 6, 6))
    k_lengths = np.array(lengths, dtype)
    got = attention(q, k, v, k_lengths=k_lengths)
    for entry, length in enumerate(np.broadcast_to(k_lengths, 2)):
        alone = attention(q[entry], k[entry, :, :length], v[entry, :, :length])
        np.testing.assert_allclose(got[entry], alone, rtol=1e-13)
