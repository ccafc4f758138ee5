"""A backward call as numbers: the forward problem, and where its gradients go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cupy_flash.arrays import ArrayInfo, check_aligned, common_place, to_dtype
from cupy_flash.axes import (
    Operand,
    fresh_strides,
    memory_order,
    placed,
    without_columns,
    without_matrices,
)
from cupy_flash.backward.checks import check_given, check_outs, check_workspace, given_outs
from cupy_flash.gradients import check_wrt
from cupy_flash.options import INTEGERS, Options, boolean
from cupy_flash.problem import SMALL_ARRAYS, Problem, make_problem

# What has a number for each head and no matrices.
NUMBERS = ("sinks", "alibi_slopes", "scale")


@dataclass(frozen=True)
class Gradient:
    """Where the gradient of one array goes.

    Attributes
    ----------
    name : str
        Of the array.
    operand : Operand
        Strides in the problem's axes (batch..., head, row, column), 0 along those that the gradient
        is summed over. The head axis of k and v counts key heads.
    shape : tuple of int
        The array's own, and the gradient's.
    order : tuple of int or None
        The transposition that makes a fresh array of C order the gradient; None if none.
    batch : tuple of int
        Its own extents of the problem's batch axes, 1 where it is summed.
    heads, rows, columns : int
        Likewise of the head axis (for k and v, key heads), the rows and the columns.
    """

    name: str
    operand: Operand
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    batch: tuple[int, ...]
    heads: int
    rows: int
    columns: int


@dataclass(frozen=True)
class BackwardProblem:
    """Everything that decides the gradients' values and places, except the data.

    Attributes
    ----------
    forward : Problem
        Of the call with lse; o and lse are those that it returned.
    do, dlse : Operand
        Places of the gradients of out and of lse; None if lse has none.
    wrt : tuple of str
        What there are gradients of.
    gradients : tuple of Gradient
        One for each name of `wrt`.
    deterministic : bool
        Whether results must have the same bits on every run.
    """

    forward: Problem
    do: Operand
    dlse: Operand | None
    wrt: tuple[str, ...]
    gradients: tuple[Gradient, ...]
    deterministic: bool


def make_backward_problem(
    arrays: Mapping[str, ArrayInfo],
    options: Options,
    *,
    wrt: Any,
    out: Any = None,
    workspace: ArrayInfo | None = None,
    deterministic: Any = True,
) -> BackwardProblem:
    """Check a backward call and turn it into a BackwardProblem.

    Parameters
    ----------
    arrays : mapping
        "do", "q", "k", "v", "o" and "lse", and "dlse" if it is given.
    options : Options
        Of the forward call.
    wrt, out, workspace, deterministic
        As of `cupy_flash.attention_backward`.

    Raises
    ------
    TypeError, ValueError
        For every call that can't be computed; nothing has been written by then.
    """
    small = {name: info for name in SMALL_ARRAYS if (info := getattr(options, name)) is not None}
    inputs = {**arrays, **small}
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    forward = make_problem(q, k, v, replace(options, return_lse=True))
    check_wrt(wrt, {"q", "k", "v", "scale", *small})
    if "bias" in wrt and small["bias"].dtype in INTEGERS:
        raise TypeError(
            f"attention_backward: bias has dtype {small['bias'].dtype}, and wrt names it; a "
            "gradient of integers would be rounded to them. Convert it: bias.astype(numpy.float32)"
        )
    check_given(forward, arrays)
    is_deterministic = boolean("deterministic", deterministic)
    outs = given_outs(wrt, out)
    targets = {f"out[{i}]": info for i, info in enumerate(outs) if info is not None}
    extra = {} if workspace is None else {"workspace": workspace}
    common_place(inputs | targets | extra)
    for name, info in (inputs | targets).items():
        check_aligned(name, info)
    sources = inputs | {"scale": placed((), (), np.dtype(forward.accumulate))}
    results = check_outs({name: sources[name] for name in wrt}, outs, inputs)
    if workspace is not None:
        check_workspace(workspace, inputs | results)
    axes = forward.axes
    return BackwardProblem(
        forward=replace(
            forward,
            o=axes.operand(arrays["o"]),
            lse=axes.operand(without_columns(arrays["lse"])),
        ),
        do=axes.operand(arrays["do"]),
        dlse=axes.operand(without_columns(arrays["dlse"])) if "dlse" in arrays else None,
        wrt=wrt,
        gradients=tuple(
            _gradient(name, sources[name], info, forward)
            for name, info in zip(wrt, outs, strict=True)
        ),
        deterministic=is_deterministic,
    )


def _gradient(name: str, source: ArrayInfo, out: ArrayInfo | None, forward: Problem) -> Gradient:
    """Place one gradient: where `out` is, or fresh in the memory order of its array."""
    axes, order = forward.axes, None
    if out is None:
        strides = fresh_strides(source, source.shape, source.dtype.itemsize)
        order = memory_order(source.shape, strides)[1]
        out = placed(source.shape, strides, source.dtype)
    if name in NUMBERS:
        out = without_matrices(out)
    extents = (1,) * (axes.ndim - out.ndim) + out.shape
    return Gradient(
        name=name,
        operand=axes.operand(out),
        shape=source.shape,
        order=order,
        batch=extents[: len(axes.batch)],
        heads=extents[-3] if axes.has_heads else 1,
        rows=extents[-2],
        columns=extents[-1],
    )


def allocate(empty: Callable[..., Any], gradient: Gradient) -> Any:
    """Allocate a gradient through a module's `empty`, in the memory order that was planned."""
    dtype = to_dtype(gradient.operand.dtype)
    if gradient.order is None:
        return empty(gradient.shape, dtype=dtype)
    shape = [0] * len(gradient.shape)
    for axis, extent in zip(gradient.order, gradient.shape, strict=True):
        shape[axis] = extent
    return empty(tuple(shape), dtype=dtype).transpose(gradient.order)
