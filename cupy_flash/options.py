"""The options of a call, checked one by one: their types, ranges, and what each error says."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.arrays import FLOATS, ArrayInfo, check_float, describe

KERNELS = ("naive", "simt", "sm80", "sm90")
LATER = ("mask", "bias", "window", "softcap", "alibi_slopes", "sinks")

# Far beyond any row or key index, and i + offset still fits in 64 bits.
_OFFSET_LIMIT = 1 << 62


@dataclass(frozen=True)
class Options:
    """The options of one call after checking, except what depends on the shapes.

    `scale` None stands for 1/sqrt(d), `offset` None for bottom-right.
    """

    scale: float | None = None
    causal: bool = False
    offset: int | None = None
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
    """Check every option by itself; raise TypeError, ValueError or NotImplementedError."""
    options = Options(
        scale=None if scale is None else _finite("scale", scale),
        causal=_boolean("causal", causal),
        offset=_offset(offset),
        q_lengths=_lengths("q_lengths", q_lengths),
        k_lengths=_lengths("k_lengths", k_lengths),
        precision=_precision(precision),
        return_lse=_boolean("return_lse", return_lse),
        kernel=_kernel(kernel),
    )
    _window(window)
    if mask is not None and describe("mask", mask).dtype != np.bool_:
        raise TypeError(
            f"attention: mask has dtype {describe('mask', mask).dtype}; it must be bool, "
            "True = attend. Say mask.astype(bool), or bias= for numbers added to the score"
        )
    for name, array in (("bias", bias), ("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if array is not None:
            check_float(name, describe(name, array).dtype)
    if softcap is not None and _finite("softcap", softcap) <= 0:
        raise ValueError(f"attention: softcap is {softcap!r}; it must be > 0, or None for no cap")
    given = dict(zip(LATER, (mask, bias, window, softcap, alibi_slopes, sinks), strict=True))
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(
                f"attention: {name}= is not implemented in this version; "
                "causal, offset, q_lengths and k_lengths are"
            )
    return options


def _boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"attention: {name} is {value!r}; it must be True or False")


def _is_real(value: Any) -> bool:
    if isinstance(value, np.generic):
        return value.dtype in FLOATS or value.dtype.kind in "iuf"
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


def _window(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(
            f"attention: window is {value!r}; it must be a pair (left, right), each an int >= 0 "
            "or None. For a causal window of w keys before the row say window=(w, 0)"
        )
    for side, bound in zip(("left", "right"), value, strict=True):
        if bound is not None and _integer(f"window's {side} bound", bound) < 0:
            raise ValueError(
                f"attention: window's {side} bound is {bound}; it must be >= 0, or None for "
                "no bound. Shift the band with offset="
            )


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
        "dtype) and 'tf32' (float32 products in TF32). JAX's 'default' and 'high' and torch's "
        "'high' and 'medium' name what their libraries do by default on each GPU, so there is "
        "nothing to translate them to: choose 'highest' or 'tf32'"
    )


def _kernel(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value in KERNELS):
        return value
    allowed = ", ".join(map(repr, KERNELS))
    raise ValueError(f"attention: kernel is {value!r}; allowed are None, {allowed}")
