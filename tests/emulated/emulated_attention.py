"""`attention` with its last stage on the CPU: same Problem, Variant, text and params, emulated."""

from __future__ import annotations

import dataclasses
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np

from cupy_flash.arrays import ArrayInfo, describe
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.params import PARAMS_DTYPE, launches
from cupy_flash.problem import Problem, allocate, make_problem
from cupy_flash.select import choose
from cupy_flash.source import source
from cupy_flash.variant import Variant
from emulation import EmulatedKernel, Region, build
from layouts import Strided, strided
from problems import DTYPES, Arrays, result_dtype

SENTINEL = 7.0


@functools.cache
def emulated(variant: Variant, folder: Path | None, strict: bool) -> EmulatedKernel:
    text = source(variant, folder)
    path = build(text, variant.entry, PARAMS_DTYPE.itemsize, strict=strict)
    return EmulatedKernel(path, variant.entry, PARAMS_DTYPE.itemsize)


def as_cupy(info: ArrayInfo) -> ArrayInfo:
    return dataclasses.replace(info, module="cupy", device=0)


@dataclasses.dataclass
class Result:
    out: np.ndarray[Any, Any]
    lse: np.ndarray[Any, Any]
    variant: Variant
    problem: Problem


def attention(
    arrays: Arrays,
    kernel: str,
    *,
    schedule: int = 0,
    folder: Path | None = None,
    strict: bool = True,
    arch: int = 90,
    grid: int | None = None,
    tile: Any = None,
) -> Result:
    """Run a case's kernel on the CPU and check that it wrote its results and nothing else."""
    case = arrays.case
    infos = {name: as_cupy(describe(name, x.numpy())) for name, x in arrays.inputs().items()}
    options = arrays.options()
    small = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    options |= {name: as_cupy(describe(name, x)) for name, x in small.items()}
    checked = check_options(**options, precision=case.precision, return_lse=True, kernel=kernel)
    plan = make_problem(*infos.values(), checked)
    result = DTYPES[result_dtype(case)]
    targets: dict[str, Strided] = {
        "lse": strided(plan.lse_shape, np.dtype(plan.accumulate), "contiguous", SENTINEL)
    }
    if case.out_layout is not None:
        targets["out"] = strided(plan.out_shape, result, case.out_layout, SENTINEL)
        out = targets["out"].numpy()
    else:
        out = allocate(np.empty, plan)
        out[...] = SENTINEL
    lse = targets["lse"].numpy()
    problem = make_problem(
        *infos.values(), checked, as_cupy(describe("out", out)), as_cupy(describe("lse", lse))
    )
    variant = choose(problem, assumed(arch)).variant
    if tile is not None:
        variant = dataclasses.replace(variant, tile=tile)
    function = emulated(variant, folder, strict)
    hosts = {name: x.numpy() for name, x in arrays.inputs().items()} | small
    hosts |= {"o": out, "lse": lse}
    regions = [
        Region.of(name, x, writable=name in ("o", "lse")) for name, x in hosts.items() if x.size
    ]
    watched = arrays.inputs() | arrays.small()
    before = {name: x.buffer.copy() for name, x in watched.items()}
    pointers = {name: describe(name, x).pointer for name, x in hosts.items()}
    for launch in launches(problem, variant, pointers):
        function.launch(
            launch.params,
            launch.grid if grid is None else min(grid, launch.grid),
            variant.tile.threads,
            variant.shared_memory,
            regions,
            schedule,
            seed=case.seed,
            landing=schedule % 2,
            flush_subnormals=variant.accumulate == "float32",
        )
    for name, x in watched.items():
        unsigned = f"u{x.buffer.itemsize}"
        assert (x.buffer.view(unsigned) == before[name].view(unsigned)).all(), f"{name} changed"
    for name, target in targets.items():
        untouched = np.array(SENTINEL, target.buffer.dtype).view(f"u{target.buffer.itemsize}")
        assert (target.outside() == untouched).all(), f"something beside {name} was written"
    return Result(out, lse, variant, problem)


def some_schedule(seed: int) -> int:
    """Pick a thread schedule: mostly the in-order and the two greedy ones, which find races."""
    return random.Random(seed).choice((0, 3, 4, 3, 1, 2))
