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
from cupy_flash.arrays import planned
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
    + [([[True]], TypeError, "list"), (True, TypeError, "mask is a builtins.bool")],
    "softcap": [
        (0, ValueError, "must be > 0"),
        (0.0, ValueError, "None for no cap"),
        (-30.0, ValueError, "softcap is -30.0"),
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
REFUSED["bias"] = []
for _name in ("alibi_slopes", "sinks"):
    REFUSED[_name] = [(np.zeros(3, int), TypeError, f"{_name} has dtype int64")]
for _name in ("bias", "alibi_slopes", "sinks"):
    REFUSED[_name] += [
        (np.zeros(3, bool), TypeError, "dtype bool"),
        (np.zeros(3, complex), TypeError, "complex128"),
        (np.zeros(3, object), TypeError, "object"),
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
