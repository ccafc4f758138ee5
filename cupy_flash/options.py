"""The options of a call, checked one by one: their types, ranges, and what each error says."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.arrays import FLOAT_NAMES, ArrayInfo, describe, is_float

KERNELS = ("naive", "simt", "sm80", "sm90")
INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))

# Far beyond any row or key index, and i + offset + right still fits in 64 bits.
_OFFSET_LIMIT = 1 << 62
_WINDOW_LIMIT = 1 << 61


@dataclass(frozen=True)
class Options:
    """The options of one call after checking, except what depends on the shapes.

    `scale` None stands for 1/sqrt(d), `offset` None for bottom-right. `left` and `right` are the
    bounds of `window`, None for no bound; `causal` is a right bound of 0.
    """

    scale: float | None = None
    left: int | None = None
    right: int | None = None
    offset: int | None = None
    mask: ArrayInfo | None = None
    bias: ArrayInfo | None = None
    softcap: float | None = None
    alibi_slopes: ArrayInfo | None = None
    sinks: ArrayInfo | None = None
    q_lengths: ArrayInfo | None = None
    k_lengths: ArrayInfo | None = None
    precision: str | None = None
    return_lse: bool = False
    kernel: str | None = None


def check_options(
    *,
    scale: Any = None,
    causal: Any = False,
    offset: Any = None,
    window: Any = None,
    mask: Any = None,
    bias: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    q_lengths: Any = None,
    k_lengths: Any = None,
    precision: Any = None,
    return_lse: Any = False,
    kernel: Any = None,
) -> Options:
    """Check every option by itself; raise TypeError or ValueError."""
    left, right = _window(window)
    if boolean("causal", causal):
        right = 0
    return Options(
        scale=None if scale is None else _finite("scale", scale),
        left=left,
        right=right,
        offset=_offset(offset),
        mask=_mask(mask),
        bias=_reals("bias", bias, integers=True),
        softcap=_softcap(softcap),
        alibi_slopes=_reals("alibi_slopes", alibi_slopes),
        sinks=_reals("sinks", sinks),
        q_lengths=_lengths("q_lengths", q_lengths),
        k_lengths=_lengths("k_lengths", k_lengths),
        precision=_precision(precision),
        return_lse=boolean("return_lse", return_lse),
        kernel=_kernel(kernel),
    )


def boolean(name: str, value: Any) -> bool:
    """Return a truth value of Python or NumPy; anything else is a TypeError."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"attention: {name} is {value!r}; it must be True or False")


def _is_real(value: Any) -> bool:
    if isinstance(value, np.generic):
        return is_float(value.dtype) or value.dtype.kind in "iuf"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _finite(name: str, value: Any) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not _is_real(value):
        way = ""
        if hasattr(value, "__cuda_array_interface__"):
            way = f". Reading it would wait for the GPU; pass float({name}) yourself"
        raise TypeError(
            f"attention: {name} is a {type(value).__name__}; it must be a real number on the "
            f"host{way}"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"attention: {name} is {value!r}; it must be finite")
    return number


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(f"attention: {name} is {value!r}; it must be an int or None")
    return int(value)


def _offset(value: Any) -> int | None:
    if value is None:
        return None
    offset = _integer("offset", value)
    if abs(offset) > _OFFSET_LIMIT:
        raise ValueError(f"attention: offset is {offset}; it must lie within +-2**62")
    return offset


def _window(value: Any) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(
            f"attention: window is {value!r}; it must be a pair (left, right), each an int >= 0 "
            "or None. For a causal window of w keys before the row say window=(w, 0)"
        )
    return _bound("left", value[0]), _bound("right", value[1])


def _bound(side: str, value: Any) -> int | None:
    if value is None:
        return None
    bound = _integer(f"window's {side} bound", value)
    if bound < 0:
        raise ValueError(
            f"attention: window's {side} bound is {bound}; it must be >= 0, or None for no bound. "
            "Shift the band with offset="
        )
    if bound > _WINDOW_LIMIT:
        raise ValueError(
            f"attention: window's {side} bound is {bound}; it must be at most 2**61, or None for "
            "no bound"
        )
    return bound


def _softcap(value: Any) -> float | None:
    if value is None:
        return None
    softcap = _finite("softcap", value)
    if softcap <= 0:
        raise ValueError(f"attention: softcap is {value!r}; it must be > 0, or None for no cap")
    return softcap


def _mask(value: Any) -> ArrayInfo | None:
    if value is None:
        return None
    info = describe("mask", value)
    if info.dtype != np.bool_:
        raise TypeError(
            f"attention: mask has dtype {info.dtype}; it must be bool, True = attend. "
            "Say mask.astype(bool), or bias= for numbers added to the score"
        )
    return info


def _reals(name: str, value: Any, *, integers: bool = False) -> ArrayInfo | None:
    """Accept an array of real numbers that takes no part in the promotion of q, k and v."""
    if value is None:
        return None
    info = describe(name, value)
    dtype = info.dtype

    def allowed(dtype: np.dtype[Any]) -> bool:
        return is_float(dtype) or (integers and dtype in INTEGERS)

    if allowed(dtype):
        return info
    names = ", ".join((*FLOAT_NAMES, *(x.name for x in INTEGERS if integers)))
    if allowed(dtype.newbyteorder("=")):
        way = f"Its byte order is not the machine's: {name}.astype({dtype.newbyteorder('=').name})"
    elif dtype == np.bool_ and name == "bias":
        way = "For True = attend say mask=, else bias.astype(numpy.float32)"
    elif dtype.kind == "c":
        way = f"Scores are real: {name}.real"
    elif dtype == np.dtype(np.longdouble):
        way = f"No GPU has it: {name}.astype(numpy.float64)"
    else:
        way = f"Convert it: {name}.astype(numpy.float32)"
    raise TypeError(f"attention: {name} has dtype {dtype}; allowed are {names}. {way}")


def _lengths(name: str, value: Any) -> ArrayInfo | None:
    if value is None:
        return None
    info = describe(name, value)
    if info.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise TypeError(
            f"attention: {name} has dtype {info.dtype}; allowed are int32 and int64. "
            f"Say {name}.astype('int32')"
        )
    return info


def _precision(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value in ("highest", "tf32")):
        return value
    raise ValueError(
        f"attention: precision is {value!r}; allowed are None and 'highest' (the accuracy of the "
        "dtype) and 'tf32' (permits TF32 products of float32, and changes no other dtype). JAX's "
        "'default' and 'high' and torch's 'high' and 'medium' name what their libraries do by "
        "default on each GPU, so there is nothing to translate them to: choose 'highest' or 'tf32'"
    )


def _kernel(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value in KERNELS):
        return value
    allowed = ", ".join(map(repr, KERNELS))
    raise ValueError(f"attention: kernel is {value!r}; allowed are None, {allowed}")
