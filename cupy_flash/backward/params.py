"""The structs that the kernels of the backward pass take by value, for each launch of a call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.axes import Operand
from cupy_flash.backward.passes import STATISTICS_ROWS, GradientPass, Own, Passes, SumPass
from cupy_flash.backward.problem import BackwardProblem
from cupy_flash.params import (
    BATCH_AXES,
    LARGEST_GRID,
    OPERAND_DTYPE,
    OPERANDS,
    PARAMS_DTYPE,
    fill_params,
    merge_axes,
)
from cupy_flash.source import AnyVariant
from cupy_flash.variant import Variant

# Operands beside those of a forward call.
BACKWARD_OPERANDS = (
    *("d_o", "dlse", "statistics", "dq", "dk", "dv", "dbias"),
    *("bias_sums", "slope_sums", "scale_sums", "sink_sums"),
)
_HEADER: dict[str, Any] = {
    "forward": PARAMS_DTYPE,
    "own_tiles": np.int64,
    "tiles": np.int64,
    "own_heads": np.int64,
    "shared_heads": np.int64,
    "shares": np.int64,
    "chunks": np.int64,
    "chunk_keys": np.int64,
    "lse_unit": np.float64,
    "own_batch": (np.int64, BATCH_AXES),
    "shared_batch": (np.int64, BATCH_AXES),
    "p_exponent": np.float64,
    "together": np.int64,
    "reserved": (np.int64, 6),
}


def _struct(fields: Mapping[str, Any]) -> np.dtype[Any]:
    sizes = [np.dtype(kind).itemsize for kind in fields.values()]
    offsets = [*itertools.accumulate(sizes, initial=0)]
    return np.dtype(
        {
            "names": [*fields],
            "formats": [*fields.values()],
            "offsets": offsets[:-1],
            "itemsize": offsets[-1],
        }
    )


BACKWARD_DTYPE = _struct(_HEADER | dict.fromkeys(BACKWARD_OPERANDS, OPERAND_DTYPE))
SUM_DTYPE = _struct(
    {
        "targets": np.int64,
        "terms": np.int64,
        "kept": (np.int64, BATCH_AXES + 3),
        "summed": (np.int64, BATCH_AXES + 3),
        "source": OPERAND_DTYPE,
        "target": OPERAND_DTYPE,
    }
)
# What blocks that run at a time read again should fit in: most of an H200's L2 cache of 50 MB.
L2_BYTES = 32 << 20
# P of sm80 in float16 carries two to this, as in a forward call: normal numbers down to 2**-29.
SM80_FLOAT16_P_EXPONENT = 15


@dataclass(frozen=True)
class BackwardLaunch:
    """One launch: its kernel, the struct's bytes, where addresses go, and the number of blocks.

    Attributes
    ----------
    variant : AnyVariant
    params : numpy.void
        Addresses count from the pointers given.
    places : tuple of (str, int)
        Name of each array, and the struct's byte that its address belongs to.
    grid : int
    """

    variant: AnyVariant
    params: np.void
    places: tuple[tuple[str, int], ...]
    grid: int


def backward_launches(
    problem: BackwardProblem, passes: Passes, pointers: Mapping[str, int]
) -> Iterator[BackwardLaunch]:
    """Fill the struct for each launch of a call.

    Parameters
    ----------
    problem, passes
        The call and what it launches.
    pointers
        Address of element (0, ..., 0) of each input by name, of each gradient by "d" and the name
        in wrt, of each scratch array.
    """
    yield from _statistics(problem, passes, pointers)
    for one in passes.gradients:
        yield from _gradients(problem, passes, one, pointers)
    for total in passes.sums:
        yield from _sums(total, pointers)


def _sources(operands: Iterable[str]) -> dict[str, str]:
    """Return the arguments, gradients and scratch arrays that operands are, by their own names."""
    return {name: "do" if name == "d_o" else name for name in operands}


def _inputs(problem: BackwardProblem) -> dict[str, Operand]:
    """Return the operands of the inputs by their names in the struct."""
    given = {name: getattr(problem.forward, name) for name in OPERANDS}
    given |= {"d_o": problem.do, "dlse": problem.dlse}
    return {name: operand for name, operand in given.items() if operand is not None}


@dataclass(frozen=True)
class _Axes:
    """Batch axes after merging: outer ones, with a launch for each index, and those of a launch."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    own: tuple[bool, ...]
    strides: Mapping[str, tuple[int, ...]]


def _axes(extents: tuple[int, ...], operands: Mapping[str, Operand], own: Own) -> _Axes:
    # As one more array, so that axes with gradients of their own don't merge with others.
    marks = tuple(
        math.prod(own.batch[axis + 1 :]) if own.batch[axis] > 1 else 0
        for axis in range(len(own.batch))
    )
    batches = {name: operand.batch for name, operand in operands.items()}
    extents, strides = merge_axes(extents, batches | {"": marks})
    order = sorted(range(len(extents)), key=lambda axis: strides[""][axis] == 0)
    outer = max(len(extents) - BATCH_AXES, 0)
    if outer == 0:
        order = list(range(len(extents)))
    own_axes = tuple(strides[""][axis] != 0 for axis in order)
    if not all(own_axes[:outer]):
        raise NotImplementedError(
            "attention_backward: a gradient is the sum over more than four batch axes of strides "
            "that don't merge; pass copies of the arrays, whose strides do"
        )
    return _Axes(
        outer=tuple(extents[axis] for axis in order[:outer]),
        inner=tuple(extents[axis] for axis in order[outer:]),
        own=own_axes[outer:],
        strides={
            name: tuple(steps[axis] for axis in order)
            for name, steps in strides.items()
            if name in operands
        },
    )


def _padded(extents: Sequence[int], length: int = BATCH_AXES) -> tuple[int, ...]:
    return (*extents, *(1,) * (length - len(extents)))


def _own_and_shared(axes: _Axes) -> tuple[list[int], list[int]]:
    """Return the extents of a launch's axes that have gradients of their own, and of the others."""
    pairs = list(zip(axes.inner, axes.own, strict=True))
    return [x if own else 1 for x, own in pairs], [1 if own else x for x, own in pairs]


def _filled(
    problem: BackwardProblem,
    variant: Variant,
    operands: Mapping[str, Operand],
    axes: _Axes,
) -> Any:
    """Return the struct of a launch without addresses; of its kernel `variant` has the tile."""
    params = np.zeros((), BACKWARD_DTYPE)
    inputs = {name: x for name, x in operands.items() if name in OPERANDS}
    params["forward"] = fill_params(problem.forward, variant, inputs, axes.inner)
    for name, operand in operands.items():
        entry = _entry(params, name)
        entry["head"], entry["row"], entry["column"] = operand.head, operand.row, operand.column
        inner = axes.strides[name][len(axes.outer) :]
        entry["batch"][: len(inner)] = inner
    params["lse_unit"] = 1
    if variant.family == "sm80":
        params["lse_unit"] = math.log2(math.e)
        if problem.forward.dtype == "float16":
            params["p_exponent"] = SM80_FLOAT16_P_EXPONENT
    return params


def _entry(params: Any, name: str) -> Any:
    return params["forward"][name] if name in OPERANDS else params[name]


def _place(struct: np.dtype[Any], name: str) -> int:
    """Return the byte of a struct that holds an operand's address."""
    fields = (PARAMS_DTYPE if name in OPERANDS else struct).fields
    assert fields is not None
    return int(fields[name][1])


def _launches(
    variant: AnyVariant,
    params: Any,
    sources: Mapping[str, str],
    operands: Mapping[str, Operand],
    axes: _Axes,
    pointers: Mapping[str, int],
    grid: int,
) -> Iterator[BackwardLaunch]:
    """Fill the addresses, once for each index of the outer axes.

    `sources` says what each operand of the struct is, by its name in `pointers`.
    """
    places = tuple((source, _place(params.dtype, name)) for name, source in sources.items())
    for index in itertools.product(*map(range, axes.outer)):
        filled = params.copy()
        for name, source in sources.items():
            steps = axes.strides[name][: len(axes.outer)]
            shift = sum(i * step for i, step in zip(index, steps, strict=True))
            itemsize = to_dtype(operands[name].dtype).itemsize
            if name == "statistics":
                itemsize *= 2
            _entry(filled, name)["data"] = pointers[source] + shift * itemsize
        yield BackwardLaunch(variant, cast(np.void, filled[()]), places, grid)


def _statistics(
    problem: BackwardProblem, passes: Passes, pointers: Mapping[str, int]
) -> Iterator[BackwardLaunch]:
    call, variant = problem.forward, passes.statistics
    operands = _inputs(problem) | {"statistics": passes.scratch["statistics"].operand}
    if "sink_sums" in passes.scratch:
        operands["sink_sums"] = passes.scratch["sink_sums"].operand
    axes = _axes(call.batch, operands, Own(call.batch, call.heads))
    params = _filled(problem, replace(passes.forward, tile=variant.tile), operands, axes)
    rows = -(-call.m // STATISTICS_ROWS) * STATISTICS_ROWS
    row_tiles = -(-rows // variant.tile.block_m)
    tiles = row_tiles * call.heads * math.prod(axes.inner)
    params["forward"]["row_tiles"], params["forward"]["tiles"] = row_tiles, tiles
    if tiles:
        sources = _sources(operands)
        grid = min(tiles, LARGEST_GRID)
        yield from _launches(variant, params, sources, operands, axes, pointers, grid)


def _gradients(
    problem: BackwardProblem, passes: Passes, one: GradientPass, pointers: Mapping[str, int]
) -> Iterator[BackwardLaunch]:
    call, variant, own = problem.forward, one.variant, one.own
    gradients = {gradient.name: gradient.operand for gradient in problem.gradients}
    scratch = {name: found.operand for name, found in passes.scratch.items()}
    inputs = _inputs(problem)
    operands = inputs | {"statistics": scratch["statistics"]}
    sources = _sources(operands)
    for name, source in one.results.items():
        operands[name] = gradients[source] if source in gradients else scratch[source]
        sources[name] = f"d{source}" if source in gradients else source
    axes = _axes(call.batch, operands, own)
    params = _filled(problem, variant.forward, operands, axes)
    extent = call.n if variant.keys else call.m
    own_tiles = -(-extent // variant.tile.block_m)
    chunks = 1 if one.chunk_keys is None else max(-(-call.n // one.chunk_keys), 1)
    own_batch, shared = _own_and_shared(axes)
    tiles = own_tiles * chunks * own.heads * math.prod(own_batch)
    params["own_tiles"], params["chunks"], params["tiles"] = own_tiles, chunks, tiles
    params["chunk_keys"] = one.chunk_keys or max(call.n, 1)
    params["own_heads"], params["shared_heads"] = own.heads, call.heads // max(own.heads, 1)
    params["shares"] = params["shared_heads"] * math.prod(shared)
    params["together"] = _entries_together(problem, variant.keys)
    params["own_batch"], params["shared_batch"] = _padded(own_batch), _padded(shared)
    if tiles:
        grid = min(tiles, LARGEST_GRID)
        yield from _launches(variant, params, sources, operands, axes, pointers, grid)


def _entries_together(problem: BackwardProblem, keys: bool) -> int:
    """Return of how many entries what passes by fits in the L2 cache."""
    call = problem.forward
    first, second = (call.q, problem.do) if keys else (call.k, call.v)
    sizes = (to_dtype(x.dtype).itemsize * y for x, y in ((first, call.d), (second, call.p)))
    return max(L2_BYTES // max((call.m if keys else call.n) * sum(sizes), 1), 1)


def _sums(total: SumPass, pointers: Mapping[str, int]) -> Iterator[BackwardLaunch]:
    gradient = total.gradient
    operands = {"source": total.operand, "target": gradient.operand}
    *batch, heads, rows, columns = total.extents
    axes = _axes(tuple(batch), operands, Own(gradient.batch, gradient.heads))
    params = np.zeros((), SUM_DTYPE)
    own_batch, shared = _own_and_shared(axes)
    ends = [
        (gradient.heads, heads // gradient.heads),
        (gradient.rows, rows // gradient.rows),
        (gradient.columns, columns // gradient.columns),
    ]
    params["kept"] = (*_padded(own_batch), *(kept for kept, _ in ends))
    params["summed"] = (*_padded(shared), *(summed for _, summed in ends))
    params["targets"], params["terms"] = params["kept"].prod(), params["summed"].prod()
    for name, operand in operands.items():
        entry = params[name]
        entry["head"], entry["row"], entry["column"] = operand.head, operand.row, operand.column
        inner = axes.strides[name][len(axes.outer) :]
        entry["batch"][: len(inner)] = inner
    team = total.variant.tile.threads if not total.variant.team else 1
    grid = min(-(-int(params["targets"]) // team), LARGEST_GRID)
    sources = {"source": total.source, "target": f"d{gradient.name}"}
    yield from _launches(total.variant, params, sources, operands, axes, pointers, grid)
