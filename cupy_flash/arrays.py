"""What an argument is: NumPy or CuPy, its element type, where its elements lie."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.device import import_cupy

BFLOAT16 = "bfloat16"
FLOAT_NAMES = ("float16", BFLOAT16, "float32", "float64")
_FLOATS_OF_NUMPY = tuple(np.dtype(name) for name in FLOAT_NAMES if name != BFLOAT16)


@functools.cache
def to_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; NumPy alone doesn't know "bfloat16"."""
    if name != BFLOAT16:
        return np.dtype(name)
    # Only where it is needed: to import its version 0.7.0 takes 2 s.
    import ml_dtypes

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is one of the four element types, in native byte order."""
    return dtype in _FLOATS_OF_NUMPY or (dtype.name == BFLOAT16 and dtype == to_dtype(BFLOAT16))


@dataclass(frozen=True)
class ArrayInfo:
    """Shape, strides, element type and place of an array, without the array.

    Attributes
    ----------
    module : str
        "numpy" or "cupy".
    device : int or None
        The CUDA device of a CuPy array.
    shape, strides : tuple of int
        As of the array; strides in bytes.
    dtype : numpy.dtype
        The element type.
    pointer : int
        Address of element (0, ..., 0).
    writable : bool
        False for a NumPy array that must not be written.
    """

    module: str
    device: int | None
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    pointer: int
    writable: bool = True

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


def planned(shape: tuple[int, ...], dtype: np.dtype[Any], module: str = "cupy") -> ArrayInfo:
    """Describe a C-contiguous array that doesn't exist, for `explain` without data."""
    strides, step = [], dtype.itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    device = 0 if module == "cupy" else None
    return ArrayInfo(module, device, shape, tuple(reversed(strides)), dtype, 0)


# What a masked array's elements can become instead.
_INSTEAD_OF_MASKS = {
    "attention": "Fill it (x.filled(0)) and say which keys count through k_lengths",
    "softmax": "Fill it with -inf, which has no weight: x.filled(-numpy.inf)",
}


def describe(name: str, x: Any, call: str = "attention") -> ArrayInfo:
    """Describe a NumPy or CuPy array; anything else is a TypeError that says the way out.

    `call` is the function whose argument it is.
    """
    if isinstance(x, ArrayInfo):
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{call}: {name} is a masked array; masked elements would take part. "
            f"{_INSTEAD_OF_MASKS[call]}"
        )
    if isinstance(x, np.ndarray):
        if type(x) not in (np.ndarray, np.memmap):
            raise TypeError(f"{call}: {name} is a {type(x).__name__}; pass numpy.asarray({name})")
        pointer = x.__array_interface__["data"][0]
        return ArrayInfo("numpy", None, x.shape, x.strides, x.dtype, pointer, x.flags.writeable)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return ArrayInfo("cupy", x.data.device_id, x.shape, x.strides, x.dtype, x.data.ptr)
    raise TypeError(f"{call}: {_refusal(name, x)}")


def _refusal(name: str, x: Any) -> str:
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    if _is_on_gpu(x):
        import_cupy()
        return f"{name} is a {kind} on a GPU; pass cupy.from_dlpack({name}), which copies nothing"
    return (
        f"{name} is a {kind}; a NumPy or CuPy array is needed. "
        f"Convert it with numpy.asarray or cupy.asarray"
    )


def _is_on_gpu(x: Any) -> bool:
    cuda_device_types = (2, 13)  # kDLCUDA and kDLCUDAManaged of the DLPack header
    if hasattr(type(x), "__dlpack_device__"):
        try:
            return int(x.__dlpack_device__()[0]) in cuda_device_types
        except Exception:
            # Another library's array may refuse for any reason; then the interface below decides.
            pass
    if hasattr(type(x), "__cuda_array_interface__"):
        # Not on the instance: torch's property raises for a tensor on the CPU.
        return True
    return "__cuda_array_interface__" in getattr(x, "__dict__", {})


def common_place(infos: Mapping[str, ArrayInfo], call: str = "attention") -> tuple[str, int | None]:
    """Return the one module and device of all arrays; a mixture is a TypeError or ValueError."""
    (first, place), *others = infos.items()
    for name, info in others:
        if info.module != place.module:
            host, on_device = (first, name) if place.module == "numpy" else (name, first)
            raise TypeError(
                f"{call}: {first} is a {place.module} array and {name} a {info.module} array; "
                "nothing is copied between host and device silently. "
                f"Use cupy.asarray({host}) or cupy.asnumpy({on_device})"
            )
        if info.device != place.device:
            raise ValueError(
                f"{call}: {first} is on device {place.device} and {name} on device "
                f"{info.device}; all arrays must be on one device. Copy one of them under "
                f"`with cupy.cuda.Device({place.device}):`"
            )
    return place.module, place.device


def check_aligned(name: str, info: ArrayInfo, call: str = "attention") -> None:
    """Refuse elements that don't lie at multiples of their size, as no kernel can read them."""
    itemsize = info.dtype.itemsize
    if 0 in info.shape:
        return
    moving = [s for s, extent in zip(info.strides, info.shape, strict=True) if extent > 1]
    if info.pointer % itemsize or any(stride % itemsize for stride in moving):
        raise ValueError(
            f"{call}: {name}'s elements don't lie at multiples of their {itemsize} bytes "
            f"(address {info.pointer:#x}, strides {info.strides}); pass {name}.copy()"
        )


def check_float(name: str, dtype: np.dtype[Any], call: str = "attention") -> None:
    """Accept float16, bfloat16, float32, float64 in native byte order; else a TypeError."""
    if is_float(dtype):
        return
    allowed = ", ".join(FLOAT_NAMES)
    if is_float(dtype.newbyteorder("=")):
        way = f"its byte order is not the machine's: {name}.astype({dtype.newbyteorder('=').name})"
    elif dtype.kind == "c" and call == "softmax":
        way = "complex numbers have no maximum"
    elif dtype.kind == "c":
        way = (
            "complex scores have no order. For Re(q conj(k)) take the real view of twice the "
            f"width: {name}.view({name}.real.dtype), and .view(complex) on the result"
        )
    elif dtype.kind in "biu":
        way = f"choose the precision yourself: {name}.astype(numpy.float32)"
    elif dtype == np.dtype(np.longdouble):
        way = f"no GPU has it: {name}.astype(numpy.float64)"
    else:
        way = f"convert it: {name}.astype(numpy.float32)"
    raise TypeError(f"{call}: {name} has dtype {dtype}; allowed are {allowed}. {way}")


def promote(infos: Mapping[str, ArrayInfo]) -> np.dtype[Any]:
    """Return the dtype that NumPy promotes q, k and v to; bfloat16 with float16 has none."""
    for name, info in infos.items():
        check_float(name, info.dtype)
    dtypes = {info.dtype for info in infos.values()}
    if {"float16", BFLOAT16} <= {dtype.name for dtype in dtypes}:
        which = ", ".join(f"{name} is {info.dtype.name}" for name, info in infos.items())
        raise TypeError(
            f"attention: {which}; float16 and bfloat16 have no common dtype. "
            "Convert one of them with .astype"
        )
    return np.result_type(*dtypes)


def _as_numpy(info: ArrayInfo) -> np.ndarray[Any, Any]:
    """Return a NumPy array over the same addresses, to compare places; it must not be read."""

    class Addresses:
        __array_interface__ = {  # noqa: RUF012  (NumPy's protocol wants a plain attribute)
            "data": (info.pointer, False),
            "shape": info.shape,
            "strides": info.strides,
            "typestr": f"|V{info.dtype.itemsize}",
            "version": 3,
        }

    return np.asarray(Addresses())


def byte_range(info: ArrayInfo) -> tuple[int, int]:
    """Return the first address of an array's elements, and the one after the last."""
    low = high = info.pointer
    for extent, stride in zip(info.shape, info.strides, strict=True):
        reach = (extent - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + info.dtype.itemsize


def share_an_element(a: ArrayInfo, b: ArrayInfo) -> bool:
    """Whether two arrays have an element in common: exact, on the host, without reading memory."""
    if a.module != b.module or a.device != b.device or 0 in a.shape or 0 in b.shape:
        return False
    (low_a, high_a), (low_b, high_b) = byte_range(a), byte_range(b)
    if high_a <= low_b or high_b <= low_a:
        return False
    return bool(np.shares_memory(_as_numpy(a), _as_numpy(b)))


def overlaps_itself(info: ArrayInfo) -> bool:
    """Whether two indices of an array may name the same element, as in a broadcast view.

    False is certain; True also for views whose axes interleave without meeting, which slicing,
    transposing and reversing never make.
    """
    axes = sorted((abs(s), n) for s, n in zip(info.strides, info.shape, strict=True) if n > 1)
    if 0 in info.shape:
        return False
    reach = info.dtype.itemsize
    for stride, extent in axes:
        if stride < reach:
            return True
        reach = stride * (extent - 1) + reach
    return False
