"""A softmax call as numbers: shape, strides, axis, method. All its user errors end here."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.arrays import (
    ArrayInfo,
    check_aligned,
    check_float,
    common_place,
    overlaps_itself,
    share_an_element,
)
from cupy_flash.axes import Operand, strides_in_order

METHODS = ("online", "three_pass")
PACK_BYTES = 16


@dataclass(frozen=True)
class SoftmaxProblem:
    """Everything that decides a softmax's values and places, except the data.

    Attributes
    ----------
    module, device
        "numpy" or "cupy", and the CUDA device.
    shape : tuple of int
        Of x and of the result.
    axis : int
        The axis that is summed over, not negative.
    method : str
        "online" or "three_pass".
    dtype, accumulate : str
        Element type of x and of the result; of maximum and sum.
    x, o : Operand
        Places of the elements: `batch` over the axes that tell rows apart, `column` along `axis`.
    o_strides : tuple of int
        Byte strides of the result in its own axes.
    aligned : bool
        Whether the rows of both arrays are contiguous and begin at multiples of 16 bytes.
    """

    module: str
    device: int | None
    shape: tuple[int, ...]
    axis: int
    method: str
    dtype: str
    accumulate: str
    x: Operand
    o: Operand
    o_strides: tuple[int, ...]
    aligned: bool

    @property
    def columns(self) -> int:
        """Length of a row."""
        return self.shape[self.axis]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Extents of the axes that tell rows apart."""
        return (*self.shape[: self.axis], *self.shape[self.axis + 1 :])

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)


def make_softmax_problem(
    x: ArrayInfo, axis: Any, method: Any, out: ArrayInfo | None = None
) -> SoftmaxProblem:
    """Check a call and turn it into a SoftmaxProblem.

    Raises
    ------
    TypeError, ValueError
        For every call that can't be computed; nothing has been written by then.
    """
    check_float("x", x.dtype, "softmax")
    _check_method(method)
    place = _axis(axis, x)
    arrays = {"x": x} if out is None else {"x": x, "out": out}
    module, device = common_place(arrays, "softmax")
    for name, info in arrays.items():
        check_aligned(name, info, "softmax")
    if out is not None:
        _check_out(out, x)
    strides = out.strides if out is not None else _fresh_strides(x)
    operands = [_operand(steps, x, place) for steps in (x.strides, strides)]
    addresses = (x.pointer, out.pointer if out is not None else 0)
    return SoftmaxProblem(
        module=module,
        device=device,
        shape=x.shape,
        axis=place,
        method=method,
        dtype=x.dtype.name,
        accumulate="float64" if x.dtype == np.float64 else "float32",
        x=operands[0],
        o=operands[1],
        o_strides=strides,
        aligned=all(
            _aligned(operand, address, x.dtype.itemsize)
            for operand, address in zip(operands, addresses, strict=True)
        ),
    )


def same_elements(a: ArrayInfo, b: ArrayInfo) -> bool:
    """Whether two arrays of one shape and dtype name the same element at every index."""
    moving = [axis for axis, extent in enumerate(a.shape) if extent > 1]
    return a.pointer == b.pointer and all(a.strides[i] == b.strides[i] for i in moving)


def _check_method(method: Any) -> None:
    if not isinstance(method, str) or method not in METHODS:
        allowed = " and ".join(map(repr, METHODS))
        raise ValueError(f"softmax: method is {method!r}; allowed are {allowed}")


def _axis(axis: Any, x: ArrayInfo) -> int:
    if isinstance(axis, tuple | list):
        raise TypeError(
            f"softmax: axis is {axis!r}; it must be one int. Make the axes one first, with "
            "x.reshape"
        )
    try:
        if isinstance(axis, bool | np.bool_):
            raise TypeError
        place = operator.index(axis)
    except TypeError:
        raise TypeError(f"softmax: axis is {axis!r}; it must be an int") from None
    if x.ndim == 0:
        raise ValueError("softmax: x has shape (), no axis to sum over; pass x[None]")
    if not -x.ndim <= place < x.ndim:
        raise ValueError(
            f"softmax: axis is {place} and x has shape {x.shape}; allowed are {-x.ndim} to "
            f"{x.ndim - 1}"
        )
    return place % x.ndim


def _check_out(out: ArrayInfo, x: ArrayInfo) -> None:
    if out.shape != x.shape:
        raise ValueError(f"softmax: out has shape {out.shape}; it must be x's, {x.shape}")
    if out.dtype != x.dtype:
        raise TypeError(
            f"softmax: out has dtype {out.dtype.name}; the result is {x.dtype.name}, and nothing "
            "is cast silently"
        )
    if not out.writable:
        raise ValueError("softmax: out is read-only; pass an array that can be written")
    if overlaps_itself(out):
        raise ValueError(
            f"softmax: out has elements that share memory (strides {out.strides}, shape "
            f"{out.shape}); pass an array of its own"
        )
    if not same_elements(out, x) and share_an_element(out, x):
        raise ValueError(
            "softmax: out shares memory with x, which is still read while out is written; pass x "
            "itself or another array"
        )


def _fresh_strides(x: ArrayInfo) -> tuple[int, ...]:
    """Byte strides of a new result: x's memory order, axes that broadcast outermost."""

    def reach(axis: int) -> float:
        moves = x.shape[axis] > 1 and x.strides[axis] != 0
        return abs(x.strides[axis]) if moves else math.inf

    order = sorted(range(x.ndim), key=reach, reverse=True)
    return strides_in_order(x.shape, order, x.dtype.itemsize)


def _operand(strides: tuple[int, ...], x: ArrayInfo, axis: int) -> Operand:
    """Return strides in elements, 0 where the extent is 1."""
    steps = [
        stride // x.dtype.itemsize if extent > 1 else 0
        for extent, stride in zip(x.shape, strides, strict=True)
    ]
    rows = (*steps[:axis], *steps[axis + 1 :])
    # A row of one element is as contiguous as any.
    return Operand(x.dtype.name, rows, column=steps[axis] if x.shape[axis] > 1 else 1)


def _aligned(operand: Operand, address: int, itemsize: int) -> bool:
    places = (address, *(step * itemsize for step in operand.batch))
    return operand.column == 1 and all(place % PACK_BYTES == 0 for place in places)
