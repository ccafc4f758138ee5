"""`python -m cupy_flash check`: every kernel that runs here against exact attention."""

from __future__ import annotations

import argparse
import math
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupy_flash import device as devices
from cupy_flash import reference
from cupy_flash.accuracy import compare, lse_bound, out_bound
from cupy_flash.api import attention
from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands import machine
from cupy_flash.commands.check_case import KINDS, LAYOUTS, Check
from cupy_flash.commands.check_problems import CHECKS
from cupy_flash.commands.table import aligned
from cupy_flash.explanation import explain
from cupy_flash.options import KERNELS
from cupy_flash.products import loosest
from cupy_flash.reference import Reference

NUMPY_PATH = "blocked"

_EPILOG = """\
Each result is compared with attention by its formula in float64 (for float64 in long double),
element by element, with an error bound computed from the data. A right kernel has error / bound at
most 1; any more is a failure, and the exit status 1. On a GPU the first run compiles every kernel.

example:
  python -m cupy_flash check --kernel simt --dtype float16 --problem sharp-causal
"""

_ROW = "{:8} {:9} {:>8} {:>12} {:>10} {:>8}  {}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--seed", type=int, default=0, help="of the random numbers, >= 0 (default: %(default)s)")
    add("--device", type=int, help="number of the GPU (default: 0, if there is a GPU)")
    add("--kernel", choices=(NUMPY_PATH, *KERNELS), help="only this kernel (default: all)")
    add("--dtype", choices=FLOAT_NAMES, help="only this dtype (default: all)")
    add(
        "--problem",
        choices=[check.name for check in CHECKS],
        metavar="NAME",
        help=f"only this problem of the {len(CHECKS)} (default: all; a wrong NAME lists them)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table; 1 if anything failed, 2 and a message if nothing can be checked."""
    no_gpu = machine.gpu_problem(args.device or 0)
    refusal = _refusal(args, no_gpu)
    if refusal is not None:
        print(f"check: {refusal}", file=sys.stderr)
        return 2
    index = args.device or 0
    print(f"NumPy path only: {no_gpu}" if no_gpu else f"GPU {index}: {_gpu_name(index)}")
    header = ("kernel", "dtype", "problems", "error/bound", "max error", "seconds", "")
    print(_ROW.format(*header).rstrip())
    rows = []
    for kernel in _kernels(args, no_gpu):
        for dtype in FLOAT_NAMES if args.dtype is None else (args.dtype,):
            where = nullcontext() if kernel == NUMPY_PATH else _on_device(index)
            with where:
                row = _check_row(kernel, dtype, args.seed, args.problem)
            print(row, flush=True)
            rows.append(row)
    print("", "error/bound of the problems with each option:", *_by_option(rows), sep="\n")
    failed = [row for row in rows if row.failures]
    for row in failed:
        # The row's worst; what raised an exception has no ratio and counts as infinitely wrong.
        worst = max(row.failures, key=lambda failure: failure.ratio)
        print(f"\nFAIL {worst}\n  {worst.command(args.seed, args.device)}")
    if failed:
        return 1
    if not any(row.problems for row in rows):
        print("check: no problem was computed", file=sys.stderr)
        return 2
    print("\nall within their bounds")
    return 0


def _by_option(rows: list[Row]) -> list[str]:
    """Lay out the worst of each row's problems, option by option."""
    cells = [(row.kernel, row.dtype, *map(row.ratio_of, KINDS)) for row in rows if row.ratios]
    return aligned([("kernel", "dtype", *KINDS), *cells])


def _refusal(args: argparse.Namespace, no_gpu: str | None) -> str | None:
    if args.seed < 0:
        return f"--seed is {args.seed}; it must be >= 0"
    if no_gpu and (args.device is not None or args.kernel in KERNELS):
        return no_gpu
    return None


def _kernels(args: argparse.Namespace, no_gpu: str | None) -> tuple[str, ...]:
    if args.kernel is not None:
        return (args.kernel,)
    return (NUMPY_PATH,) if no_gpu else (NUMPY_PATH, *KERNELS)


def _gpu_name(index: int) -> str:
    gpu = devices.actual(index)
    return f"{gpu.name}, sm_{gpu.arch}"


def _on_device(index: int) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = devices.import_cupy().cuda.Device(index)
    return context


@dataclass(frozen=True)
class Failure:
    """A problem that went wrong, and how to run it alone."""

    kernel: str
    dtype: str
    check: Check
    ratio: float
    what: str

    def __str__(self) -> str:
        """Say it in two lines."""
        return f"{self.kernel} {self.dtype} {self.check.name}: {self.check}\n  {self.what}"

    def command(self, seed: int, device: int | None) -> str:
        """Return the command line that runs this problem alone."""
        words = f"--kernel {self.kernel} --dtype {self.dtype} --problem {self.check.name}"
        words += "" if device is None else f" --device {device}"
        return f"python -m cupy_flash check {words} --seed {seed}"


@dataclass
class Row:
    """What one kernel made of the problems in one dtype."""

    kernel: str
    dtype: str
    problems: int = 0
    ratios: dict[str, float] = field(default_factory=dict)
    max_error: float = 0.0
    seconds: float = 0.0
    reason: str = ""
    failures: list[Failure] = field(default_factory=list)

    def add(self, check: Check, ratio: float) -> None:
        """Count a problem's error / bound under each of its kinds."""
        for kind in check.kinds:
            self.ratios[kind] = max(self.ratios.get(kind, 0.0), ratio)

    def ratio_of(self, kind: str) -> str:
        """Return a cell of the table of options."""
        ratio = self.ratios.get(kind)
        return "-" if ratio is None else f"{ratio:.3f}" if ratio <= 1 else "FAIL"

    def __str__(self) -> str:
        """Lay the row out for the table."""
        if not self.problems and not self.failures:
            return _ROW.format(self.kernel, self.dtype, 0, "-", "-", "-", self.reason)
        return _ROW.format(
            self.kernel,
            self.dtype,
            self.problems,
            f"{max(self.ratios.values(), default=0.0):.3f}",
            f"{self.max_error:.2e}",
            f"{self.seconds:.2f}",
            f"{len(self.failures)} FAIL" if self.failures else "ok",
        )


def _check_row(kernel: str, dtype: str, seed: int, only: str | None) -> Row:
    row = Row(kernel, dtype)
    for check in CHECKS:
        if only is not None and check.name != only:
            continue
        try:
            arrays = check.data(dtype, seed)
            forced = None if kernel == NUMPY_PATH else kernel
            placed = _placed(check, arrays, on_gpu=forced is not None)
            reason = _why_not(check, placed, forced)
            if reason is not None:
                row.reason = reason
                continue
            row.problems += 1
            begin = time.perf_counter()
            out, lse = _compute(check, placed, forced)
            row.seconds += time.perf_counter() - begin
            _judge(row, check, arrays, out, lse)
        # Whatever a kernel raises is its failure, and the other problems still count.
        except Exception as error:
            row.add(check, math.inf)
            row.failures.append(Failure(kernel, dtype, check, math.inf, machine.one_line(error)))
    return row


def _placed(check: Check, arrays: dict[str, Any], on_gpu: bool) -> dict[str, Any]:
    """Lay q, k and v out as the problem says, on the current GPU or as NumPy arrays."""
    copy = devices.import_cupy().asarray if on_gpu else np.asarray
    layout = LAYOUTS[check.layout]
    placed = {}
    for name, x in arrays.items():
        if name in ("q", "k", "v"):
            placed[name] = layout.view(copy(np.ascontiguousarray(layout.base(x))))
        else:
            placed[name] = copy(x)
    return placed


def _split(placed: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    matrices = [placed[name] for name in ("q", "k", "v")]
    return matrices, {name: x for name, x in placed.items() if name not in ("q", "k", "v")}


def _why_not(check: Check, placed: dict[str, Any], kernel: str | None) -> str | None:
    """Say why a kernel family can't compute a problem, None if it can."""
    if kernel is None:
        return None
    matrices, small = _split(placed)
    try:
        explain(*matrices, kernel=kernel, **small, **check.options)
    except ValueError as error:
        return str(error).partition("call: ")[2].partition(". Able")[0] or str(error)
    return None


def _compute(check: Check, placed: dict[str, Any], kernel: str | None) -> tuple[Any, Any]:
    matrices, small = _split(placed)
    out, lse = attention(*matrices, kernel=kernel, return_lse=True, **small, **check.options)
    if kernel is None:
        return out, lse
    to_host = devices.import_cupy().asnumpy
    return to_host(out), to_host(lse)


def _judge(row: Row, check: Check, arrays: dict[str, Any], out: Any, lse: Any) -> None:
    (q, k, v), small = _split(arrays)
    scale = check.options.get("scale")
    products = loosest(row.kernel, row.dtype)
    exact: Reference = reference.attention(q, k, v, **small, **check.options, products=products)
    factor = reference.default_scale(q.shape[-1]) if scale is None else scale
    comparisons = {
        "out": compare(out, exact.out, out_bound(exact, row.dtype, q, k, v, factor, row.kernel)),
        "lse": compare(lse, exact.lse, lse_bound(exact, row.dtype, q, k, factor)),
    }
    for name, comparison in comparisons.items():
        row.add(check, comparison.ratio)
        if math.isnan(comparison.max_error) or comparison.max_error > row.max_error:
            row.max_error = comparison.max_error
        if not comparison.ok:
            row.failures.append(
                Failure(row.kernel, row.dtype, check, comparison.ratio, f"{name}: {comparison}")
            )
