"""Time attention beside unfused CuPy and other libraries, the error of each beside its time.

    python benchmarks/time_attention.py --json benchmarks/results/time_attention.json
    python benchmarks/time_attention.py --dtype float32 --d 64 --n 1024 8192 --causal yes
    python benchmarks/time_attention.py --dtype bfloat16 --layout bnhd --peers torch,fa3,fa4

CuPy is all that it needs; --peers adds what is installed, on the same memory. "auto" is the kernel
that `attention` takes by itself, "naive" the obvious one, "unfused" is `standard_attention`:
CuPy's matmul (cuBLAS), our softmax, CuPy's matmul. The candidates take turns: ours and PyTorch's
are replayed from CUDA graphs, unfused CuPy, which can't be captured, is called, JAX is timed by the
host's clock. --pause adds a second table, of single calls after pauses: the chip is limited by its
power and faster when it has cooled. A causal call counts half the work, and unfused CuPy does all
of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy

from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands.table import aligned
from gpu_timing import machine
from peers import LAYOUTS, Candidate, Case, Ours, Unfused, chosen, peer_words
from protocol import Protocol, measure

CAUSAL = {"no": (False,), "yes": (True,), "both": (False, True)}
# heads * d unless --heads says otherwise: some milliseconds at n = 4096.
WIDTH = 1024
HEADER = ("dtype", "n", "d", "heads", "mask", "candidate")


def problem(point: dict[str, Any]) -> list[str]:
    heads, kv_heads = point["heads"], point["kv_heads"]
    return [
        point["dtype"],
        *(str(point[name]) for name in ("n", "d")),
        f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}",
        "causal" if point["causal"] else "full",
    ]


def label(name: str, found: dict[str, Any]) -> str:
    return f"{name} ({found['kernel']})" if found.get("kernel", name) != name else name


def sustained(points: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the table of candidates that take turns without a break."""
    rows = [[*HEADER, "ms", "spread", "TFLOP/s", "max error", "rms error", "error/bound", ""]]
    for point in points:
        for name, found in point["candidates"].items():
            row = [*problem(point), label(name, found)]
            if "seconds" not in found:
                rows.append([*row, "not possible", *[""] * 6])
                continue
            spread = (found["most"] - found["least"]) / found["seconds"]
            rows.append(
                [
                    *row,
                    f"{found['seconds'] * 1e3:.3f}",
                    f"{spread:.1%}",
                    f"{found['tflops']:.2f}",
                    *(f"{found[key]:.2e}" for key in ("max_error", "rms_error")),
                    f"{found['error_over_bound']:.3f}",
                    "WRONG" if found.get("wrong") else "",
                ]
            )
    return rows


def paused(points: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the table of single calls after pauses."""
    rows = [[*HEADER, "ms", "TFLOP/s", "sustained"]]
    for point in points:
        for name, found in point["candidates"].items():
            if "paused_seconds" in found:
                times = f"{found['paused_seconds'] * 1e3:.3f}"
                rates = (f"{found[key]:.2f}" for key in ("paused_tflops", "tflops"))
                rows.append([*problem(point), label(name, found), times, *rates])
    return rows


def reasons(points: Sequence[dict[str, Any]]) -> list[str]:
    """Say each reason why something wasn't possible, or not from a graph, once."""
    said = {
        f"{name}, {point['dtype']}: {found[key]}" + (" (called)" if key == "not_captured" else "")
        for point in points
        for name, found in point["candidates"].items()
        for key in ("not_possible", "not_captured")
        if key in found
    }
    return sorted(said)


def report(points: Sequence[dict[str, Any]], protocol: Protocol) -> None:
    print("\ncandidates taking turns without a break:", *aligned(sustained(points)), sep="\n")
    rows = paused(points)
    if len(rows) > 1:
        milliseconds = protocol.pause * 1e3
        print(
            f"\nsingle calls, each after {milliseconds:g} ms of idling:", *aligned(rows), sep="\n"
        )
    print("", *reasons(points), sep="\n")


def run(
    cases: Sequence[Case], candidates: Sequence[Candidate], protocol: Protocol
) -> list[dict[str, Any]]:
    """Measure the cases one after another and print each as it comes."""
    points = []
    for case in cases:
        points.append(measure(case, candidates, protocol))
        cupy.get_default_memory_pool().free_all_blocks()
        rates = (
            f"{name} {found['tflops']:.1f}"
            for name, found in points[-1]["candidates"].items()
            if "tflops" in found
        )
        print(f"{case}:", ", ".join(rates), "TFLOP/s", flush=True)
    return points


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--dtype", nargs="+", choices=FLOAT_NAMES, default=list(FLOAT_NAMES))
    parser.add_argument("--n", nargs="+", type=int, default=[4096], help="rows and keys")
    parser.add_argument("--d", nargs="+", type=int, default=[32, 64, 128, 256])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, help=f"default {WIDTH} // d")
    parser.add_argument("--causal", choices=CAUSAL, default="both")
    parser.add_argument("--layout", choices=LAYOUTS, default="bhnd", help="in memory")
    parser.add_argument(
        "--kernels", nargs="+", default=["auto", "naive"], help="of ours (default: auto naive)"
    )
    parser.add_argument("--peers", type=peer_words, default=[], help="such as torch,fa3,fa4,jax")
    parser.add_argument("--calls", type=int, help="in a sample (default: as many as fill 2 ms)")
    parser.add_argument("--rounds", type=int, default=9, help="samples; their median counts")
    parser.add_argument(
        "--pause",
        type=float,
        nargs="?",
        const=0.01,
        default=0.0,
        metavar="SECONDS",
        help="also time single calls after pauses (without a number: 0.01)",
    )
    args = parser.parse_args()
    protocol = Protocol(args.rounds, args.calls, args.pause)
    peers, used = chosen(args.peers)
    candidates = [*map(Ours, args.kernels), Unfused(), *peers]
    cases = []
    for dtype, n, d, causal in itertools.product(args.dtype, args.n, args.d, CAUSAL[args.causal]):
        heads = args.heads or max(WIDTH // d, 1)
        cases.append(Case(dtype, args.batch, heads, heads, n, d, causal, args.layout))
    points = run(cases, candidates, protocol)
    report(points, protocol)
    if args.json:
        how = {"rounds": args.rounds, "calls": args.calls, "pause": args.pause}
        results = {"machine": machine(), "peers": used, **how, "points": points}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
