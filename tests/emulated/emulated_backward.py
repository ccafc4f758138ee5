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
from cupy_flash.arrays import describe
from cupy_flash.axes import heads_operand, leading_axes, pairs_operand
from cupy_flash.backward.params import BACKWARD_DTYPE, SUM_DTYPE, backward_launches
from cupy_flash.backward.passes import Passes, make_passes
from cupy_flash.backward.problem import BackwardProblem, Gradient
from cupy_flash.backward.variant import SumVariant
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.source import AnyVariant, source
from emulated_attention import SENTINEL, as_cupy
from emulation import EmulatedKernel, Region, build
from layouts import Strided, strided
from problems import DTYPES, Arrays, result_dtype

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


def gradient_of(name: str, x: Array, arrays: Arrays) -> Gradient:
    """Say where the gradient of an argument goes."""
    inputs = [as_cupy(describe(key, y.numpy())) for key, y in arrays.inputs().items()]
    axes = leading_axes(*inputs)
    info = as_cupy(describe(name, x))
    case = arrays.case
    if name in ("q", "k", "v"):
        operand, ends = axes.operand(info), x.shape[-2:]
        lead = x.shape[:-2]
    elif name == "bias":
        found = pairs_operand(name, info, axes, (case.m, case.n))
        assert found is not None
        operand, ends, lead = found, (1, 1, *x.shape)[-2:], x.shape[:-2]
    else:
        found = heads_operand(name, info, axes)
        assert found is not None
        operand, ends, lead = found, (1, 1), x.shape
    missing = len(axes.leading) - len(lead)
    lead = (1,) * missing + lead
    batch, heads = (lead[:-1], lead[-1]) if axes.has_heads else (lead, 1)
    return Gradient(name, operand, x.shape, None, batch, heads, *ends)


def attention_backward(
    call: Backward,
    kernel: str,
    *,
    layouts: Mapping[str, str] | None = None,
    schedule: int = 0,
    folder: Path | None = None,
    strict: bool = True,
    arch: int = 90,
    grid: int | None = None,
) -> Gradients:
    """Run a case's kernels on the CPU and check that they wrote the gradients and nothing else.

    `layouts`: of the gradients, by name; contiguous where none is given.
    """
    arrays, do, dlse, wrt = call.arrays, call.do, call.dlse, call.wrt
    case = arrays.case
    hosts = {name: x.numpy() for name, x in arrays.inputs().items()}
    options = arrays.options()
    small = {name: x for name, x in options.items() if isinstance(x, np.ndarray)}
    infos = {name: as_cupy(describe(name, x)) for name, x in hosts.items()}
    options |= {name: as_cupy(describe(name, x)) for name, x in small.items()}
    checked = check_options(**options, return_lse=True, kernel=kernel)
    dtype = DTYPES[result_dtype(case)]
    with np.errstate(all="ignore"):
        exact = reference.attention(*hosts.values(), **arrays.options())
        o = exact.out.astype(dtype)
        accumulate = np.float64 if dtype == np.float64 else np.float32
        lse = exact.lse.astype(accumulate)
    hosts |= small | {"o": o, "lse": lse, "d_o": do.numpy()}
    if dlse is not None:
        hosts["dlse"] = dlse
    forward = make_problem(
        *infos.values(), checked, as_cupy(describe("out", o)), as_cupy(describe("lse", lse))
    )
    axes = leading_axes(*infos.values())
    column = None
    if dlse is not None:
        column = axes.operand(as_cupy(describe("dlse", dlse[..., None])))
    targets: dict[str, Strided] = {}
    gradients = []
    for name in wrt:
        if name == "scale":
            targets[name] = strided((), np.dtype(accumulate), "contiguous", SENTINEL)
        else:
            x = {**arrays.inputs(), **arrays.small()}[name]
            layout = (layouts or {}).get(name, "contiguous")
            targets[name] = strided(x.shape, x.buffer.dtype, layout, SENTINEL)
        gradients.append(gradient_of(name, targets[name].numpy(), arrays))
    problem = BackwardProblem(
        forward=forward,
        do=axes.operand(as_cupy(describe("do", do.numpy()))),
        dlse=column,
        wrt=wrt,
        gradients=tuple(gradients),
        deterministic=True,
    )
    passes = make_passes(problem, assumed(arch))
    before = {name: x.copy() for name, x in hosts.items()}
    hosts |= {f"d{name}": x.numpy() for name, x in targets.items()}
    for name, scratch in passes.scratch.items():
        hosts[name] = np.full(scratch.size // np.dtype(accumulate).itemsize, np.nan, accumulate)
    writable = {f"d{name}" for name in wrt} | {*passes.scratch}
    regions = [Region.of(name, x, writable=name in writable) for name, x in hosts.items() if x.size]
    pointers = {name: describe(name, x).pointer for name, x in hosts.items()}
    for launch in backward_launches(problem, passes, pointers):
        emulated(launch.variant, folder, strict).launch(
            launch.params,
            launch.grid if grid is None else min(grid, launch.grid),
            launch.variant.tile.threads,
            launch.variant.shared_memory,
            regions,
            schedule,
            seed=case.seed,
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
