"""The backward pass on a GPU: plan a call, allocate gradients and scratch, launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cupy_flash import device as devices
from cupy_flash.arrays import describe, planned, to_dtype
from cupy_flash.backward.params import backward_launches
from cupy_flash.backward.passes import Passes, make_passes, scratch_places
from cupy_flash.backward.problem import BackwardProblem, Gradient
from cupy_flash.driver import driver
from cupy_flash.launch import BASE, allocate, few_or_all, make_step, overlap_pairs
from cupy_flash.plan import BackwardPlan, Fresh, Key, keep
from cupy_flash.step import Step

_WORD = 8


def workspace_bytes(problem: BackwardProblem) -> int:
    """Return the bytes of scratch that a call takes."""
    return make_passes(problem, devices.actual(problem.forward.device or 0)).workspace


def backward(
    problem: BackwardProblem,
    inputs: Mapping[str, Any],
    out: Sequence[Any],
    workspace: Any,
    key: Key | None = None,
) -> tuple[Any, ...]:
    """Plan a checked call of CuPy arrays, run the plan, and keep it for calls with the same key.

    Parameters
    ----------
    problem : BackwardProblem
    inputs : mapping
        The input arrays by name, in the key's order.
    out : sequence of array or None
        Where each gradient goes; allocated where it is None.
    workspace : array or None
        Scratch that the caller owns.
    key : tuple, optional
        Of `plan.recall`. None keeps nothing.

    Returns
    -------
    tuple of array
    """
    index = problem.forward.device or 0
    device = devices.actual(index)
    passes = make_passes(problem, device)
    if (better := device.with_warpgroups) and make_passes(problem, better) != passes:
        devices.warn_of_missing_warpgroups()
    with devices.import_cupy().cuda.Device(index):
        plan = make_plan(problem, passes, inputs, out, workspace)
        keep(key, plan)
        return run(plan, [x.data.ptr for x in inputs.values()], out, workspace)


def make_plan(
    problem: BackwardProblem,
    passes: Passes,
    inputs: Mapping[str, Any],
    out: Sequence[Any],
    workspace: Any = None,
) -> BackwardPlan:
    """Plan a call of the arrays `inputs` and those of `out` and `workspace` that are given."""
    results = {f"d{name}": x for name, x in zip(problem.wrt, out, strict=True)}
    written = {**results, "workspace": workspace}
    given = dict(inputs) | {name: x for name, x in written.items() if x is not None}
    infos = {name: describe(name, x) for name, x in given.items()}
    names = (*inputs, *results, *passes.scratch)
    return BackwardPlan(
        device=problem.forward.device or 0,
        inputs=len(inputs),
        pairs=tuple(overlap_pairs(infos, written)),
        fresh=tuple(
            _fresh(gradient) if x is None else None
            for gradient, x in zip(problem.gradients, out, strict=True)
        ),
        steps=few_or_all(_steps(problem, passes, names)),
        scratch=tuple(place for _, place in scratch_places(passes)),
        workspace=passes.workspace,
    )


def _fresh(gradient: Gradient) -> Fresh:
    dtype, order = to_dtype(gradient.operand.dtype), gradient.order
    if order is None:
        return Fresh(gradient.shape, dtype, math.prod(gradient.shape) * dtype.itemsize)
    # `order` takes the axes in memory to the gradient's own.
    in_memory = [0] * len(order)
    for axis, place in enumerate(order):
        in_memory[place] = gradient.shape[axis]
    strides = planned(tuple(in_memory), dtype).strides
    return Fresh(
        gradient.shape,
        dtype,
        math.prod(gradient.shape) * dtype.itemsize,
        tuple(strides[place] for place in order),
    )


def _steps(problem: BackwardProblem, passes: Passes, names: tuple[str, ...]) -> Iterator[Step]:
    position = {name: i for i, name in enumerate(names)}
    for launch in backward_launches(problem, passes, dict.fromkeys(names, BASE)):
        places = [(position[name], byte // _WORD) for name, byte in launch.places]
        device = problem.forward.device or 0
        yield make_step(launch.variant, device, launch.params, launch.grid, places)


def run(
    plan: BackwardPlan, pointers: list[int], out: Sequence[Any], workspace: Any
) -> tuple[Any, ...]:
    """Allocate what is missing, fill in the addresses and launch.

    Parameters
    ----------
    plan : BackwardPlan
    pointers : list of int
        The addresses of the inputs, in the plan's order; any after them are left out.
    out : sequence of array or None
    workspace : array or None
    """
    cuda = driver()
    if cuda.current_device() != plan.device:
        with devices.import_cupy().cuda.Device(plan.device):
            return run(plan, pointers, out, workspace)
    current = cuda.current_stream(plan.device)
    if workspace is not None and workspace.size < plan.workspace:
        raise ValueError(
            f"attention_backward: workspace has {workspace.size} bytes; these gradients take "
            f"{plan.workspace} (cupy_flash.workspace_size)"
        )
    missing = [fresh for fresh in plan.fresh if fresh is not None]
    if (missing or (workspace is None and plan.workspace)) and current.is_capturing():
        what = "out" if missing else "workspace"
        raise ValueError(
            f"attention_backward: the current stream is being captured and {what} is None; a graph "
            "writes to the same memory at each replay, so own it: pass out= and workspace= (of "
            f"{plan.workspace} bytes here, cupy_flash.workspace_size)"
        )
    gradients = tuple(
        given if fresh is None else allocate(cuda, fresh)
        for given, fresh in zip(out, plan.fresh, strict=True)
    )
    # CuPy's allocator gives it again only to what follows on this stream.
    scratch = cuda.allocate(plan.workspace) if workspace is None else workspace.data
    pointers = pointers[: plan.inputs]
    pointers += [gradient.data.ptr for gradient in gradients]
    pointers += [scratch.ptr + place for place in plan.scratch]
    stream = current.ptr or cuda.default_stream
    for step in plan.steps:
        step.launch(cuda, stream, pointers)
    return gradients
