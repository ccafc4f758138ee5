"""Compare our 16-bit forward with the fastest libraries on the sizes that papers show.

    python benchmarks/compare_peers.py --json benchmarks/results/compare_peers.json
    python benchmarks/compare_peers.py --peers torch-fa2 --kernels sm80 --n 2048 4096 16384

36 points: d = 64, 128, 256, full and causal, n = 512 to 16,384 in batches of 16,384 tokens with
heads x d = 2,048; and four with grouped heads: 64 query heads on 8 key heads, d = 128, batch 1.
Arrays are (batch, n, heads, d) in memory, for all the same. Each candidate's 8 calls (4 from n =
8,192) are one CUDA graph; from n = 4,096 a second figure is of single calls after 10 ms of idling.
A peer whose result is wrong doesn't count. The product of two 8192 x 8192 matrices, timed before
and after, says what the chip can reach.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy

from cupy_flash import timing
from cupy_flash.commands.bench_measure import normal
from cupy_flash.commands.machine import one_line
from cupy_flash.commands.table import aligned
from gpu_timing import machine
from peers import Case, Ours, chosen, peer_words
from protocol import Protocol, best_peer
from time_attention import HEADER, problem, report, run

TOKENS = 16_384
WIDTH = 2_048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
DIMS = (64, 128, 256)
GROUPED_LENGTHS = (4096, 16_384)
# Single calls between events include the gaps of their launches, which count at small sizes.
PAUSED_FROM = 4096
PAUSE = 0.01
# What the project wants to reach beside the best peer.
GOAL = 1.05
MATRIX = 8192


def cases(dtype: str, lengths: Sequence[int], dims: Sequence[int]) -> list[Case]:
    """Return the points of one dtype: those of the papers, then those with grouped heads."""
    papers = [
        Case(dtype, TOKENS // n, WIDTH // d, WIDTH // d, n, d, causal, "bnhd")
        for d in dims
        for causal in (False, True)
        for n in lengths
    ]
    grouped = [
        Case(dtype, 1, 64, 8, n, 128, causal, "bnhd")
        for causal in (False, True)
        for n in GROUPED_LENGTHS
        if n in lengths and 128 in dims
    ]
    return papers + grouped


def protocol(case: Case, rounds: int) -> Protocol:
    calls = 4 if case.n >= 8192 else 8
    return Protocol(rounds, calls, PAUSE if case.n >= PAUSED_FROM else 0.0)


def matrix_product(dtype: str, rounds: int) -> float | None:
    """Return the TFLOP/s of cuBLAS on random data, 8 products in a sample; None without it."""
    a, b = (cupy.asarray(normal((MATRIX, MATRIX), dtype, seed)) for seed in range(2))
    out = cupy.empty_like(a)
    try:
        cupy.matmul(a, b, out=out)
    except Exception as error:
        print(f"no matrix product of {dtype}: {one_line(error)}", flush=True)
        return None
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    sample = timing.called(lambda: cupy.matmul(a, b, out=out), stream, 8)
    seconds = timing.interleaved({"product": sample}, rounds=rounds)["product"]
    return 2 * MATRIX**3 / statistics.median(seconds) / 1e12


def ratios(point: dict[str, Any], ours: str, peers: Sequence[str]) -> dict[str, Any]:
    """Return the best peer and our speed over its, sustained and after pauses."""
    found: dict[str, Any] = {}
    for figure, name in (("tflops", "ratio"), ("paused_tflops", "paused_ratio")):
        best = best_peer(point, peers, figure)
        mine = point["candidates"][ours].get(figure)
        if best is not None and mine is not None:
            found[f"{name}_beside"] = best
            found[name] = mine / point["candidates"][best][figure]
    return found


def table(points: Sequence[dict[str, Any]], ours: str, peers: Sequence[str]) -> list[list[str]]:
    """Return one row for each point: everybody's TFLOP/s, and the ratios to the best peer."""
    names = [ours, *peers]
    rows = [[*HEADER[:-1], *names, "best peer", "ratio", "ratio after pauses", "MHz"]]
    for point in points:
        rates = []
        for name in names:
            found = point["candidates"].get(name, {})
            wrong = " WRONG" if found.get("wrong") else ""
            rates.append(f"{found['tflops']:.0f}{wrong}" if "tflops" in found else "-")
        rows.append(
            [
                *problem(point),
                *rates,
                point.get("ratio_beside", "-"),
                *(
                    f"{point[key]:.3f}" if key in point else "-"
                    for key in ("ratio", "paused_ratio")
                ),
                f"{point['sm_clock_mhz']:.0f}",
            ]
        )
    return rows


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def summary(points: Sequence[dict[str, Any]]) -> str:
    """Say how many points reach the goal, the least ratio and the geometric mean."""
    found = [point["ratio"] for point in points if "ratio" in point]
    if not found:
        return "no point has both ours and a peer"
    mean = math.exp(statistics.fmean(map(math.log, found)))
    reached = sum(ratio >= GOAL for ratio in found)
    return (
        f"{reached} of {len(found)} points at {GOAL} x the best peer or more; least "
        f"{min(found):.3f}, geometric mean {mean:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["float16", "bfloat16"])
    parser.add_argument("--n", nargs="+", type=int, choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--d", nargs="+", type=int, choices=DIMS, default=list(DIMS))
    parser.add_argument(
        "--kernels", nargs="+", default=["auto"], help="of ours; the first one is compared"
    )
    default = "torch-cudnn,torch-fa2,fa3,fa4"
    parser.add_argument("--peers", type=peer_words, default=peer_words(default), help=default)
    parser.add_argument("--rounds", type=int, default=9, help="samples; 20 for a claim")
    args = parser.parse_args()
    peers, used = chosen(args.peers)
    candidates = [*map(Ours, args.kernels), *peers]
    ours, names = args.kernels[0], [peer.name for peer in peers]
    points, products = [], {}
    for dtype in args.dtype:
        before = matrix_product(dtype, args.rounds)
        for case in cases(dtype, args.n, args.d):
            (point,) = run([case], candidates, protocol(case, args.rounds))
            points.append(point | ratios(point, ours, names))
        products[dtype] = {"before": before, "after": matrix_product(dtype, args.rounds)}
    report(points, Protocol(args.rounds, None, PAUSE))
    print("TFLOP/s, without a break:", *aligned(table(points, ours, names)), sep="\n")
    for dtype, found in products.items():
        figures = [f"{rate:.0f} {when}" for when, rate in found.items() if rate is not None]
        print(f"product of {dtype} matrices, TFLOP/s: {', '.join(figures) or 'not measured'}")
    print(summary(points))
    if args.json:
        how = {"rounds": args.rounds, "pause": PAUSE, "matrix_product_tflops": products}
        results = {"machine": machine(), "peers": used, **how, "points": points}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
