"""The one struct that a kernel takes by value: the mirror of kernels_cu/params.cuh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.axes import Operand
from cupy_flash.problem import Problem
from cupy_flash.variant import Variant

BATCH_AXES = 4
OPERANDS = (
    *("q", "k", "v", "o", "lse", "q_lengths", "k_lengths"),
    *("mask", "bias", "alibi_slopes", "sinks"),
)

OPERAND_DTYPE = np.dtype(
    {
        "names": ["data", "head", "row", "column", "batch"],
        "formats": [np.uint64, np.int64, np.int64, np.int64, (np.int64, BATCH_AXES)],
        "offsets": [0, 8, 16, 24, 32],
        "itemsize": 64,
    }
)

_HEADER: dict[str, Any] = {
    "m": np.int64,
    "n": np.int64,
    "d": np.int64,
    "p": np.int64,
    "heads": np.int64,
    "group": np.int64,
    "row_tiles": np.int64,
    "tiles": np.int64,
    "offset": np.int64,
    "left": np.int64,
    "right": np.int64,
    "scale_q": np.float64,
    "scale_s": np.float64,
    "p_scale": np.float64,
    "softcap": np.float64,
    "scale_softcap": np.float64,
    "batch_extent": (np.int64, BATCH_AXES),
    "unit": np.float64,
    "reserved": (np.int64, 3),
}
_HEADER_SIZE = 192

PARAMS_DTYPE = np.dtype(
    {
        "names": [*_HEADER, *OPERANDS],
        "formats": [*_HEADER.values(), *[OPERAND_DTYPE] * len(OPERANDS)],
        "offsets": [
            *itertools.accumulate(
                (np.dtype(kind).itemsize for kind in [*_HEADER.values()][:-1]), initial=0
            ),
            *range(_HEADER_SIZE, _HEADER_SIZE + 64 * len(OPERANDS), 64),
        ],
        "itemsize": _HEADER_SIZE + 64 * len(OPERANDS),
    }
)

# CUDA's limit of grid.x; a block takes every grid-th tile, so more tiles still work.
LARGEST_GRID = 2**31 - 1


@dataclass(frozen=True)
class Launch:
    """One launch: the struct's bytes and the number of blocks."""

    params: np.void
    grid: int


def split_scale(scale: float, accumulate: str) -> tuple[float, float]:
    """Split a scale into a power of two for q and a factor for the scores.

    Scaling q by the power of two is exact and keeps q k^T from overflowing where the scaled score
    doesn't; a scale from 1 to 2**100 goes to the scores alone, since there the product is the
    smaller one.
    Both stay within float32's normal numbers where the sums run in it: the power between 2**-100
    and 2**100, and the rest at most float32's largest number, so that 0 times it is 0.
    """
    exponent = math.frexp(scale)[1] - 1 if scale else 0
    if exponent >= 0:
        exponent = 0 if accumulate == "float64" else max(exponent - 100, 0)
    power = math.ldexp(1.0, min(max(exponent, -100), 100))
    rest = scale / power
    if accumulate == "float32":
        largest = float(np.finfo(np.float32).max)
        rest = min(max(rest, -largest), largest)
    return power, rest


def split_scale_sm80(scale: float, dtype: str) -> tuple[float, float]:
    """Split a scale into a factor of q in 16 bits and a positive one of the scores.

    The factor of q is exact: the sign, and for bfloat16, whose products can overflow float32, also
    the power of two of a scale below 1. A scale of 0 is a factor 0 of q. Products of float16 stay
    below 2**41.
    """
    if scale == 0:
        return 0.0, 1.0
    exponent = min(math.frexp(scale)[1] - 1, 0) if dtype == "bfloat16" else 0
    power = math.ldexp(math.copysign(1.0, scale), exponent)
    return power, scale / power


# Larger caps are taken as these, which change no score of ordinary size either: the quotient of
# such a score and a larger cap would lose its bits in subnormal numbers.
LARGEST_SOFTCAP = {"float32": 2.0**100, "float64": 2.0**900}


def split_softcap(softcap: float | None, scale_s: float, accumulate: str) -> tuple[float, float]:
    """Return c and the factor of q k^T that makes the argument of tanh; zeros without a cap.

    The factor is at most the largest number of the type that sums run in, so that 0 times it is 0.
    """
    if softcap is None:
        return 0.0, 0.0
    cap = min(softcap, LARGEST_SOFTCAP[accumulate])
    # In NumPy's float64, whose quotient overflows to infinity instead of raising.
    with np.errstate(over="ignore"):
        factor = float(np.float64(scale_s) / np.float64(cap))
    largest = float(np.finfo(accumulate).max)
    return cap, min(max(factor, -largest), largest)


def probability_scale(n: int) -> float:
    """Return a power of two s with n * s <= 1/2: sums of s * exp(S - m) * v can't overflow."""
    return math.ldexp(1.0, -(max(n - 1, 0).bit_length() + 1))


# P in float16 reaches from 2**-24 to 65504. With this factor weights down to exp(-20) of the
# largest keep all their bits, and those down to exp(-27) count.
SM80_FLOAT16_P_SCALE = 2.0**15


def launches(
    problem: Problem, variant: Variant, pointers: Mapping[str, int], blocks: int | None = None
) -> Iterator[Launch]:
    """Fill the struct for each launch of a call.

    One launch serves up to four batch axes after merging; the rare problem with more of them gets
    one launch for each index of its outer axes.

    Parameters
    ----------
    problem, variant
        The call and its kernel.
    pointers
        Address of element (0, ..., 0) of each operand that the problem has.
    blocks
        How many a launch has at most, which take tiles in turns.
    """
    if problem.entries == 0 or problem.m == 0:
        return
    if problem.p == 0 and problem.lse is None:
        return
    operands = {
        name: operand for name in OPERANDS if (operand := getattr(problem, name)) is not None
    }
    extents, strides = merge_axes(
        problem.batch, {name: operand.batch for name, operand in operands.items()}
    )
    outer = len(extents) - BATCH_AXES
    outer_extents = extents[: max(outer, 0)]
    template = fill_params(problem, variant, operands, extents[len(outer_extents) :])
    for name in operands:
        inner = strides[name][len(outer_extents) :]
        template[name]["batch"][: len(inner)] = inner
    grid = min(int(template["tiles"]), blocks or LARGEST_GRID)
    for index in itertools.product(*map(range, outer_extents)):
        params = template.copy()
        for name, operand in operands.items():
            steps = strides[name][: len(outer_extents)]
            shift = sum(i * step for i, step in zip(index, steps, strict=True))
            params[name]["data"] = pointers[name] + shift * to_dtype(operand.dtype).itemsize
        yield Launch(cast(np.void, params[()]), grid)


def fill_params(
    problem: Problem,
    variant: Variant,
    operands: Mapping[str, Operand],
    extents: tuple[int, ...],
) -> np.ndarray[tuple[()], np.dtype[np.void]]:
    """Return the struct without addresses and batch strides, for batch axes of these extents."""
    params = np.zeros((), PARAMS_DTYPE)
    row_tiles = -(-problem.m // variant.tile.block_m)
    params["m"], params["n"] = problem.m, problem.n
    params["d"], params["p"] = problem.d, problem.p
    params["heads"], params["group"] = problem.heads, problem.group
    params["row_tiles"] = row_tiles
    params["batch_extent"] = (*extents, *(1,) * (BATCH_AXES - len(extents)))
    params["tiles"] = row_tiles * problem.heads * math.prod(extents)
    for name in ("offset", "left", "right"):
        params[name] = getattr(problem, name) or 0
    scales, p_scale = _scales(problem, variant)
    params["scale_q"], params["scale_s"] = scales
    params["p_scale"] = p_scale
    softcap = split_softcap(problem.softcap, scales[1], problem.accumulate)
    params["softcap"], params["scale_softcap"] = softcap
    params["unit"] = _unit(problem, scales[1], softcap[0])
    for name, operand in operands.items():
        entry = params[name]
        entry["head"], entry["row"], entry["column"] = operand.head, operand.row, operand.column
    return params


def _scales(problem: Problem, variant: Variant) -> tuple[tuple[float, float], float]:
    p_scale = probability_scale(problem.n)
    if variant.family not in ("sm80", "sm90"):
        return split_scale(problem.scale, problem.accumulate), p_scale
    # Sums of P v in float32 can't overflow where v is float16.
    return (
        split_scale_sm80(problem.scale, problem.dtype),
        SM80_FLOAT16_P_SCALE if problem.dtype == "float16" else p_scale,
    )


def _unit(problem: Problem, scale_s: float, softcap: float) -> float:
    """Return the natural scores that one of sm80's is: the last factor is left to the weights."""
    if problem.bias or problem.alibi_slopes:
        return 1.0
    return softcap or scale_s


def merge_axes(
    extents: tuple[int, ...], strides: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Drop axes of extent 1 and merge neighbours that every operand steps through evenly."""
    kept: list[int] = []
    steps: dict[str, list[int]] = {name: [] for name in strides}
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        mergeable = bool(kept) and all(
            steps[name][-1] == strides[name][axis] * extent for name in strides
        )
        if mergeable:
            kept[-1] *= extent
            for name in strides:
                steps[name][-1] = strides[name][axis]
        else:
            kept.append(extent)
            for name in strides:
                steps[name].append(strides[name][axis])
    return tuple(kept), {name: tuple(s) for name, s in steps.items()}
