"""`python -m cupy_flash bench`: a sweep measured beside unfused attention; table, JSON, plots."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cupy_flash import device as devices
from cupy_flash.commands import bench_pictures, machine
from cupy_flash.commands.bench_measure import measure_point, place
from cupy_flash.commands.bench_progress import progress
from cupy_flash.commands.bench_results import SCHEMA, Results, check, title
from cupy_flash.commands.bench_sweeps import SWEEPS
from cupy_flash.commands.bench_table import legend, table
from cupy_flash.commands.bench_text import plots
from cupy_flash.commands.provenance import machine as describe_machine
from cupy_flash.unfused import cublas_problem

GPU_SWEEP, NUMPY_SWEEP = "length", "small"

_EPILOG = f"""\
sweeps:
{chr(10).join(f"  {name:9} {sweep.about}" for name, sweep in SWEEPS.items())}

Candidates take turns; ours is replayed from a CUDA graph, and unfused attention (matmul, softmax,
matmul) is called, because CuPy can't capture cuBLAS. Errors are compared with exact attention
before anything is timed.

example:
  python -m cupy_flash bench length --json length.json --plot length.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command on a parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "sweep",
        nargs="?",
        choices=tuple(SWEEPS),
        metavar="SWEEP",
        help=f"one of those below (default: {GPU_SWEEP}; with --numpy {NUMPY_SWEEP})",
    )
    add("--device", type=int, help="number of the GPU (default: 0)")
    add("--numpy", action="store_true", help="measure the NumPy path, which needs no GPU")
    add("--rounds", type=int, default=9, help="samples of each candidate (default: %(default)s)")
    add("--only-ours", action="store_true", help="don't measure unfused attention")
    add("--json", type=Path, metavar="FILE", help="also write the results there")
    add(
        "--plot",
        metavar="FILE",
        help=f"also draw them: {', '.join(bench_pictures.SUFFIXES)} by matplotlib, .txt or - (the "
        "terminal) as plain text",
    )
    add("--from", dest="source", type=Path, metavar="FILE", help="measure nothing, read this JSON")


def run(args: argparse.Namespace) -> int:
    """Measure, or read, a sweep and print its table; 1 for a wrong result, 2 for a refusal."""
    refusal = _refusal(args)
    if refusal is not None:
        print(f"bench: {refusal}", file=sys.stderr)
        return 2
    results: Results
    if args.source is not None:
        results = json.loads(args.source.read_text(encoding="utf-8"))
    else:
        results = _measured(args)
    # Files first: a closed pipe mustn't cost what took minutes to measure.
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if args.plot is not None and args.plot != "-":
        _write_plot(results, Path(args.plot))
    about = f": {SWEEPS[results['sweep']].about}" if results["sweep"] in SWEEPS else ""
    print(title(results), f"sweep {results['sweep']}{about}", "", sep="\n")
    print(*table(results), "", *legend(results), sep="\n")
    if args.plot == "-":
        print("", plots(results), sep="\n")
    return 1 if _wrong(results) else 0


def _refusal(args: argparse.Namespace) -> str | None:
    if args.rounds < 1:
        return f"--rounds is {args.rounds}; it must be >= 1"
    if args.plot is not None:
        reason = _plot_refusal(args.plot)
        if reason is not None:
            return reason
    if args.source is not None:
        return _source_refusal(args)
    if args.numpy:
        return "--device and --numpy exclude each other" if args.device is not None else None
    no_gpu = machine.gpu_problem(args.device or 0)
    return no_gpu and f"{no_gpu}; --numpy measures the NumPy path"


def _plot_refusal(plot: str) -> str | None:
    if plot == "-" or plot.endswith(".txt"):
        return None
    if not plot.endswith(bench_pictures.SUFFIXES):
        allowed = ", ".join((*bench_pictures.SUFFIXES, ".txt"))
        return f"--plot is {plot!r}; it must end in one of {allowed}, or be -"
    missing = bench_pictures.missing()
    return missing and f"{missing}; --plot - draws in the terminal without it"


def _source_refusal(args: argparse.Namespace) -> str | None:
    if args.sweep is not None or args.numpy or args.device is not None:
        return "--from measures nothing, so it excludes SWEEP, --numpy and --device"
    try:
        reason = check(json.loads(args.source.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        reason = machine.one_line(error)
    return reason and f"--from {args.source}: {reason}"


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    name = args.sweep or (NUMPY_SWEEP if args.numpy else GPU_SWEEP)
    sweep = SWEEPS[name]
    unfused = not args.only_ours
    if unfused and not args.numpy:
        missing = cublas_problem()
        if missing is not None:
            print(f"bench: unfused attention {missing}", file=sys.stderr)
            unfused = False
    with nullcontext() if args.numpy else _on_device(args.device or 0):
        where = place(on_gpu=not args.numpy)
        points = [
            measure_point(point, where, args.rounds, unfused) for point in progress(sweep.points)
        ]
        described = describe_machine(on_gpu=not args.numpy)
    return {
        "schema": SCHEMA,
        "machine": described,
        "sweep": name,
        "x": sweep.x,
        "points": points,
    }


def _on_device(index: int) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = devices.import_cupy().cuda.Device(index)
    return context


def _write_plot(results: Results, path: Path) -> None:
    if path.suffix == ".txt":
        path.write_text(plots(results) + "\n", encoding="utf-8")
    else:
        bench_pictures.draw(results, path)


def _wrong(results: Results) -> bool:
    """Whether a result of ours is beyond its bound, in which case its time means nothing."""
    ours = (point["candidates"]["ours"] for point in results["points"])
    return any(found.get("error_over_bound", 0) > 1 for found in ours)
