"""Axes and strides: which axis of an array is which axis of the problem, and where results lie."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cupy_flash.arrays import ArrayInfo


@dataclass(frozen=True)
class Operand:
    """Where the elements of one array lie, in the problem's axes (batch..., head, row, column).

    Attributes
    ----------
    dtype : str
        Element type.
    batch : tuple of int
        Stride of each batch axis, in elements; 0 where the axis broadcasts. The lengths have no
        other strides.
    head, row, column : int
        Likewise of the head axis, the rows and the columns; lse has no columns, ALiBi's slopes and
        the sinks have neither. The columns of mask and bias are the keys.
    unit : int
        Every row consists of aligned units of so many bytes, 16 or 4, or must be copied by element,
        2 (for 16-bit elements of q, k and v).
    """

    dtype: str
    batch: tuple[int, ...]
    head: int = 0
    row: int = 0
    column: int = 0
    unit: int = 2


@dataclass(frozen=True)
class LeadingAxes:
    """The axes before the matrices: how each array's own axes map onto the problem's."""

    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    has_heads: bool

    @property
    def leading(self) -> tuple[int, ...]:
        """Out's leading axes."""
        return (*self.batch, self.heads) if self.has_heads else self.batch

    @property
    def ndim(self) -> int:
        """Axes of out."""
        return len(self.batch) + self.has_heads + 2

    def operand(self, info: ArrayInfo) -> Operand:
        """Return an array's strides in the problem's axes."""
        itemsize = info.dtype.itemsize
        ndim = self.ndim
        missing = ndim - info.ndim
        shape = (1,) * missing + info.shape
        strides = (0,) * missing + tuple(stride // itemsize for stride in info.strides)
        # The stride of an axis of extent 1 means nothing; 0 also makes it broadcast.
        steps = [stride if extent > 1 else 0 for extent, stride in zip(shape, strides, strict=True)]
        head = steps[-3] if self.has_heads else 0
        return Operand(
            info.dtype.name,
            tuple(steps[: len(self.batch)]),
            head,
            steps[-2],
            steps[-1],
            unit=_unit(info, shape[-1], steps),
        )


def without_columns(info: ArrayInfo) -> ArrayInfo:
    """Describe an array over (leading axes, rows), such as lse, as one of a single column."""
    shape, strides = (*info.shape, 1), (*info.strides, info.dtype.itemsize)
    return replace(info, shape=shape, strides=strides)


def without_matrices(info: ArrayInfo) -> ArrayInfo:
    """Describe an array over the leading axes, such as the sinks, as one of 1 x 1 matrices."""
    return replace(info, shape=(*info.shape, 1, 1), strides=(*info.strides, 0, 0))


def _unit(info: ArrayInfo, columns: int, steps: list[int]) -> int:
    if steps[-1] != 1 and columns > 1:
        return 2
    places = (info.pointer, *(x * info.dtype.itemsize for x in (columns, *steps[:-1])))
    return next((unit for unit in (16, 4) if all(place % unit == 0 for place in places)), 2)


def leading_axes(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo) -> LeadingAxes:
    """Broadcast the leading axes of q, k and v, or raise the ValueError that says why not."""
    arrays = {"q": q, "k": k, "v": v}
    shapes = {name: f"{name} {info.shape}" for name, info in arrays.items()}
    listing = ", ".join(shapes.values())
    ndim = max(info.ndim for info in arrays.values())
    if ndim < 4:
        try:
            batch = np.broadcast_shapes(*(info.shape[:-2] for info in arrays.values()))
        except ValueError:
            raise ValueError(
                f"attention: axis -3 of {listing} doesn't broadcast. With three dimensions it is "
                "a batch axis; if it is the head axis (grouped heads allowed), say q[None], "
                "k[None], v[None]"
            ) from None
        return LeadingAxes(batch, 1, 1, has_heads=False)
    padded = {name: (1,) * (ndim - info.ndim) + info.shape for name, info in arrays.items()}
    try:
        batch = np.broadcast_shapes(*(shape[:-3] for shape in padded.values()))
    except ValueError:
        raise ValueError(
            f"attention: the leading axes of {listing} don't broadcast (axes before -3, as in "
            "numpy.matmul)"
        ) from None
    q_heads, k_heads, v_heads = (shape[-3] for shape in padded.values())
    if k_heads != v_heads and 1 not in (k_heads, v_heads):
        raise ValueError(
            f"attention: k has {k_heads} heads and v has {v_heads} ({listing}; axis -3); they must "
            "be equal, or one of them 1"
        )
    kv_heads = v_heads if k_heads == 1 else k_heads
    if q_heads == 1:
        return LeadingAxes(batch, kv_heads, kv_heads, has_heads=True)
    if (q_heads and not kv_heads) or (kv_heads and q_heads % kv_heads):
        raise ValueError(
            f"attention: k has {kv_heads} heads and q has {q_heads} ({listing}; axis -3); the "
            "number of query heads must be a multiple of the number of key heads"
        )
    return LeadingAxes(batch, q_heads, kv_heads, has_heads=True)


def lengths_operand(name: str, info: ArrayInfo | None, batch: tuple[int, ...]) -> Operand | None:
    """Return the strides of lengths over the batch axes, or raise a ValueError."""
    if info is None:
        return None
    if not _broadcasts(info.shape, batch):
        raise ValueError(
            f"attention: {name} has shape {info.shape}; it must broadcast to the batch axes {batch}"
        )
    missing = len(batch) - info.ndim
    steps = [
        stride // info.dtype.itemsize if extent > 1 else 0
        for extent, stride in zip(info.shape, info.strides, strict=True)
    ]
    return Operand(info.dtype.name, (0,) * missing + tuple(steps))


def pairs_operand(
    name: str, info: ArrayInfo | None, axes: LeadingAxes, rows_and_keys: tuple[int, int]
) -> Operand | None:
    """Return the strides of an array over (leading..., m, n), or raise a ValueError."""
    if info is None:
        return None
    shape = (*axes.leading, *rows_and_keys)
    if _broadcasts(info.shape, shape):
        return axes.operand(info)
    way = ""
    if axes.batch and _broadcasts(info.shape, (*axes.batch, rows_and_keys[1])):
        indices = "..., None, None, :" if axes.has_heads else "..., None, :"
        way = f". For one value per key of each batch entry say {name}[{indices}]"
    elif axes.has_heads and _broadcasts(info.shape, (*axes.batch, *rows_and_keys)):
        way = f". For the same values in all heads say {name}[..., None, :, :]"
    raise ValueError(
        f"attention: {name} has shape {info.shape}; it must broadcast to {shape}, out's leading "
        f"axes, the rows and the keys{way}"
    )


def heads_operand(name: str, info: ArrayInfo | None, axes: LeadingAxes) -> Operand | None:
    """Return the strides of an array over out's leading axes, or raise a ValueError."""
    if info is None:
        return None
    if not _broadcasts(info.shape, axes.leading):
        way = ""
        if axes.has_heads and _broadcasts(info.shape, axes.batch):
            way = f". For one number per batch entry say {name}[..., None]"
        raise ValueError(
            f"attention: {name} has shape {info.shape}; it must broadcast to out's leading axes "
            f"{axes.leading}{way}"
        )
    return axes.operand(without_matrices(info))


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    # Not numpy.broadcast_shapes: rows times keys times heads may be more than an array can have.
    ends = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(extent in (1, wanted) for extent, wanted in ends)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a C-contiguous array."""
    return strides_in_order(shape, range(len(shape)), itemsize)


def strides_in_order(
    shape: tuple[int, ...], order: Sequence[int], itemsize: int
) -> tuple[int, ...]:
    """Byte strides of a dense array whose axes lie in memory from `order[0]` outermost."""
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


def fresh_strides(x: ArrayInfo, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a new result: x's memory order, so that a caller's swapaxes stays a view.

    Out is like q, a gradient like its array. Leading axes that x lacks or broadcasts over come
    outermost; a matrix axis without a stride of its own keeps its place, columns innermost.
    """
    ndim = len(shape)
    missing = ndim - x.ndim
    extents = (1,) * missing + x.shape
    strides = (0,) * missing + x.strides
    outermost = max((abs(stride) for stride in strides), default=0) + 1

    def reach(axis: int) -> int:
        if extents[axis] > 1 and strides[axis] != 0:
            return abs(strides[axis])
        return outermost if axis < ndim - 2 else ndim - 1 - axis

    order = sorted(range(ndim), key=reach, reverse=True)
    return strides_in_order(shape, order, itemsize)


def memory_order(
    shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of a dense array with its axes in memory order, outermost first.

    And the transposition that puts them in their own order; None if they are.
    """
    # The stride of an axis of extent 1 means nothing.
    moving = [axis for axis in range(len(shape)) if shape[axis] > 1]
    if all(strides[a] >= strides[b] for a, b in itertools.pairwise(moving)):
        return shape, None
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    axes = sorted(range(len(order)), key=order.__getitem__)
    return tuple(shape[axis] for axis in order), tuple(axes)


def placed(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayInfo:
    """Describe strides alone, for a result that has no address yet."""
    return ArrayInfo("", None, shape, strides, dtype, 0)
