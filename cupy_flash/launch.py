"""The last stage on a GPU: plan a call, allocate results, launch on the current stream."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cupy_flash import device as devices
from cupy_flash.arrays import ArrayInfo, byte_range, describe, to_dtype
from cupy_flash.compile import kernel
from cupy_flash.params import PARAMS_DTYPE, launches
from cupy_flash.plan import MOST_STEPS, Fresh, Key, Pair, Plan, Step, keep
from cupy_flash.problem import Problem, memory_order
from cupy_flash.select import Variant, choose

_WORD = 8
# Stands for every address while a call is planned, so that what is added to one may be negative.
_BASE = 1 << 62
# CuPy copies bytes without fields into a launch in a tenth of the time that a struct takes.
_BYTES = np.dtype((np.void, PARAMS_DTYPE.itemsize))


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
    variant = choose(problem, devices.actual(index)).variant
    given = dict(inputs) | {name: x for name, x in (("o", out), ("lse", lse)) if x is not None}
    with devices.import_cupy().cuda.Device(index):
        plan = make_plan(problem, variant, given)
        keep(key, plan)
        return run(plan, [x.data.ptr for x in given.values()], out, lse)


def make_plan(problem: Problem, variant: Variant, given: Mapping[str, Any]) -> Plan:
    """Plan a call of the arrays `given`, by operand; the problem's other results are fresh."""
    fresh = {}
    if "o" not in given:
        shape, axes = memory_order(problem)
        fresh["o"] = Fresh(shape, to_dtype(problem.dtype), axes)
    if "lse" not in given and problem.lse is not None:
        fresh["lse"] = Fresh(problem.lse_shape, to_dtype(problem.accumulate))
    places = {name: _place(name) for name in (*given, *fresh)}
    steps = _steps(problem, variant, places)
    first = tuple(itertools.islice(steps, MOST_STEPS + 1))
    return Plan(
        device=problem.device or 0,
        places=tuple(places.values()),
        pairs=tuple(_pairs({name: describe(name, x) for name, x in given.items()})),
        out=fresh.get("o"),
        lse=fresh.get("lse"),
        steps=first if len(first) <= MOST_STEPS else itertools.chain(first, steps),
    )


def _pairs(given: Mapping[str, ArrayInfo]) -> Iterator[Pair]:
    """Pair each result with the inputs and the results before it."""
    reaches = [tuple(end - info.pointer for end in byte_range(info)) for info in given.values()]
    positions = {name: i for i, (name, info) in enumerate(given.items()) if 0 not in info.shape}
    for other, result in itertools.combinations(positions, 2):
        if result in ("o", "lse"):
            i, j = positions[result], positions[other]
            (low, high), (other_low, other_high) = reaches[i], reaches[j]
            yield Pair(i, j, other_low - high, other_high - low)


def _place(name: str) -> int:
    """Return which word of the struct holds an operand's address."""
    fields = PARAMS_DTYPE.fields
    assert fields is not None
    operand, start = fields[name][:2]
    assert operand.fields is not None
    return (start + operand.fields["data"][1]) // _WORD


def _steps(problem: Problem, variant: Variant, places: Mapping[str, int]) -> Iterator[Step]:
    for launch in launches(problem, variant, dict.fromkeys(places, _BASE)):
        words = array("q", launch.params.tobytes())
        for place in places.values():
            words[place] -= _BASE
        yield Step(
            function=kernel(variant, problem.device or 0),
            grid=(launch.grid,),
            block=(variant.tile.threads,),
            shared_memory=variant.shared_memory,
            words=words,
        )


def run(plan: Plan, pointers: list[int], out: Any, lse: Any) -> tuple[Any, Any]:
    """Allocate the fresh results, fill in the addresses and launch.

    Parameters
    ----------
    plan : Plan
    pointers : list of int
        The addresses of the arrays given, in the plan's order; those of fresh results are added.
    out, lse : array or None
        The results given.

    Returns
    -------
    out, lse : array
        Given or fresh; lse None if the call doesn't want it.
    """
    cupy = devices.import_cupy()
    if cupy.cuda.runtime.getDevice() != plan.device:
        with cupy.cuda.Device(plan.device):
            return run(plan, pointers, out, lse)
    if plan.out is not None:
        out = _allocate(cupy, plan.out)
        pointers.append(out.data.ptr)
    if plan.lse is not None:
        lse = _allocate(cupy, plan.lse)
        pointers.append(lse.data.ptr)
    for step in plan.steps:
        words = step.words[:]
        for i, place in enumerate(plan.places):
            words[place] += pointers[i]
        params = np.frombuffer(words, _BYTES)[0]
        step.function(step.grid, step.block, (params,), shared_mem=step.shared_memory)
    return out, lse


def _allocate(cupy: Any, fresh: Fresh) -> Any:
    result = cupy.empty(fresh.shape, fresh.dtype)
    return result if fresh.axes is None else result.transpose(fresh.axes)
