"""A call as numbers: shapes, element strides, dtypes, options, device. All user errors end here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.arrays import (
    ArrayInfo,
    check_aligned,
    common_place,
    promote,
    to_dtype,
)
from cupy_flash.axes import (
    LeadingAxes,
    Operand,
    contiguous_strides,
    fresh_strides,
    heads_operand,
    leading_axes,
    lengths_operand,
    memory_order,
    pairs_operand,
    placed,
    without_columns,
)
from cupy_flash.options import Options
from cupy_flash.outputs import check_outputs

# Inputs beside q, k and v, by the names of their arguments, in the order of a plan's key.
SMALL_ARRAYS = ("mask", "bias", "alibi_slopes", "sinks", "q_lengths", "k_lengths")


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
    q, k, v, o, lse, q_lengths, k_lengths, mask, bias, alibi_slopes, sinks : Operand
        Places of the elements; None for a result that isn't wanted, and for options not given.
    dtype, accumulate : str
        Element type of out; of the running sums and of lse.
    scale : float
        Factor of q k^T.
    softcap : float or None
        Scaled scores s become softcap tanh(s / softcap).
    left, right : int or None
        Row i sees key j only if i + offset - left <= j <= i + offset + right; None: no bound.
        Causal is right = 0.
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
    mask: Operand | None
    bias: Operand | None
    alibi_slopes: Operand | None
    sinks: Operand | None
    dtype: str
    accumulate: str
    scale: float
    softcap: float | None
    left: int | None
    right: int | None
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
        head = (self.o.head,) if self.axes.has_heads else ()
        return (*self.o.batch, *head, self.o.row, self.o.column)

    @property
    def axes(self) -> LeadingAxes:
        """The axes before the matrices."""
        has_heads = len(self.out_shape) == len(self.batch) + 3
        return LeadingAxes(self.batch, self.heads, self.kv_heads, has_heads)

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
        name: info for name in SMALL_ARRAYS if (info := getattr(options, name)) is not None
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
    out_shape = (*axes.leading, m, p)
    small = _small_operands(options, axes, (m, n))
    accumulate = "float64" if dtype == np.float64 else "float32"
    check_outputs(inputs, out, lse, out_shape, dtype, np.dtype(accumulate), options.return_lse)
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
        lse_operand = axes.operand(without_columns(placed(out_shape[:-1], lse_strides, lse_dtype)))
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
        **small,
        dtype=dtype.name,
        accumulate=accumulate,
        scale=default_scale if options.scale is None else options.scale,
        softcap=options.softcap,
        left=options.left,
        right=options.right,
        offset=offset,
        precision=options.precision,
        kernel=options.kernel,
        out_shape=out_shape,
    )


def _small_operands(
    options: Options, axes: LeadingAxes, rows_and_keys: tuple[int, int]
) -> dict[str, Operand | None]:
    return {
        "q_lengths": lengths_operand("q_lengths", options.q_lengths, axes.batch),
        "k_lengths": lengths_operand("k_lengths", options.k_lengths, axes.batch),
        "mask": pairs_operand("mask", options.mask, axes, rows_and_keys),
        "bias": pairs_operand("bias", options.bias, axes, rows_and_keys),
        "alibi_slopes": heads_operand("alibi_slopes", options.alibi_slopes, axes),
        "sinks": heads_operand("sinks", options.sinks, axes),
    }


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


def allocate(empty: Callable[..., Any], problem: Problem) -> Any:
    """Allocate out through a module's `empty`, in the memory order that the problem planned."""
    shape, axes = memory_order(problem.out_shape, problem.out_strides)
    out = empty(shape, dtype=to_dtype(problem.dtype))
    return out if axes is None else out.transpose(axes)
