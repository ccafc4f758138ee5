"""Buffers of known numbers, so long that offsets in them need more than 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")

# One buffer of 16-bit numbers, long enough for three steps of FAR.
FAR = 2**31 + 8
BUFFER = 2**32 + 2**21
# A prime: an offset that lost its 32nd bit, or was taken modulo 2**32, finds other numbers.
PERIOD = 1_000_003
FLOAT16 = np.dtype(np.float16)


@dataclass
class Far:
    """q, k and v are views of one buffer of known numbers, out of one buffer of NaN."""

    pattern: np.ndarray[Any, Any]
    numbers: Any
    out: Any

    def view(self, buffer: Any, shape: Any, strides: Any, start: int) -> Any:
        return cupy.ndarray(
            shape,
            FLOAT16,
            buffer.data + start * FLOAT16.itemsize,
            tuple(stride * FLOAT16.itemsize for stride in strides),
        )

    def on_host(self, shape: Any, strides: Any, start: int) -> np.ndarray[Any, Any]:
        return self.pattern[offsets(shape, strides, start) % PERIOD]

    def written(self) -> int:
        """Count the elements of out that aren't NaN; CuPy never indexes more than 2**30 at once."""
        words = self.out.view(np.uint16)
        parts = (words[begin : begin + 2**30] for begin in range(0, BUFFER, 2**30))
        return sum(int(cupy.count_nonzero(part != 0xFFFF)) for part in parts)

    def read(self, where: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Fetch elements of out by their offsets, each by itself: CuPy's indexing isn't tested."""
        values = [self.out[i : i + 1].get()[0] for i in where.ravel().tolist()]
        return np.array(values, FLOAT16).reshape(where.shape)


def offsets(shape: Any, strides: Any, start: int) -> np.ndarray[Any, Any]:
    total = np.full(shape, start, np.int64)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        total += steps.reshape((-1,) + (1,) * (len(shape) - 1 - axis))
    return total


def strides_of(shape: tuple[int, ...], far_axis: int | None) -> tuple[int, ...]:
    """Return C-order element strides, except of the axis whose elements lie FAR apart."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = FAR if axis == far_axis else step
        step *= 1 if axis == far_axis else shape[axis]
    return tuple(strides)


def repeated(pattern: np.ndarray[Any, Any], size: int) -> Any:
    """Return a buffer of the pattern again and again."""
    buffer = cupy.empty(size, pattern.dtype)
    buffer[: len(pattern)] = cupy.asarray(pattern)
    filled = len(pattern)
    while filled < size:
        more = min(filled, size - filled)
        buffer[filled : filled + more] = buffer[:more]
        filled += more
    return buffer


def demand(bytes_needed: int) -> None:
    """Skip a test for which the GPU has too little memory."""
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    free = cupy.cuda.runtime.memGetInfo()[0]
    if free < bytes_needed:
        pytest.skip(f"needs {bytes_needed:,} bytes of GPU memory, {free:,} are free")
