"""Count device-memory traffic with the profiler, beside what `cupy_flash.roofline` predicts.

    python benchmarks/count_traffic.py --json benchmarks/results/traffic.json

Nsight Compute (`ncu`, on the PATH or named in NCU) profiles one process per group of counters, so
that every kernel runs once and finds the caches as the kernel before left them; before the first
one of a point they hold something else. Counted are the bytes to and from device memory, and of
what the L2 cache was asked for, the part that it held.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from cupy_flash import attention, roofline, softmax, standard_attention
from cupy_flash.arrays import to_dtype
from cupy_flash.commands.bench_measure import DRAWN
from cupy_flash.commands.table import aligned
from gpu_timing import machine, random_array

ROOT = Path(__file__).parents[1]
# Counters that the hardware can read in one run of a kernel.
GROUPS = (
    ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    ("lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum"),
)
# Bytes; more than the L2 cache of any GPU of today.
FLUSH = 1 << 29
# A kernel that the profiler sees after those of each point.
END_OF_POINT = "end_of_point"


@dataclass(frozen=True)
class Point:
    """What is computed: `heads` times n rows of n keys, or of n columns for a softmax."""

    what: str
    n: int
    d: int
    heads: int
    dtype: str
    causal: bool

    def operation(self) -> Callable[[], Any]:
        """Make the arrays and return the call."""
        dtype = to_dtype(self.dtype)
        if self.what.startswith("softmax"):
            x = drawn((self.heads, self.n, self.n), dtype)
            out = cupy.empty_like(x)
            method = self.what.removeprefix("softmax ")
            return lambda: softmax(x, method=method, out=out)
        q, k, v = (drawn((self.heads, self.n, self.d), dtype, seed) for seed in range(3))
        q, k, v = q[None], k[None], v[None]
        if self.what == "standard":
            return lambda: standard_attention(q, k, v, causal=self.causal)
        out = cupy.empty_like(q)
        return lambda: attention(q, k, v, causal=self.causal, out=out)

    def predicted(self) -> int:
        """Return the bytes that the roofline model says."""
        if self.what.startswith("softmax"):
            cost = {
                "softmax online": roofline.softmax_online,
                "softmax three_pass": roofline.softmax_three_pass,
            }[self.what]
            return cost(self.heads * self.n, self.n, dtype=self.dtype).bytes
        cost = {
            "fused": roofline.flash_attention,
            "standard": roofline.standard_attention,
        }[self.what]
        sizes = {"dtype": self.dtype, "heads": self.heads, "causal": self.causal}
        return cost(self.n, self.n, self.d, **sizes).bytes


def drawn(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Return normally distributed data that repeats itself: the host takes minutes to draw all."""
    size = math.prod(shape)
    numbers = random_array(np.random.default_rng(seed), (min(size, DRAWN),), dtype)
    return cupy.tile(numbers, -(-size // DRAWN))[:size].reshape(shape)


def points() -> list[Point]:
    """Return what is counted: one head-dim, sizes from inside L2 to far outside it."""
    found = [
        Point(what, n, 128, 8, "float16", causal)
        for what, causal, n in itertools.product(
            ("fused", "standard"), (False, True), (512, 1024, 2048, 4096, 8192, 16384)
        )
    ]
    # One head whose K and V alone are many times L2.
    found += [Point("fused", n, 128, 1, "float16", False) for n in (65_536, 262_144, 1_048_576)]
    found += [
        Point(f"softmax {method}", n, 0, 8, dtype, False)
        for method, dtype, n in itertools.product(
            ("online", "three_pass"), ("float16", "float32"), (1024, 4096, 8192)
        )
    ]
    # Rows that don't fit in registers.
    found += [
        Point(f"softmax {method}", 32_768, 0, 1, "float32", False)
        for method in ("online", "three_pass")
    ]
    return found


def run_profiled(point: Point) -> None:
    """Run a point once between the profiler's start and stop, the caches filled with other data."""
    text = f'extern "C" __global__ void {END_OF_POINT}() {{}}'
    end = cupy.RawModule(code=text).get_function(END_OF_POINT)
    call = point.operation()
    call()
    other = cupy.zeros(FLUSH, np.uint8)
    # Read, so that what L2 holds is as it is in memory: lines that were only written would be
    # written back, and counted, during the call.
    other.sum()
    cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.start()
    call()
    end((1,), (1,), ())
    cupy.cuda.Device().synchronize()
    cupy.cuda.profiler.stop()
    del call, other
    cupy.get_default_memory_pool().free_all_blocks()


def count(chosen: Sequence[Point], counters: tuple[str, ...]) -> list[tuple[int, dict[str, float]]]:
    """Return for each point the number of kernels and each counter's sum over them."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    profiler = [
        *(os.environ.get("NCU", "ncu"), "--profile-from-start", "off", "--cache-control", "none"),
        *("--clock-control", "none", "--metrics", ",".join(counters)),
        *("--csv", "--page", "raw", "--print-units", "base"),
    ]
    children = json.dumps([asdict(point) for point in chosen])
    result = subprocess.run(
        [*profiler, sys.executable, __file__, "--child", children],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    found = totals(result.stdout, counters)
    if len(found) != len(chosen):
        raise SystemExit(
            f"the profiler saw {len(found)} points of {len(chosen)}:\n{result.stdout[-2000:]}"
        )
    return found


def totals(output: str, counters: tuple[str, ...]) -> list[tuple[int, dict[str, float]]]:
    """Return the kernels and sums of each point that ncu printed: a header, units, kernels."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    header, _, *rows = csv.reader(io.StringIO("\n".join(lines))) if lines else ([], [])
    found = []
    kernels: list[list[str]] = []
    for row in rows:
        if row[header.index("Kernel Name")].startswith(END_OF_POINT):
            sums = {name: _sum(kernels, header.index(name)) for name in counters}
            found.append((len(kernels), sums))
            kernels = []
        else:
            kernels.append(row)
    return found


def _sum(rows: Sequence[Sequence[str]], column: int) -> float:
    return sum(float(row[column].replace(",", "")) for row in rows)


def described(point: Point, kernels: int, counted: dict[str, float]) -> dict[str, Any]:
    """Return what was counted of a point, beside what is predicted."""
    hits, misses = (counted[counter] for counter in GROUPS[1])
    moved = sum(counted[counter] for counter in GROUPS[0])
    return {
        **asdict(point),
        "kernels": kernels,
        "predicted_bytes": point.predicted(),
        "read_bytes": int(counted[GROUPS[0][0]]),
        "written_bytes": int(counted[GROUPS[0][1]]),
        "counted_over_predicted": moved / point.predicted(),
        "l2_hit_rate": hits / (hits + misses),
    }


def line(result: dict[str, Any]) -> list[str]:
    return [
        *(result["what"], result["dtype"], "causal" if result["causal"] else "full"),
        *(str(result["heads"]), str(result["n"]), str(result["kernels"])),
        f"{result['predicted_bytes'] / 1e6:,.1f}",
        f"{(result['read_bytes'] + result['written_bytes']) / 1e6:,.1f}",
        f"{result['counted_over_predicted']:.2f}",
        f"{result['l2_hit_rate']:.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--what", nargs="+", help="only these, such as fused or standard")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        for fields in json.loads(args.child):
            run_profiled(Point(**fields))
        return
    header = ["what", "dtype", "mask", "heads", "n", "kernels", "predicted MB", "counted MB"]
    table = [[*header, "counted/predicted", "L2 hits"]]
    chosen = [point for point in points() if not args.what or point.what in args.what]
    groups = [count(chosen, group) for group in GROUPS]
    results = [
        described(point, kernels, first | second)
        for point, (kernels, first), (_, second) in zip(chosen, *groups, strict=True)
    ]
    print(*aligned([*table, *map(line, results)]), sep="\n")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "points": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
