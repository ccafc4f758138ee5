"""The last stage on a GPU: plan a call, allocate results, launch on the current stream."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from cupy_flash import device as devices
from cupy_flash.arrays import ArrayInfo, byte_range, describe, planned, to_dtype
from cupy_flash.axes import memory_order
from cupy_flash.compile import kernel
from cupy_flash.driver import Driver, driver
from cupy_flash.params import PARAMS_DTYPE, launches
from cupy_flash.plan import MOST_STEPS, Fresh, Key, Pair, Plan, keep
from cupy_flash.problem import Problem
from cupy_flash.select import choose, resident_blocks
from cupy_flash.source import AnyVariant
from cupy_flash.step import Step
from cupy_flash.variant import Variant

_WORD = 8
# Stands for every address while a call is planned, so that what is added to one may be negative.
BASE = 1 << 62

# Workspaces that graphs were captured with: each replay writes there, and nobody says when a graph
# is gone. Some kilobytes a call.
_captured: list[list[Any]] = []


def forward(
    problem: Problem, inputs: Mapping[str, Any], out: Any, lse: Any, key: Key | None = None
) -> tuple[Any, Any]:
    """Plan a checked call of CuPy arrays, run the plan, and keep it for calls with the same key.

    Parameters
    ----------
    problem : Problem
    inputs : mapping
        The input arrays by the name of their operand, in the key's order.
    out, lse : array or None
        Where to write; allocated where they are None.
    key : tuple, optional
        Of `plan.recall`. None keeps nothing.
    """
    index = problem.device or 0
    device = devices.actual(index)
    variant = choose(problem, device).variant
    if (better := device.with_warpgroups) and choose(problem, better).variant != variant:
        devices.warn_of_missing_warpgroups()
    given = dict(inputs) | {name: x for name, x in (("o", out), ("lse", lse)) if x is not None}
    with devices.import_cupy().cuda.Device(index):
        blocks = resident_blocks(problem, variant, device)
        plan = make_plan(problem, variant, given, blocks)
        keep(key, plan)
        return run(plan, [x.data.ptr for x in given.values()], out, lse)


def make_plan(
    problem: Problem, variant: Variant, given: Mapping[str, Any], blocks: int | None = None
) -> Plan:
    """Plan a call of the arrays `given`, by operand; the problem's other results are fresh.

    A launch has `blocks` blocks at most.
    """
    fresh = {}
    if "o" not in given:
        fresh["o"] = _fresh_out(problem)
    if "lse" not in given and problem.lse is not None:
        dtype = to_dtype(problem.accumulate)
        size = math.prod(problem.lse_shape) * dtype.itemsize
        fresh["lse"] = Fresh(problem.lse_shape, dtype, size)
    return Plan(
        device=problem.device or 0,
        pairs=tuple(overlap_pairs({name: describe(name, x) for name, x in given.items()})),
        out=fresh.get("o"),
        lse=fresh.get("lse"),
        steps=few_or_all(_steps(problem, variant, (*given, *fresh), blocks)),
    )


def _fresh_out(problem: Problem) -> Fresh:
    shape, axes = memory_order(problem.out_shape, problem.out_strides)
    info = planned(shape, to_dtype(problem.dtype))
    strides = None if axes is None else tuple(info.strides[axis] for axis in axes)
    return Fresh(problem.out_shape, info.dtype, math.prod(shape) * info.dtype.itemsize, strides)


def overlap_pairs(
    given: Mapping[str, ArrayInfo], results: Container[str] = ("o", "lse")
) -> Iterator[Pair]:
    """Pair each result with the inputs and the results before it."""
    reaches = [tuple(end - info.pointer for end in byte_range(info)) for info in given.values()]
    positions = {name: i for i, (name, info) in enumerate(given.items()) if 0 not in info.shape}
    for other, result in itertools.combinations(positions, 2):
        if result in results:
            i, j = positions[result], positions[other]
            (low, high), (other_low, other_high) = reaches[i], reaches[j]
            yield Pair(i, j, other_low - high, other_high - low)


def place(params: np.dtype[Any], name: str) -> int:
    """Return which word of a kernel's struct holds an operand's address."""
    fields = params.fields
    assert fields is not None
    operand, start = fields[name][:2]
    assert operand.fields is not None
    return (start + operand.fields["data"][1]) // _WORD


def _steps(
    problem: Problem, variant: Variant, operands: tuple[str, ...], blocks: int | None
) -> Iterator[Step]:
    places = [*enumerate(place(PARAMS_DTYPE, name) for name in operands)]
    for launch in launches(problem, variant, dict.fromkeys(operands, BASE), blocks):
        yield make_step(variant, problem.device or 0, launch.params, launch.grid, places)


def make_step(
    variant: AnyVariant,
    device: int,
    params: np.void,
    grid: int,
    places: Iterable[tuple[int, int]],
) -> Step:
    """Make a launch of a struct whose addresses count from `BASE`.

    `places` says which pointer goes to which word.
    """
    function = kernel(variant, device)
    words = array("q", params.tobytes())
    return Step(
        function=function,
        handle=function.kernel.ptr,
        grid=grid,
        threads=variant.tile.threads,
        shared_memory=variant.shared_memory,
        words=words,
        addresses=tuple((source, place, words[place] - BASE) for source, place in places),
    )


def few_or_all(steps: Iterator[Step]) -> Iterable[Step]:
    """Return a tuple of the launches, or an iterator where a plan can't hold so many."""
    first = tuple(itertools.islice(steps, MOST_STEPS + 1))
    return first if len(first) <= MOST_STEPS else itertools.chain(first, steps)


def run(plan: Plan, pointers: list[int], out: Any, lse: Any) -> tuple[Any, Any]:
    """Allocate the fresh results, fill in the addresses and launch.

    Parameters
    ----------
    plan : Plan
    pointers : list of int
        The addresses of the arrays given, in the plan's order; those of fresh results and of the
        workspace are added.
    out, lse : array or None
        The results given.

    Returns
    -------
    out, lse : array
        Given or fresh; lse None if the call doesn't want it.
    """
    cuda = driver()
    if cuda.current_device() != plan.device:
        with devices.import_cupy().cuda.Device(plan.device):
            return run(plan, pointers, out, lse)
    if plan.out is not None:
        out = allocate(cuda, plan.out)
        pointers.append(out.data.ptr)
    if plan.lse is not None:
        lse = allocate(cuda, plan.lse)
        pointers.append(lse.data.ptr)
    current = cuda.current_stream(plan.device)
    stream = current.ptr or cuda.default_stream
    if plan.workspace:
        # CuPy's allocator gives it again only to what follows on this stream.
        workspace = [cuda.allocate(size) for size in plan.workspace]
        pointers += [memory.ptr for memory in workspace]
        if current.is_capturing():
            _captured.append(workspace)
    for step in plan.steps:
        step.launch(cuda, stream, pointers)
    return out, lse


def allocate(cuda: Driver, fresh: Fresh) -> Any:
    """Allocate a result."""
    # cupy.empty asks for a contiguous array by name of its order, and a transposed view of it would
    # be a second array.
    return cuda.ndarray(fresh.shape, fresh.dtype, cuda.allocate(fresh.size), fresh.strides)
