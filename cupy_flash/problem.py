"""A call as numbers: shapes, element strides, dtypes, options, device. All user errors end here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.arrays import (
    ArrayInfo,
    check_aligned,
    common_place,
    overlaps_itself,
    promote,
    share_an_element,
    to_dtype,
)
from cupy_flash.axes import (
    Operand,
    contiguous_strides,
    fresh_strides,
    leading_axes,
    lengths_operand,
    placed,
)
from cupy_flash.options import Options


@dataclass(frozen=True)
class Problem:
    """Everything that decides a result's values and places, except the data.

    Attributes
    ----------
    module, device
        "numpy" or "cupy", and the CUDA device.
    batch : tuple of int
        Leading axes after broadcasting, without the head axis.
    heads, kv_heads : int
        Query heads and key heads; query head h uses key head h // (heads // kv_heads).
        1 and 1 for problems of fewer than four dimensions.
    m, n, d, p : int
        Rows of q, rows of k and v, columns of q and k, columns of v.
    q, k, v, o, lse, q_lengths, k_lengths : Operand
        Places of the elements; lse and the lengths may be None.
    dtype, accumulate : str
        Element type of out; of the running sums and of lse.
    scale : float
        Factor of q k^T.
    causal : bool
        Row i sees key j only if j <= i + offset.
    offset : int or None
        Row i stands at key i + offset; None: k_length - q_length of each batch entry.
    """

    module: str
    device: int | None
    batch: tuple[int, ...]
    heads: int
    kv_heads: int
    m: int
    n: int
    d: int
    p: int
    q: Operand
    k: Operand
    v: Operand
    o: Operand
    lse: Operand | None
    q_lengths: Operand | None
    k_lengths: Operand | None
    dtype: str
    accumulate: str
    scale: float
    causal: bool
    offset: int | None
    precision: str | None
    kernel: str | None
    out_shape: tuple[int, ...]

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """Shape of lse: out's without the columns."""
        return self.out_shape[:-1]

    @property
    def out_strides(self) -> tuple[int, ...]:
        """Element strides of out in its own axes; 0 where the extent is 1."""
        has_heads = len(self.out_shape) == len(self.batch) + 3
        head = (self.o.head,) if has_heads else ()
        return (*self.o.batch, *head, self.o.row, self.o.column)

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.heads // max(self.kv_heads, 1)

    @property
    def entries(self) -> int:
        """How many (batch entry, query head) pairs there are."""
        return math.prod(self.batch) * self.heads


def make_problem(
    q: ArrayInfo,
    k: ArrayInfo,
    v: ArrayInfo,
    options: Options,
    out: ArrayInfo | None = None,
    lse: ArrayInfo | None = None,
) -> Problem:
    """Check a call and turn it into a Problem.

    Raises
    ------
    TypeError, ValueError
        For every call that can't be computed; nothing has been written by then.
    """
    arrays = {"q": q, "k": k, "v": v}
    inputs = arrays | {
        name: info
        for name, info in (("q_lengths", options.q_lengths), ("k_lengths", options.k_lengths))
        if info is not None
    }
    outputs = {name: info for name, info in (("out", out), ("lse", lse)) if info is not None}
    for name, info in arrays.items():
        if info.ndim < 2:
            raise ValueError(
                f"attention: {name} has shape {info.shape}; at least two axes are needed, "
                f"(rows, columns). For a single row say {name}[None]"
            )
    dtype = promote(arrays)
    module, device = common_place(inputs | outputs)
    for name, info in (inputs | outputs).items():
        check_aligned(name, info)
    axes = leading_axes(q, k, v)
    m, n, d, p = _matrix_sizes(q, k, v)
    batch, heads = axes.batch, axes.heads
    if max(q.ndim, k.ndim, v.ndim) > 3:
        leading: tuple[int, ...] = (*batch, heads)
    else:
        leading = batch
    out_shape = (*leading, m, p)
    lengths = {
        name: lengths_operand(name, info, batch)
        for name, info in (("q_lengths", options.q_lengths), ("k_lengths", options.k_lengths))
    }
    accumulate = "float64" if dtype == np.float64 else "float32"
    _check_outputs(inputs, out, lse, out_shape, dtype, np.dtype(accumulate), options)
    offset = options.offset
    if offset is None and options.q_lengths is None and options.k_lengths is None:
        offset = n - m
    if options.kernel is not None and module == "numpy":
        raise ValueError(
            f"attention: kernel={options.kernel!r} needs CuPy arrays; NumPy arrays take the "
            "blocked NumPy path, kernel=None"
        )
    o_strides = out.strides if out is not None else fresh_strides(q, out_shape, dtype.itemsize)
    o_operand = axes.operand(placed(out_shape, o_strides, dtype))
    lse_operand = None
    if options.return_lse or lse is not None:
        lse_dtype = np.dtype(accumulate)
        lse_strides = (
            lse.strides
            if lse is not None
            else contiguous_strides(out_shape[:-1], lse_dtype.itemsize)
        )
        column = placed((*out_shape[:-1], 1), (*lse_strides, lse_dtype.itemsize), lse_dtype)
        lse_operand = axes.operand(column)
    default_scale = 1.0 / math.sqrt(d) if d else 1.0
    return Problem(
        module=module,
        device=device,
        batch=batch,
        heads=heads,
        kv_heads=axes.kv_heads,
        m=m,
        n=n,
        d=d,
        p=p,
        q=axes.operand(q),
        k=axes.operand(k),
        v=axes.operand(v),
        o=o_operand,
        lse=lse_operand,
        q_lengths=lengths["q_lengths"],
        k_lengths=lengths["k_lengths"],
        dtype=dtype.name,
        accumulate=accumulate,
        scale=default_scale if options.scale is None else options.scale,
        causal=options.causal,
        offset=offset,
        precision=options.precision,
        kernel=options.kernel,
        out_shape=out_shape,
    )


def _matrix_sizes(q: ArrayInfo, k: ArrayInfo, v: ArrayInfo) -> tuple[int, int, int, int]:
    (m, d), (n, k_d), (v_n, p) = (info.shape[-2:] for info in (q, k, v))
    if k_d != d:
        raise ValueError(
            f"attention: q has {d} columns {q.shape} and k has {k_d} {k.shape}; they must be equal"
        )
    if v_n != n:
        way = ". Is v transposed? It takes one row per key" if p == n else ""
        raise ValueError(
            f"attention: k has {n} rows {k.shape} and v has {v_n} {v.shape}; they must be "
            f"equal{way}"
        )
    return m, n, d, p


def _check_outputs(
    inputs: dict[str, ArrayInfo],
    out: ArrayInfo | None,
    lse: ArrayInfo | None,
    out_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    lse_dtype: np.dtype[Any],
    options: Options,
) -> None:
    if lse is not None and not options.return_lse:
        raise ValueError(
            "attention: out= holds an array for lse, but return_lse is False; say return_lse=True"
        )
    wanted = (("out", out, out_shape, dtype), ("lse", lse, out_shape[:-1], lse_dtype))
    for name, info, shape, element in wanted:
        if info is None:
            continue
        label = "out" if name == "out" else "the lse array in out"
        if info.shape != shape:
            raise ValueError(f"attention: {label} has shape {info.shape}; it must be {shape}")
        if info.dtype != element:
            raise TypeError(
                f"attention: {label} has dtype {info.dtype.name}; the result is {element.name}, "
                "and nothing is cast silently"
            )
        if not info.writable:
            raise ValueError(f"attention: {label} is read-only; pass an array that can be written")
        if overlaps_itself(info):
            raise ValueError(
                f"attention: {label} has elements that share memory (strides {info.strides}, "
                f"shape {info.shape}); pass an array of its own"
            )
        for other, source in inputs.items():
            if share_an_element(info, source):
                raise ValueError(
                    f"attention: {label} shares memory with {other}, which is still read while "
                    "out is written; pass another array"
                )
    if out is not None and lse is not None and share_an_element(out, lse):
        raise ValueError("attention: out and the lse array in out share memory")


def memory_order(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape of a fresh out with its axes in memory order, outermost first.

    And the transposition that puts them in out's order; None if they are.
    """
    strides, shape = problem.out_strides, problem.out_shape
    # The stride of an axis of extent 1 means nothing.
    moving = [axis for axis in range(len(shape)) if shape[axis] > 1]
    if all(strides[a] >= strides[b] for a, b in itertools.pairwise(moving)):
        return shape, None
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    axes = sorted(range(len(order)), key=order.__getitem__)
    return tuple(shape[axis] for axis in order), tuple(axes)


def allocate(empty: Callable[..., Any], problem: Problem) -> Any:
    """Allocate out through a module's `empty`, in the memory order that the problem planned."""
    shape, axes = memory_order(problem)
    out = empty(shape, dtype=to_dtype(problem.dtype))
    return out if axes is None else out.transpose(axes)
