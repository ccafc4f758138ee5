"""Measure how time and memory grow from 512 to a million keys, fused and unfused.

    python benchmarks/cost_growth.py --json benchmarks/results/cost_growth.json

The sweep "growth" of `python -m cupy_flash bench` (float16, causal, d = 128, 8 heads, one GPU), and
what follows from it: the exponents with which time and memory grow over the longer half of what
each candidate can do. Attention takes O(n^2) time; fused it takes O(n) memory, unfused O(n^2).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cupy_flash.commands.bench_measure import OURS, UNFUSED, measure_point, place
from cupy_flash.commands.bench_progress import progress
from cupy_flash.commands.bench_results import SCHEMA, total_bytes
from cupy_flash.commands.bench_sweeps import SWEEPS
from cupy_flash.commands.bench_table import legend, table

SWEEP = "growth"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log value against log size over the larger half of the sizes."""
    half = len(sizes) // 2
    logs = [[math.log(x) for x in numbers[half:]] for numbers in (sizes, values)]
    return float(np.polyfit(*logs, 1)[0])


def growth(points: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each candidate the exponents of time and memory and the longest n it can do."""
    quantities: dict[str, Callable[[dict[str, Any], str], float]] = {
        "seconds": lambda point, name: point["candidates"][name]["seconds"],
        "bytes": total_bytes,
    }
    found = {}
    for name in (OURS, UNFUSED):
        able = [point for point in points if "seconds" in point["candidates"][name]]
        if len(able) < 4:
            continue
        sizes = [point["n"] for point in able]
        exponents = {
            f"exponent_of_{quantity}": exponent(sizes, [of(point, name) for point in able])
            for quantity, of in quantities.items()
        }
        found[name] = {"longest_n": max(sizes), **exponents}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--rounds", type=int, default=9, help="samples; fewer for long calls")
    parser.add_argument("--longest", type=int, default=2**20, help="leave longer points out")
    args = parser.parse_args()
    from gpu_timing import machine

    sweep = SWEEPS[SWEEP]
    where = place(on_gpu=True)
    points = [
        measure_point(point, where, args.rounds, unfused=True)
        for point in progress([point for point in sweep.points if point.n <= args.longest])
    ]
    grown = growth(points)
    results = {
        "schema": SCHEMA,
        "machine": machine(),
        "sweep": SWEEP,
        "x": sweep.x,
        "points": points,
        "growth": grown,
    }
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(*table(results), "", *legend(results), "", sep="\n")
    for name, found in grown.items():
        print(
            f"{name}: time grows as n^{found['exponent_of_seconds']:.2f}, memory as "
            f"n^{found['exponent_of_bytes']:.2f}, up to n = {found['longest_n']:,}"
        )


if __name__ == "__main__":
    main()
