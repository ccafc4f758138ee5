"""Time attention beside unfused CuPy, with the error of each against float64 beside its time.

    python benchmarks/time_attention.py --json benchmarks/results/attention.json
    python benchmarks/time_attention.py --dtype float32 --d 64 --n 1024 8192 --causal yes

Candidates run interleaved, once in every round. "auto" is the kernel that `attention` takes by
itself, "naive" the obvious one, "unfused" is matmul, max, exp, sum, matmul. A causal call has half
the work by count, and unfused CuPy does all of it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy
import ml_dtypes
import numpy as np

from cupy_flash import accuracy, attention, explain, reference
from cupy_flash.commands.machine import one_line
from cupy_flash.commands.table import aligned
from cupy_flash.unfused import standard_attention
from gpu_timing import machine, medians, random_array

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
CAUSAL = {"no": (False,), "yes": (True,), "both": (False, True)}
# heads * d unless --heads says otherwise: some milliseconds at n = 4096.
WIDTH = 1024
# Rows whose errors are measured: so many at the beginning, in the middle and at the end of a head.
SAMPLE_ROWS = 16


@dataclass(frozen=True)
class Sample:
    """Some rows of a result: where they are, their inputs and their exact values."""

    where: tuple[Any, ...]
    inputs: tuple[np.ndarray[Any, Any], ...]
    exact: reference.Reference

    def compare(self, out: Any, family: str | None) -> accuracy.Comparison:
        """Compare the rows with the exact ones, within the bound of what computed them."""
        q, k, v = self.inputs
        scale = reference.default_scale(q.shape[-1])
        bound = accuracy.out_bound(self.exact, q.dtype.name, q, k, v, scale, family)
        return accuracy.compare(cupy.asnumpy(out[self.where]), self.exact.out, bound)


def samples(arrays: list[Any], causal: bool) -> list[Sample]:
    """Compute some rows of the first and the last head in float64 (float64 in long double)."""
    heads, n = arrays[0].shape[1:3]
    rows = min(SAMPLE_ROWS, n)
    found = []
    for head in sorted({0, heads - 1}):
        k, v = (cupy.asnumpy(x[0, head]) for x in arrays[1:])
        for begin in sorted({0, (n - rows) // 2, n - rows}):
            where = (0, head, slice(begin, begin + rows))
            q = cupy.asnumpy(arrays[0][where])
            exact = reference.attention(q, k, v, causal=causal, offset=begin)
            found.append(Sample(where, (q, k, v), exact))
    return found


def errors(out: Any, checks: list[Sample], family: str | None) -> dict[str, float]:
    """Return largest and rms error, and the largest error / bound, over the samples."""
    compared = [sample.compare(out, family) for sample in checks]
    return {
        "max_error": max(c.max_error for c in compared),
        "rms_error": math.sqrt(sum(c.rms_error**2 for c in compared) / len(compared)),
        "error_over_bound": max(c.ratio for c in compared),
    }


def measure(
    dtype: str, n: int, d: int, heads: int, causal: bool, *, repeat: int, rounds: int
) -> dict[str, Any]:
    """Measure every candidate on one problem; one that can't run says why."""
    rng = np.random.default_rng(0)
    q, k, v = (random_array(rng, (1, heads, n, d), DTYPES[dtype]) for _ in range(3))
    out = cupy.empty_like(q)
    calls: dict[str, Callable[[], Any]] = {
        "auto": lambda: attention(q, k, v, causal=causal, out=out),
        "naive": lambda: attention(q, k, v, causal=causal, out=out, kernel="naive"),
        "unfused": lambda: standard_attention(q, k, v, causal=causal),
    }
    checks = samples([q, k, v], causal)
    families = {"auto": explain(q, k, v, causal=causal).kernel, "naive": "naive"}
    found: dict[str, dict[str, Any]] = {}
    for name, call in list(calls.items()):
        try:
            found[name] = errors(call(), checks, families.get(name))
        except Exception as error:
            # What CuPy can't do (a batched matmul of bfloat16, S beyond the memory) is a result.
            if name != "unfused":
                raise
            found[name] = {"not_possible": one_line(error)}
            del calls[name]
    cupy.cuda.Device().synchronize()
    times = medians(calls, eager=("unfused",), repeat=repeat, rounds=rounds)
    flops = 4 * heads * n * n * d / (2 if causal else 1)
    for name, seconds in times.items():
        found[name] |= {"seconds": seconds, "tflops": flops / seconds / 1e12}
    found["auto"]["kernel"] = families["auto"]
    problem = {"dtype": dtype, "n": n, "d": d, "heads": heads, "causal": causal}
    return {**problem, "candidates": found}


def lines(point: dict[str, Any]) -> list[list[str]]:
    """Return the table rows of one problem."""
    problem = [point["dtype"], *(str(point[name]) for name in ("n", "d", "heads"))]
    problem.append("causal" if point["causal"] else "full")
    rows = []
    for name, found in point["candidates"].items():
        label = f"{name} ({found['kernel']})" if "kernel" in found else name
        if "seconds" not in found:
            rows.append([*problem, label, "not possible in CuPy", *[""] * 4])
            continue
        cells = (f"{found['seconds'] * 1e3:.3f}", f"{found['tflops']:.2f}")
        figures = (f"{found[key]:.2e}" for key in ("max_error", "rms_error"))
        rows.append([*problem, label, *cells, *figures, f"{found['error_over_bound']:.3f}"])
    return rows


def failed(point: dict[str, Any]) -> list[dict[str, Any]]:
    return [found for found in point["candidates"].values() if "not_possible" in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--n", nargs="+", type=int, default=[4096], help="rows and keys")
    parser.add_argument("--d", nargs="+", type=int, default=[32, 64, 128, 256])
    parser.add_argument("--heads", type=int, help=f"default {WIDTH} // d")
    parser.add_argument("--causal", choices=CAUSAL, default="both")
    parser.add_argument("--repeat", type=int, default=1, help="calls per sample")
    parser.add_argument("--rounds", type=int, default=7, help="samples; their median counts")
    args = parser.parse_args()
    header = ["dtype", "n", "d", "heads", "mask", "candidate", "ms", "TFLOP/s"]
    table = [[*header, "max error", "rms error", "error/bound"]]
    points = []
    for dtype in args.dtype:
        for n in args.n:
            for d in args.d:
                heads = args.heads or max(WIDTH // d, 1)
                for causal in CAUSAL[args.causal]:
                    how = {"repeat": args.repeat, "rounds": args.rounds}
                    points.append(measure(dtype, n, d, heads, causal, **how))
                    cupy.get_default_memory_pool().free_all_blocks()
                    new = lines(points[-1])
                    table += new
                    print(*("  ".join(filter(None, row)) for row in new), sep="\n", flush=True)
    print("", *aligned(table), sep="\n")
    why = {f"{p['dtype']}: {c['not_possible']}": None for p in points for c in failed(p)}
    print(*(f"not possible in CuPy, {reason}" for reason in why), sep="\n")
    if args.json:
        results = {"machine": machine(), **how, "points": points}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
