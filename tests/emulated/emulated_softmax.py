"""`softmax` with its last stage on the CPU: same problem, kernels, text and params, emulated."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np

from cupy_flash.arrays import ArrayInfo, describe
from cupy_flash.device import assumed
from cupy_flash.softmaxes.blocked import allocate
from cupy_flash.softmaxes.params import (
    PARAMS_DTYPE,
    WORKSPACE,
    operands,
    softmax_launches,
    workspace_bytes,
)
from cupy_flash.softmaxes.problem import make_softmax_problem
from cupy_flash.softmaxes.select import SoftmaxChoice, SoftmaxVariant, choose_softmax
from cupy_flash.source import source
from emulation import EmulatedKernel, Region, build
from layouts import strided
from softmaxes import SENTINEL, SoftmaxCase

Array = np.ndarray[Any, Any]


@functools.cache
def emulated(variant: SoftmaxVariant, folder: Path | None, strict: bool) -> EmulatedKernel:
    path = build(source(variant, folder), variant.entry, PARAMS_DTYPE.itemsize, strict=strict)
    return EmulatedKernel(path, variant.entry, PARAMS_DTYPE.itemsize)


def as_cupy(info: ArrayInfo) -> ArrayInfo:
    return dataclasses.replace(info, module="cupy", device=0)


def run(
    x: Array,
    axis: int = -1,
    method: str = "online",
    out: Array | None = None,
    *,
    schedule: int = 0,
    seed: int = 0,
    folder: Path | None = None,
    strict: bool = True,
    grid: int | None = None,
    choice: SoftmaxChoice | None = None,
) -> tuple[Array, SoftmaxChoice]:
    """Run the kernels of a call; the workspace holds NaN before, and nothing else is touched."""
    info = as_cupy(describe("x", x))
    if out is None:
        out = allocate(make_softmax_problem(info, axis, method))
        out[...] = SENTINEL
    problem = make_softmax_problem(info, axis, method, as_cupy(describe("out", out)))
    choice = choice or choose_softmax(problem, assumed(90))
    size = workspace_bytes(problem, choice) // np.dtype(problem.accumulate).itemsize
    hosts = {"x": x, "o": out}
    if choice.parts > 1:
        hosts |= {name: np.full(size, np.nan, problem.accumulate) for name in WORKSPACE}
    regions = [
        Region.of(name, a, writable=name != "x" or a is out) for name, a in hosts.items() if a.size
    ]
    pointers = {name: describe(name, hosts[name]).pointer for name in operands(choice)}
    for launch in softmax_launches(problem, choice, pointers):
        emulated(launch.variant, folder, strict).launch(
            launch.params,
            launch.grid if grid is None else min(grid, launch.grid),
            launch.variant.tile.threads,
            launch.variant.shared_memory,
            regions,
            schedule,
            seed=seed,
            flush_subnormals=problem.accumulate == "float32",
        )
    return out, choice


def softmax(
    case: SoftmaxCase, *, schedule: int = 0, folder: Path | None = None, strict: bool = True
) -> tuple[Array, Array]:
    """Run a case; return x and the result, once nothing beside the result was written."""
    placed = case.build()
    x = placed.numpy()
    before = placed.buffer.copy()
    target = None
    if case.out_layout is not None:
        target = strided(case.shape, x.dtype, case.out_layout, SENTINEL)
    out, _ = run(
        x,
        case.axis,
        case.method,
        None if target is None else target.numpy(),
        schedule=schedule,
        seed=case.seed,
        folder=folder,
        strict=strict,
    )
    assert placed.buffer.tobytes() == before.tobytes(), "x changed"
    if target is not None:
        untouched = np.array(SENTINEL, x.dtype).view(f"u{x.itemsize}")
        assert (target.outside() == untouched).all(), "something beside out was written"
    return x, out
