"""The gradients of `attention` on the CPU: the launches that a GPU would get, emulated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backward_problems import Backward
from cupy_flash import reference
from cupy_flash.accuracy import accumulation
from cupy_flash.arrays import describe
from cupy_flash.backward.params import BACKWARD_DTYPE, SUM_DTYPE, backward_launches
from cupy_flash.backward.passes import Passes, make_passes
from cupy_flash.backward.problem import make_backward_problem
from cupy_flash.backward.variant import SumVariant
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.source import AnyVariant, source
from emulated_attention import SENTINEL, as_cupy
from emulation import EmulatedKernel, Region, build
from layouts import Strided, strided
from problems import DTYPES, result_dtype

Array = np.ndarray[Any, Any]
STRUCTS = {SumVariant: SUM_DTYPE}


@functools.cache
def emulated(variant: AnyVariant, folder: Path | None, strict: bool) -> EmulatedKernel:
    struct = STRUCTS.get(type(variant), BACKWARD_DTYPE)
    path = build(source(variant, folder), variant.entry, struct.itemsize, strict=strict)
    return EmulatedKernel(path, variant.entry, struct.itemsize)


@dataclasses.dataclass
class Gradients:
    found: dict[str, Array]
    passes: Passes


def attention_backward(
    call: Backward,
    kernel: str,
    *,
    layouts: Mapping[str, str] | None = None,
    schedule: int = 0,
    folder: Path | None = None,
    strict: bool = True,
    arch: int = 90,
    precision: str | None = None,
    grid: int | None = None,
    block_order: int = 0,
    launches: bool = True,
) -> Gradients:
    """Run a case's kernels on the CPU and check that they wrote the gradients and nothing else.

    `layouts`: of the gradients, by name; contiguous where none is given. Without `launches`
    nothing runs: the passes are what is asked for.
    """
    arrays, case, wrt = call.arrays, call.arrays.case, call.wrt
    hosts = {name: x.numpy() for name, x in arrays.inputs().items()}
    options = arrays.options()
    small = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    dtype = DTYPES[result_dtype(case)]
    accumulate = np.dtype(accumulation(result_dtype(case)))
    with np.errstate(over="ignore"):
        exact = reference.attention(*hosts.values(), **options)
        hosts |= {"o": exact.out.astype(dtype), "lse": exact.lse.astype(accumulate)}
    hosts["do"] = call.do.numpy()
    if call.dlse is not None:
        hosts["dlse"] = call.dlse.numpy()
    infos = {name: as_cupy(describe(name, x)) for name, x in (hosts | small).items()}
    options |= {name: infos.pop(name) for name in small}
    checked = check_options(**options, return_lse=True, precision=precision, kernel=kernel)
    targets: dict[str, Strided] = {}
    for name in wrt:
        source = np.zeros((), accumulate) if name == "scale" else (hosts | small)[name]
        layout = (layouts or {}).get(name, "contiguous")
        targets[name] = strided(source.shape, source.dtype, layout, SENTINEL)
    out = tuple(as_cupy(describe(name, x.numpy())) for name, x in targets.items())
    problem = make_backward_problem(infos, checked, wrt=wrt, out=out)
    hosts |= small
    # The struct's name of an input whose public one is C++'s too.
    passes = make_passes(problem, assumed(arch))
    before = {name: x.copy() for name, x in hosts.items()}
    hosts |= {f"d{name}": x.numpy() for name, x in targets.items()}
    for name, scratch in passes.scratch.items():
        hosts[name] = np.full(scratch.size // accumulate.itemsize, np.nan, accumulate)
    writable = {f"d{name}" for name in wrt} | {*passes.scratch}
    regions = [Region.of(name, x, writable=name in writable) for name, x in hosts.items() if x.size]
    pointers = {name: describe(name, x).pointer for name, x in hosts.items()}
    for launch in backward_launches(problem, passes, pointers) if launches else ():
        emulated(launch.variant, folder, strict).launch(
            launch.params,
            launch.grid if grid is None else min(grid, launch.grid),
            launch.variant.tile.threads,
            launch.variant.shared_memory,
            regions,
            schedule,
            seed=case.seed,
            block_order=block_order,
            # Greedily at random with late ones: products then read what others may have replaced.
            landing=schedule % 2 if schedule < 5 else 0,
            # It would flush the doubles of the sums too.
            flush_subnormals=accumulate == np.float32
            and not isinstance(launch.variant, SumVariant),
        )
    for name, x in before.items():
        same = hosts[name].tobytes() == x.tobytes()
        assert same, f"{name} changed"
    for name, target in targets.items():
        untouched = np.array(SENTINEL, target.buffer.dtype).view(f"u{target.buffer.itemsize}")
        assert (target.outside() == untouched).all(), f"something beside d{name} was written"
    return Gradients({name: x.numpy() for name, x in targets.items()}, passes)
