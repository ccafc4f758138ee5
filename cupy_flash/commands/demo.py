"""`python -m cupy_flash demo`: error, time and memory of attention beside the unfused one."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash import activations, reference
from cupy_flash import device as devices
from cupy_flash.accuracy import Comparison, compare, out_bound
from cupy_flash.api import attention
from cupy_flash.arrays import FLOAT_NAMES, to_dtype
from cupy_flash.commands import machine
from cupy_flash.commands.measure import Place, place, random_arrays
from cupy_flash.commands.table import aligned
from cupy_flash.explanation import Explanation, explain
from cupy_flash.products import loosest
from cupy_flash.unfused import cublas_problem, standard_attention

GPU_SIZE = (1, 8, 4096, 64)
CPU_SIZE = (1, 4, 1024, 64)
# Exact attention is computed for this many heads and rows of a random problem.
CHECKED_HEADS = 2
CHECKED_ROWS = 64

_EPILOG = f"""\
The inputs are activations of a real model (all-MiniLM-L6-v2, float16), which the package carries,
and random normal numbers. Unfused attention is matmul, softmax, matmul on the same arrays.

example:
  python -m cupy_flash demo --size 2,16,2048,128

--size defaults to {",".join(map(str, GPU_SIZE))} on a GPU, else to {",".join(map(str, CPU_SIZE))}.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--device", type=int, help="number of the GPU (default: 0; without a GPU, NumPy)")
    add(
        "--size",
        type=_size,
        metavar="B,H,N,D",
        help="batch, heads, rows and columns of the random arrays",
    )


def _size(text: str) -> tuple[int, ...]:
    try:
        size = tuple(int(extent) for extent in text.split(","))
    except ValueError:
        size = ()
    if len(size) != 4 or min(size) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; say four numbers >= 1 with commas, such as 2,16,2048,128"
        )
    return size


def run(args: argparse.Namespace) -> int:
    """Print the tables; 1 if an error is beyond its bound, 2 without the GPU asked for."""
    index = args.device or 0
    no_gpu = machine.gpu_problem(index)
    if no_gpu and args.device is not None:
        print(f"demo: {no_gpu}", file=sys.stderr)
        return 2
    print(f"NumPy arrays: {no_gpu}" if no_gpu else _gpu_line(index), flush=True)
    size = args.size or (CPU_SIZE if no_gpu else GPU_SIZE)
    with nullcontext() if no_gpu else _on_device(index):
        where = place(on_gpu=no_gpu is None)
        missing = None if no_gpu else cublas_problem()
        measured = [_measure(inputs, where, missing) for inputs in _inputs(size)]
    print("\n".join([*_errors(measured), *_costs(measured, where), *_kernels(measured)]))
    if missing:
        print(f"\nunfused attention {missing}")
    return 0 if all(one.error.ok for one in measured) else 1


def _on_device(index: int) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = devices.import_cupy().cuda.Device(index)
    return context


def _gpu_line(index: int) -> str:
    gpu = devices.actual(index)
    nvrtc = ".".join(map(str, devices.nvrtc_version()))
    cupy = devices.import_cupy().__version__
    return f"GPU {index}: {gpu.name}, sm_{gpu.arch}, CuPy {cupy}, NVRTC {nvrtc}"


@dataclass(frozen=True)
class Inputs:
    """q, k and v as NumPy arrays, and which heads and rows of the result are checked."""

    name: str
    q: Any
    k: Any
    v: Any
    heads: list[tuple[int, ...]]
    rows: Any

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        name: str = self.q.dtype.name
        return name


def _inputs(size: tuple[int, ...]) -> list[Inputs]:
    found = []
    for real in activations.load():
        heads = list(np.ndindex(real.q.shape[:-2]))
        rows = np.arange(real.q.shape[-2])
        found.append(Inputs(f"MiniLM {real.name}", real.q, real.k, real.v, heads, rows))
    every = list(np.ndindex(size[:2]))
    heads = [every[i] for i in _spread(len(every), CHECKED_HEADS)]
    rows = _spread(size[2], CHECKED_ROWS)
    for dtype in FLOAT_NAMES:
        q, k, v = random_arrays(size, to_dtype(dtype), seed=0)
        found.append(Inputs("random " + ",".join(map(str, size)), q, k, v, heads, rows))
    return found


def _spread(extent: int, count: int) -> Any:
    """At most `count` indices from the first to the last."""
    return np.unique(np.linspace(0, extent - 1, count).round().astype(int))


@dataclass(frozen=True)
class Unfused:
    """What unfused attention needs for the same inputs."""

    max_error: float
    seconds: float
    extra_bytes: int


@dataclass(frozen=True)
class Measured:
    """What one call did; `unfused` is a str where unfused attention can't run: why."""

    inputs: Inputs
    explanation: Explanation
    error: Comparison
    first: float
    seconds: float
    extra_bytes: int
    unfused: Unfused | str


def _measure(inputs: Inputs, where: Place, missing: str | None) -> Measured:
    q, k, v = (where.array(x) for x in (inputs.q, inputs.k, inputs.v))

    def call() -> Any:
        return attention(q, k, v)

    def unfused_call() -> Any:
        return standard_attention(q, k, v)

    out, first = where.once(call)
    unfused: Unfused | str
    if missing is not None:
        unfused = missing.splitlines()[0]
    else:
        try:
            unfused = Unfused(
                max_error=_error(inputs, where.host(unfused_call())).max_error,
                seconds=where.seconds(unfused_call),
                extra_bytes=where.extra_bytes(unfused_call),
            )
        except MemoryError:
            unfused = "out of memory"
    explanation = explain(q, k, v)
    return Measured(
        inputs=inputs,
        explanation=explanation,
        error=_error(inputs, where.host(out), explanation.kernel),
        first=first,
        seconds=where.seconds(call),
        extra_bytes=where.extra_bytes(call),
        unfused=unfused,
    )


def _error(inputs: Inputs, out: Any, family: str | None = None) -> Comparison:
    """Compare the checked heads and rows with exact attention; the worst head's comparison."""
    comparisons = []
    for head in inputs.heads:
        q, k, v = inputs.q[head][inputs.rows], inputs.k[head], inputs.v[head]
        exact = reference.attention(q, k, v, products=loosest(family, inputs.dtype))
        scale = reference.default_scale(q.shape[-1])
        bound = out_bound(exact, inputs.dtype, q, k, v, scale, family)
        comparisons.append(compare(out[head][inputs.rows], exact.out, bound))
    return max(comparisons, key=lambda comparison: comparison.ratio)


def _errors(measured: list[Measured]) -> list[str]:
    rows = [("", "dtype", "kernel", "max error", "of the bound", "unfused max error")]
    for one in measured:
        unfused = one.unfused if isinstance(one.unfused, str) else f"{one.unfused.max_error:.1e}"
        rows.append(
            (
                one.inputs.name,
                one.inputs.dtype,
                one.explanation.kernel,
                f"{one.error.max_error:.1e}",
                f"{one.error.ratio:.1%}",
                unfused,
            )
        )
    return [
        "",
        "Error against exact attention, computed in float64 (for float64 in long double):",
        *aligned(rows),
        "Checked: every element of the activations, "
        f"{CHECKED_ROWS} rows of each of {CHECKED_HEADS} heads of the random arrays.",
        "The bound is computed for each element; a right kernel stays below 100%. With 16 bits",
        "most of it is the rounding of the result, which no kernel can avoid.",
    ]


def _costs(measured: list[Measured], where: Place) -> list[str]:
    rows = [("", "dtype", "first call", "time", "unfused", "unfused/ours", "memory", "unfused")]
    for one in measured:
        if isinstance(one.unfused, str):
            unfused = (one.unfused, "-", "-")
        else:
            unfused = (
                _time(one.unfused.seconds),
                f"{one.unfused.seconds / one.seconds:.2f}",
                _memory(one.unfused.extra_bytes),
            )
        rows.append(
            (
                one.inputs.name,
                one.inputs.dtype,
                _time(one.first),
                _time(one.seconds),
                *unfused[:2],
                _memory(one.extra_bytes),
                unfused[2],
            )
        )
    return [
        "",
        "Time and memory beside unfused attention (matmul, softmax, matmul):",
        *aligned(rows),
        f"Time: {where.timed_by}.",
        f"Memory: {where.memory_from}.",
    ]


def _kernels(measured: list[Measured]) -> list[str]:
    """Say which kernels ran, each once."""
    variants = (one.explanation.variant for one in measured)
    ran = dict.fromkeys(str(variant or "the blocked NumPy path") for variant in variants)
    return ["", "Ran:", *(f"  {kernel}" for kernel in ran)]


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.0f} us"


def _memory(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"
