"""The one struct that a softmax kernel takes by value: the mirror of softmax_params.cuh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.params import BATCH_AXES, LARGEST_GRID, OPERAND_DTYPE, merge_axes
from cupy_flash.softmaxes.problem import SoftmaxProblem
from cupy_flash.softmaxes.select import SoftmaxChoice, SoftmaxVariant

OPERANDS = ("x", "o", "m", "l")
# What only the launches of a call see.
WORKSPACE = ("m", "l")

_HEADER = ("rows", "columns", "parts", "part_columns")

PARAMS_DTYPE = np.dtype(
    {
        "names": [*_HEADER, "row_extent", *OPERANDS],
        "formats": [
            *[np.int64] * len(_HEADER),
            (np.int64, BATCH_AXES),
            *[OPERAND_DTYPE] * len(OPERANDS),
        ],
        "offsets": [*range(0, 40, 8), *range(64, 64 + 64 * len(OPERANDS), 64)],
        "itemsize": 64 + 64 * len(OPERANDS),
    }
)


@dataclass(frozen=True)
class SoftmaxLaunch:
    """One launch: its kernel, the struct's bytes and the number of blocks."""

    variant: SoftmaxVariant
    params: np.void
    grid: int


def operands(choice: SoftmaxChoice) -> tuple[str, ...]:
    """Return the operands of a choice's kernels."""
    return OPERANDS if choice.parts > 1 else ("x", "o")


def workspace_bytes(problem: SoftmaxProblem, choice: SoftmaxChoice) -> int:
    """Return the bytes of m, and of l: one number for each part of each row of a launch."""
    if choice.parts == 1:
        return 0
    rows = math.prod(_merged(problem)[0][1])
    return rows * choice.parts * to_dtype(problem.accumulate).itemsize


def softmax_launches(
    problem: SoftmaxProblem, choice: SoftmaxChoice, pointers: Mapping[str, int]
) -> Iterator[SoftmaxLaunch]:
    """Fill the struct for each launch of a call.

    One set of launches serves up to four axes of rows after merging; the rare problem with more of
    them gets one set for each index of its outer axes.

    Parameters
    ----------
    problem, choice
        The call and its kernels.
    pointers
        Address of element (0, ..., 0) of x and o, and of m and l if rows are in parts.
    """
    if problem.size == 0:
        return
    (outer, extents), strides = _merged(problem)
    params = np.zeros((), PARAMS_DTYPE)
    params["rows"], params["columns"] = math.prod(extents), problem.columns
    params["parts"], params["part_columns"] = choice.parts, choice.part_columns
    params["row_extent"] = (*extents, *(1,) * (BATCH_AXES - len(extents)))
    for name, operand in (("x", problem.x), ("o", problem.o)):
        params[name]["column"] = operand.column
        params[name]["batch"][: len(extents)] = strides[name][len(outer) :]
    for name in operands(choice)[2:]:
        params[name]["data"] = pointers[name]
    itemsize = to_dtype(problem.dtype).itemsize
    for index in itertools.product(*map(range, outer)):
        for name in ("x", "o"):
            steps = strides[name][: len(outer)]
            shift = sum(i * step for i, step in zip(index, steps, strict=True))
            params[name]["data"] = pointers[name] + shift * itemsize
        for variant in choice.variants:
            pieces = variant.tile.threads // variant.tile.lanes
            blocks = -(-math.prod(extents) * choice.parts // pieces)
            yield SoftmaxLaunch(
                variant, cast(np.void, params.copy()[()]), min(blocks, LARGEST_GRID)
            )


def _merged(
    problem: SoftmaxProblem,
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the extents of the rows' axes, outer ones and those of a launch, and all strides."""
    extents, strides = merge_axes(problem.row_shape, {"x": problem.x.batch, "o": problem.o.batch})
    outer = max(len(extents) - BATCH_AXES, 0)
    return (extents[:outer], extents[outer:]), strides
