"""Time both softmaxes beside a copy of the same bytes, for rows of 1 to 4 million elements.

    python benchmarks/time_softmax.py --json benchmarks/results/time_softmax.json
    python benchmarks/time_softmax.py --dtype float32 --n 1024 1048576 --megabytes 64

Candidates run interleaved, once in every round, as CUDA graphs. Bytes count what a method moves:
x once for each pass over memory that it makes (a row that fits in registers is read once, by
either method) and the result once. A copy reads and writes each byte once. "of copy" is a method's
bytes per second over the copy's; "copies" is its time in units of the copy's, which compares
methods whatever they read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from cupy_flash import accuracy, reference, softmax
from cupy_flash.arrays import FLOAT_NAMES, describe, to_dtype
from cupy_flash.commands.table import aligned
from cupy_flash.device import actual
from cupy_flash.softmaxes.problem import METHODS, make_softmax_problem
from cupy_flash.softmaxes.select import choose_softmax
from gpu_timing import machine, medians, random_array

LENGTHS = tuple(4**i for i in range(12))
# Elements whose errors are measured, of the first and the last row.
SAMPLE = 2**20


def reads(x: Any, method: str) -> int:
    """Return how often a method reads x from memory."""
    problem = make_softmax_problem(describe("x", x), -1, method)
    return choose_softmax(problem, actual(problem.device or 0)).reads


def error_over_bound(x: Any, out: Any) -> float:
    """Return the largest error of two rows in units of its bound."""
    worst = 0.0
    for row in sorted({0, len(x) - 1}):
        host = cupy.asnumpy(x[row])
        exact = reference.softmax(host)
        bound = accuracy.softmax_bound(host, exact)
        worst = max(worst, accuracy.compare(cupy.asnumpy(out[row]), exact, bound).ratio)
    return worst


def measure(dtype: str, n: int, nbytes: int, *, repeat: int, rounds: int) -> dict[str, Any]:
    """Measure copy and both methods on rows of n elements, `nbytes` of them together."""
    itemsize = to_dtype(dtype).itemsize
    rows = max(1, nbytes // (n * itemsize))
    rng = np.random.default_rng(0)
    # One block of random rows many times over: drawing gigabytes on the host takes minutes.
    block = min(rows, max(1, SAMPLE // n))
    drawn = random_array(rng, (block, n), to_dtype(dtype))
    x = cupy.concatenate([drawn] * (-(-rows // block)))[:rows]
    out = cupy.empty_like(x)
    size = x.nbytes
    calls: dict[str, Callable[[], Any]] = {
        "copy": lambda: out.data.copy_from_device_async(x.data, size),
    }
    for method in METHODS:
        calls[method] = lambda method=method: softmax(x, method=method, out=out)
    point: dict[str, Any] = {"dtype": dtype, "n": n, "rows": rows, "bytes": size}
    found: dict[str, dict[str, Any]] = {"copy": {"reads": 1}}
    for method in METHODS:
        calls[method]()
        found[method] = {
            "reads": reads(x, method),
            "error_over_bound": error_over_bound(x, out),
        }
    cupy.cuda.Device().synchronize()
    times = medians(calls, repeat=repeat, rounds=rounds)
    for name, seconds in times.items():
        moved = size * (found[name]["reads"] + 1)
        found[name] |= {
            "seconds": seconds,
            "bytes_per_second": moved / seconds,
            "of_copy": moved / seconds / (2 * size / times["copy"]),
            "copies": seconds / times["copy"],
        }
    return {**point, "candidates": found}


def row(point: dict[str, Any]) -> tuple[str, ...]:
    copy = point["candidates"]["copy"]
    cells = [point["dtype"], str(point["n"]), str(point["rows"])]
    cells.append(f"{copy['bytes_per_second'] / 1e9:.0f}")
    for method in METHODS:
        found = point["candidates"][method]
        cells.append(f"{found['bytes_per_second'] / 1e9:.0f}")
        cells.append(f"{found['of_copy']:.3f}")
        cells.append(f"{found['copies']:.2f}")
    return tuple(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time both softmaxes beside a copy.")
    parser.add_argument("--dtype", nargs="+", choices=FLOAT_NAMES, default=list(FLOAT_NAMES))
    parser.add_argument("--n", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--megabytes", type=int, default=1024, help="of x (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=4, help="calls per measurement")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write all results there")
    args = parser.parse_args()
    points = []
    header = ["dtype", "n", "rows", "copy GB/s"]
    for method in METHODS:
        header += [f"{method} GB/s", "of copy", "copies"]
    table = [tuple(header)]
    for dtype in args.dtype:
        for n in args.n:
            point = measure(
                dtype, n, args.megabytes * 10**6, repeat=args.repeat, rounds=args.rounds
            )
            points.append(point)
            cupy.get_default_memory_pool().free_all_blocks()
            table.append(row(point))
            print(*table[-1], flush=True)
    print("", *aligned(table), sep="\n")
    if args.json:
        result = {"machine": machine(), "megabytes": args.megabytes, "points": points}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    worst = max(
        point["candidates"][method]["error_over_bound"] for point in points for method in METHODS
    )
    print(f"largest error / bound: {worst:.3f}")
    # Written so that NaN is wrong.
    if not worst <= 1:
        raise SystemExit("a result is wrong: its time means nothing")


if __name__ == "__main__":
    main()
