"""What the arrays of a backward call must be, beside those that the forward call has checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cupy_flash.arrays import ArrayInfo, describe, share_an_element, to_dtype
from cupy_flash.outputs import check_apart, check_result
from cupy_flash.problem import Problem

# Vector loads want addresses at its multiples.
WORKSPACE_ALIGNMENT = 16


def check_given(forward: Problem, arrays: Mapping[str, ArrayInfo]) -> None:
    """Refuse do, o, lse and dlse that can't belong to a forward call's results."""
    dtypes = {"out": to_dtype(forward.dtype), "lse": np.dtype(forward.accumulate)}
    shapes = {"out": forward.out_shape, "lse": forward.lse_shape}
    for name, result in (("do", "out"), ("o", "out"), ("lse", "lse"), ("dlse", "lse")):
        if name not in arrays:
            continue
        info, shape, dtype = arrays[name], shapes[result], dtypes[result]
        if info.shape != shape:
            way = ""
            if info.ndim == 0:
                way = f". The same number everywhere is numpy.broadcast_to({name}, {shape})"
            raise ValueError(
                f"attention_backward: {name} has shape {info.shape}; it must be {shape}, the shape "
                f"of {result}{way}"
            )
        if info.dtype != dtype:
            raise TypeError(
                f"attention_backward: {name} has dtype {info.dtype}; it must be {dtype.name}, the "
                f"dtype of {result}. Convert it: {name}.astype({dtype.name!r})"
            )


def given_outs(wrt: tuple[str, ...], out: Any) -> tuple[ArrayInfo | None, ...]:
    """Describe the arrays of out=, one or None for each name of wrt."""
    if out is None:
        return (None,) * len(wrt)
    if not isinstance(out, tuple):
        way = " For one array say out=(array,)" if len(wrt) == 1 else ""
        raise TypeError(
            f"attention_backward: out is a {type(out).__name__}; it must be a tuple of an array or "
            f"None for each name of wrt, {wrt}.{way}"
        )
    if len(out) != len(wrt):
        raise ValueError(
            f"attention_backward: out is a tuple of {len(out)}; it must have an array or None for "
            f"each name of wrt, {wrt}"
        )
    return tuple(None if x is None else describe(f"out[{i}]", x) for i, x in enumerate(out))


def check_outs(
    sources: Mapping[str, ArrayInfo],
    outs: tuple[ArrayInfo | None, ...],
    inputs: Mapping[str, ArrayInfo],
) -> dict[str, ArrayInfo]:
    """Refuse arrays that can't take the gradients; return those given, by what errors call them.

    Parameters
    ----------
    sources : mapping
        The arrays that the gradients belong to, in the order of `outs`.
    outs : tuple of ArrayInfo or None
    inputs : mapping
        Every array that the call reads, by the name of its argument.
    """
    results: dict[str, ArrayInfo] = {}
    for (name, source), info in zip(sources.items(), outs, strict=True):
        if info is None:
            continue
        label = f"the {name} array in out"
        check_result(label, info, source.shape, source.dtype, inputs)
        for other, earlier in results.items():
            check_apart(other, earlier, label, info)
        results[label] = info
    return results


def check_workspace(workspace: ArrayInfo, others: Mapping[str, ArrayInfo]) -> None:
    """Refuse scratch memory that isn't plain bytes, or lies over the call's other arrays."""
    if workspace.dtype != np.uint8:
        raise TypeError(
            f"attention_backward: workspace has dtype {workspace.dtype}; it must be uint8, one "
            "axis of bytes"
        )
    if workspace.ndim != 1:
        raise ValueError(
            f"attention_backward: workspace has shape {workspace.shape}; it must have one axis, of "
            "as many bytes as workspace_size says"
        )
    if workspace.module == "numpy":
        # Nothing is written there.
        return
    if workspace.shape[0] > 1 and workspace.strides != (1,):
        raise ValueError(
            f"attention_backward: workspace has strides {workspace.strides}; its bytes must be "
            "contiguous"
        )
    if workspace.pointer % WORKSPACE_ALIGNMENT:
        raise ValueError(
            f"attention_backward: workspace begins at address {workspace.pointer:#x}; it must be a "
            f"multiple of {WORKSPACE_ALIGNMENT}, as of every array that CuPy allocates"
        )
    for name, info in others.items():
        if share_an_element(workspace, info):
            raise ValueError(
                f"attention_backward: workspace shares memory with {name}; pass memory of its own"
            )
