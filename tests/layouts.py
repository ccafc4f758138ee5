"""Arrays of every memory layout, inside buffers whose other elements are watched."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LAYOUTS = (
    "contiguous",
    "swapped",
    "transposed",
    "sliced",
    "negative",
    "unaligned",
    "broadcast",
)
# Results can't broadcast: elements that share memory are refused.
OUT_LAYOUTS = tuple(layout for layout in LAYOUTS if layout != "broadcast")
# Rows at multiples of so many elements. Those of 16 bits then begin at multiples of 16 or 4 bytes
# whatever their length, so that they may end inside such a unit.
PITCHES = {"pitch 8": 8, "pitch 2": 2}
# Rows that begin at multiples of 16 elements, but for one thing: they lie an odd number of elements
# apart, or the first one begins at an odd element.
ODD_LAYOUTS = ("odd pitch", "odd address")

# Whole pieces of 16 bytes of any dtype.
MARGIN = 32


@dataclass
class Strided:
    """A strided view of a one-dimensional buffer, on the host and on the GPU.

    The buffer holds a margin before and after the view, and gaps inside it where the strides leave
    any; `fill` is in all of them, NaN unless said otherwise.
    """

    buffer: np.ndarray[Any, Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int
    layout: str
    _on_gpu: Any = field(default=None, repr=False)

    def numpy(self, buffer: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        buffer = self.buffer if buffer is None else buffer
        itemsize = buffer.itemsize
        if 0 in self.shape:
            return np.empty(self.shape, buffer.dtype)
        return np.ndarray(
            self.shape,
            buffer.dtype,
            buffer,
            self.start * itemsize,
            tuple(step * itemsize for step in self.strides),
        )

    def places(self) -> np.ndarray[Any, Any]:
        """Return where in the buffer each element of the view lies."""
        places = np.full(self.shape, self.start, np.int64)
        for axis, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(extent, dtype=np.int64) * stride
            places += steps.reshape((-1,) + (1,) * (len(self.shape) - 1 - axis))
        return places

    def cupy(self) -> Any:
        import cupy

        if self._on_gpu is None:
            self._on_gpu = cupy.empty(self.buffer.shape, self.buffer.dtype)
            self._on_gpu.set(self.buffer)
        itemsize = self.buffer.itemsize
        return cupy.ndarray(
            self.shape,
            self.buffer.dtype,
            self._on_gpu.data + self.start * itemsize,
            tuple(step * itemsize for step in self.strides),
        )

    def fetch(self) -> np.ndarray[Any, Any]:
        """Return the buffer as it is on the GPU now."""
        return self._on_gpu.get()

    def outside(self, buffer: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the bytes of the elements that the view does not name."""
        buffer = self.buffer if buffer is None else buffer
        named = np.zeros(buffer.shape, bool)
        self.numpy(np.asarray(named))[...] = True
        unsigned = f"u{buffer.itemsize}"
        return buffer.view(unsigned)[~named]


def strided(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layout: str,
    fill: float = float("nan"),
    margin: int = MARGIN,
) -> Strided:
    """Make a view of the given layout in a buffer of `fill`, `margin` elements before and after."""
    ndim = len(shape)
    order = list(range(ndim))
    factor = [1] * ndim
    extents = [max(extent, 1) for extent in shape]
    shift = 0
    if layout == "swapped" and ndim >= 3:
        order[-3], order[-2] = order[-2], order[-3]
    elif layout == "transposed":
        order[-2], order[-1] = order[-1], order[-2]
    elif layout == "sliced":
        factor = [2] + [1] * (ndim - 1)
        factor[-1] = 3
        factor[-2] = 2
    elif layout == "unaligned":
        # With the odd pitch of an even number of columns, rows start at every alignment.
        shift = 1
        extents[-1] += 1
    elif layout == "odd pitch":
        extents[-1] |= 1
    elif layout == "odd address":
        shift = 1
        extents[-1] += -extents[-1] % 16
    elif layout in PITCHES:
        extents[-1] += -extents[-1] % PITCHES[layout]
    strides, step = [0] * ndim, 1
    for axis in reversed(order):
        strides[axis] = step * factor[axis]
        step *= extents[axis] * factor[axis]
    start = margin + shift
    if layout == "negative":
        strides = [-stride for stride in strides]
    if layout == "broadcast":
        strides = [0 if axis < ndim - 2 else stride for axis, stride in enumerate(strides)]
        if ndim == 2:
            strides[0] = 0
    reach = [stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True)]
    low = sum(min(r, 0) for r in reach) if 0 not in shape else 0
    high = sum(max(r, 0) for r in reach) if 0 not in shape else 0
    start -= low
    buffer = np.full(start + high + 1 + margin, fill, dtype)
    return Strided(buffer, shape, tuple(strides), start, layout)


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
