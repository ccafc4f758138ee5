"""Time the gradients of attention beside PyTorch's and unfused CuPy's, forward calls too.

    python benchmarks/time_backward.py --json benchmarks/results/time_backward.json
    python benchmarks/time_backward.py --dtype bfloat16 --d 128 --causal no --peers torch-fa2
    python benchmarks/time_backward.py --dtype float64 --add --json results.json

The sizes of `compare_peers.py`: d = 64, 128, 256, full and causal, n = 512 to 16,384 (32 and 64
bits: to 4,096) in batches of 16,384 tokens with heads x d = 2,048; arrays (batch, n, heads, d) in
memory, the same for all. Each candidate is measured on the backward call, the forward call that
returns lse, and both; all of a point take turns. Ours is the deterministic default, whose results
and workspace are the caller's, replayed from a CUDA graph as PyTorch's are; PyTorch's backward is
autograd on a graph that is kept. 16-bit ratios are to PyTorch's FlashAttention-2, others to unfused
CuPy. Kernels are compiled before, in processes of their own.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cupy

from compare_peers import DIMS, LENGTHS, TOKENS, WIDTH
from compile_ahead import PASSES, Task, compile_ahead
from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands import sampled
from cupy_flash.commands.table import aligned
from exact_gradients import BackwardEntry, exact_parts
from gpu_timing import machine
from peers import Candidate, chosen, peer_words
from peers_backward import (
    PARTS,
    PEERS,
    WIDE,
    BackwardCase,
    Drawn,
    OursBackward,
    StandardBackward,
    make_backward_arrays,
)
from protocol import Protocol, best_peer, compare, judge
from time_attention import CAUSAL
from time_options import write

OURS = "auto"
# Beyond, unfused matrices of scores don't fit.
LONGEST_WIDE = 4096
FA2, UNFUSED = "torch FA2", "unfused"
# What ours should reach beside unfused CuPy.
BARS = {"float32": 1.0, "float64": 0.7}
KEY = ("dtype", "d", "causal", "n")
Point = dict[str, Any]


def cases(
    dtypes: Sequence[str], lengths: Sequence[int], dims: Sequence[int], masks: Sequence[bool]
) -> list[BackwardCase]:
    return [
        BackwardCase(dtype, TOKENS // n, WIDTH // d, WIDTH // d, n, d, causal, "bnhd")
        for dtype, d, causal, n in itertools.product(dtypes, dims, masks, lengths)
        if dtype not in WIDE or n <= LONGEST_WIDE
    ]


def tasks(wanted: Sequence[BackwardCase]) -> list[Task]:
    """Return what to compile: kernels depend on dtype, d and mask."""
    kinds = {(case.dtype, case.d, case.causal): case for case in wanted}
    return [Task(case, wrt) for case in kinds.values() for wrt in PASSES]


def measure(
    case: BackwardCase, candidates: Sequence[Candidate], rounds: int, drawn: Drawn
) -> Point:
    """Measure all parts of one case, by all candidates in turn.

    Returns
    -------
    dict
        The sizes of the case, "sm_clock_mhz", and "parts": for each one "candidates" as
        `protocol.measure` has them, and what `ratios` adds.
    """
    x = make_backward_arrays(case, drawn)
    rows = sampled.exact_rows(x.q, x.k, x.v, case.causal, sampled.places(case.n), cupy.asnumpy)
    gradients = exact_parts(x, case.causal)
    entries = {
        (part, candidate.name): BackwardEntry(
            candidate,
            replace(case, part=part),
            x,
            rows if part == "forward" else gradients,
        )
        for part in PARTS
        for candidate in candidates
    }
    calls = None if case.dtype in WIDE else 4 if case.n >= 8192 else 8
    found, clock = compare(entries, Protocol(rounds, calls))
    parts = {}
    for part in PARTS:
        own = {candidate.name: found[part, candidate.name] for candidate in candidates}
        judge(own)
        parts[part] = {"candidates": own} | ratios(own, case.dtype)
    sizes = {name: getattr(case, name) for name in ("dtype", "batch", "heads", "n", "d", "causal")}
    return {**sizes, "layout": case.layout, "sm_clock_mhz": clock, "parts": parts}


def ratios(candidates: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return our speed over the baseline's and over the fastest one's, of right results."""
    mine, found = candidates[OURS], {}
    baseline = candidates.get(UNFUSED if dtype in WIDE else FA2, {})
    if "wrong" in mine:
        return found
    if "tflops" in baseline and "wrong" not in baseline:
        found["ratio"] = mine["tflops"] / baseline["tflops"]
    best = best_peer({"candidates": candidates}, [name for name in candidates if name != OURS])
    if best is not None:
        found["best"] = best
        found["ratio_to_best"] = mine["tflops"] / candidates[best]["tflops"]
    return found


def table(points: Sequence[Point], part: str) -> list[list[str]]:
    """Return a row for each point: everybody's TFLOP/s, ratios, and our error."""
    names = list(dict.fromkeys(name for p in points for name in p["parts"][part]["candidates"]))
    header = ["dtype", "d", "mask", "n", f"{part}: {OURS}, ms", *names]
    rows = [[*header, "ours / baseline", "ours / best", "best", "max error", "MHz"]]
    for point in points:
        found = point["parts"][part]
        mine = found["candidates"][OURS]
        rates = []
        for name in names:
            one = found["candidates"].get(name, {})
            marks = " WRONG" * ("wrong" in one) + " called" * ("not_captured" in one)
            rates.append(f"{one['tflops']:.1f}{marks}" if "tflops" in one else "-")
        rows.append(
            [
                point["dtype"],
                str(point["d"]),
                "causal" if point["causal"] else "full",
                str(point["n"]),
                f"{mine['seconds'] * 1e3:.3f}",
                *rates,
                *(
                    f"{found[key]:.3f}" if key in found else "-"
                    for key in ("ratio", "ratio_to_best")
                ),
                found.get("best", "-"),
                f"{mine['max_error']:.1e}",
                f"{point['sm_clock_mhz']:.0f}",
            ]
        )
    return rows


def summary(points: Sequence[Point]) -> list[str]:
    """Say for each dtype the least ratio, the geometric mean and the bar."""
    lines = []
    for dtype, part in itertools.product(FLOAT_NAMES, PARTS):
        found = [
            point["parts"][part]["ratio"]
            for point in points
            if point["dtype"] == dtype and "ratio" in point["parts"][part]
        ]
        if not found:
            continue
        mean = math.exp(statistics.fmean(map(math.log, found)))
        bar = f", bar {BARS[dtype]}" if part == "backward" and dtype in BARS else ""
        lines.append(
            f"{dtype}, {part}: ours / {UNFUSED if dtype in WIDE else FA2} on {len(found)} points: "
            f"least {min(found):.3f}, geometric mean {mean:.3f}{bar}"
        )
    return lines


def reasons(points: Sequence[Point]) -> list[str]:
    """Say each reason why something wasn't possible, or not from a graph, once."""
    said = {
        f"{name}, {point['dtype']}, {part}: {one[key]}"
        for point in points
        for part, found in point["parts"].items()
        for name, one in found["candidates"].items()
        for key in ("not_possible", "not_captured")
        if key in one
    }
    return sorted(said)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--add", action="store_true", help="keep the other points of that file")
    parser.add_argument("--dtype", nargs="+", choices=FLOAT_NAMES, default=list(FLOAT_NAMES))
    parser.add_argument("--n", nargs="+", type=int, choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--d", nargs="+", type=int, choices=DIMS, default=list(DIMS))
    parser.add_argument("--causal", choices=CAUSAL, default="both")
    words = functools.partial(peer_words, known=PEERS, groups={})
    default = ",".join(PEERS)
    parser.add_argument("--peers", type=words, default=words(default), help=default)
    parser.add_argument("--rounds", type=int, default=9, help="samples; 20 for a claim")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    wanted = cases(args.dtype, args.n, args.d, CAUSAL[args.causal])
    if not wanted:
        sys.exit(f"float32 and float64 are measured up to n = {LONGEST_WIDE}")
    compile_ahead(tasks(wanted))
    peers, used = chosen(args.peers, PEERS)
    candidates = [OursBackward(OURS), StandardBackward(), *peers]
    points: list[Point] = []
    results = {"machine": machine(), "peers": used, "rounds": args.rounds, "points": points}
    drawn = Drawn()
    for i, case in enumerate(wanted, 1):
        points.append(measure(case, candidates, args.rounds, drawn))
        for candidate in candidates:
            candidate.free()
        rates = (
            f"{name} {found['tflops']:.1f}"
            for name, found in points[-1]["parts"]["backward"]["candidates"].items()
            if "tflops" in found
        )
        print(f"{i}/{len(wanted)} {case}:", ", ".join(rates), "TFLOP/s", flush=True)
        write(results, args.json, args.add, KEY)
    print("", *reasons(points), sep="\n")
    for part in ("forward", "both", "backward"):
        print("TFLOP/s:", *aligned(table(points, part)), "", sep="\n")
    print(*summary(points), sep="\n")


if __name__ == "__main__":
    main()
