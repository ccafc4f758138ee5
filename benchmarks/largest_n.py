"""Find the longest attention that 100 GiB of GPU memory hold: O(n) beside the O(n^2) of unfused.

    python benchmarks/largest_n.py --json benchmarks/results/largest_n.json

One head, d = 64. For each dtype three numbers:

* ours, few rows: the largest n for which q, k, v, out and lse fit; k and v of that n are allocated
  and as many of their keys are computed as the time allows, with the answer in the last of them;
* ours, square: the largest m = n that the time allows, memory being no concern;
* unfused: the largest m = n that matmul, softmax, matmul manage, by bisection of attempts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from cupy_flash import accuracy, attention, explain, reference
from cupy_flash.commands.machine import one_line
from cupy_flash.commands.table import aligned
from cupy_flash.products import loosest
from cupy_flash.unfused import standard_attention
from gpu_timing import machine, random_array

D = 64
LIMIT = 100 * 2**30
DTYPES = ("float32", "float16")
# Sizes are multiples of this.
STEP = 1024
# Left free of the limit for what the script itself needs to place and check the needle.
SLACK = 2**25
SAMPLE_ROWS = 16
RUNS = ("few rows", "square", "unfused")


def timed(call: Callable[[], Any]) -> float:
    """Return the seconds of a call, the GPU's work included."""
    cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    call()
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - begin


def free() -> None:
    cupy.get_default_memory_pool().free_all_blocks()


def pool_bytes() -> int:
    return int(cupy.get_default_memory_pool().total_bytes())


def few_rows(dtype: str, rows: int, seconds: float) -> dict[str, Any]:
    """Fill the memory with k and v; the needle at the last computed key decides every row."""
    itemsize = np.dtype(dtype).itemsize
    small = 2 * rows * D * itemsize + rows * 4
    fits = (LIMIT - SLACK - small) // (2 * D * itemsize) // STEP * STEP
    q = cupy.zeros((rows, D), dtype)
    q[:, 0] = 60
    out, lse = cupy.empty((rows, D), dtype), cupy.empty(rows, np.float32)
    k, v = cupy.zeros((fits, D), dtype), cupy.zeros((fits, D), dtype)
    needle = random_array(np.random.default_rng(0), (D,), dtype)
    held = pool_bytes()

    def attend(keys: int) -> float:
        k[keys - 1, 0], v[keys - 1] = 1, needle
        options = {"scale": 1.0, "out": (out, lse), "return_lse": True}
        taken = timed(lambda: attention(q, k[:keys], v[:keys], **options))
        k[keys - 1, 0], v[keys - 1] = 0, 0
        return taken

    attend(STEP)
    probe = 256 * STEP
    per_key = attend(probe) / probe
    keys = min(fits, int(seconds / per_key) // STEP * STEP)
    taken = attend(keys)
    extra = pool_bytes() - held
    right = bool((out == needle).all())
    result = {"rows": rows, "n_fits": fits, "bytes": held, "extra_bytes": extra}
    return {**result, "n_computed": keys, "seconds": taken, "right": right}


def sample_error(out: Any, q: Any, k: Any, v: Any, family: str | None = None) -> float:
    """Return the largest error / bound of some rows; `family` is the kernel's."""
    k, v = cupy.asnumpy(k), cupy.asnumpy(v)
    worst = 0.0
    for begin in (0, len(q) - SAMPLE_ROWS):
        rows = cupy.asnumpy(q[begin : begin + SAMPLE_ROWS])
        exact = reference.attention(rows, k, v, products=loosest(family, q.dtype.name))
        scale = reference.default_scale(D)
        bound = accuracy.out_bound(exact, q.dtype.name, rows, k, v, scale, family)
        got = cupy.asnumpy(out[begin : begin + SAMPLE_ROWS])
        worst = max(worst, accuracy.compare(got, exact.out, bound).ratio)
    return worst


def arrays(n: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [random_array(rng, (n, D), dtype) for _ in range(3)]


def square(dtype: str, seconds: float) -> dict[str, Any]:
    """Run the largest m = n that should take `seconds`, by the rate at a smaller n."""
    probe = 64 * STEP
    q, k, v = arrays(probe, dtype)
    timed(lambda: attention(q, k, v))
    rate = timed(lambda: attention(q, k, v)) / probe**2
    n = int(math.sqrt(seconds / rate)) // STEP * STEP
    del q, k, v
    free()
    q, k, v = arrays(n, dtype)
    out, lse = cupy.empty_like(q), cupy.empty(n, np.float32)
    held = pool_bytes()
    taken = timed(lambda: attention(q, k, v, out=(out, lse), return_lse=True))
    extra = pool_bytes() - held
    ratio = sample_error(out, q, k, v, explain(q, k, v).kernel)
    result = {"n": n, "seconds": taken, "bytes": held, "extra_bytes": extra}
    return {**result, "error_over_bound": ratio, "scores_would_need": n * n * 4}


def unfused(dtype: str) -> dict[str, Any]:
    """Bisect the largest n; running out of memory is an answer, any other failure is told."""
    attempts: list[dict[str, Any]] = []

    def works(n: int) -> bool:
        attempt: dict[str, Any] = {"n": n}
        attempts.append(attempt)
        try:
            free()
            q, k, v = arrays(n, dtype)
            out = None

            def call() -> None:
                nonlocal out
                out = standard_attention(q, k, v)

            attempt["seconds"] = timed(call)
            attempt["bytes"] = pool_bytes()
            attempt["error_over_bound"] = sample_error(out, q, k, v)
        except Exception as error:
            attempt["failure"] = one_line(error)
        print(f"  {dtype} unfused: {attempt}", flush=True)
        return "failure" not in attempt

    # At `high` the scores alone don't fit.
    low, high = 16, math.isqrt(LIMIT // np.dtype(dtype).itemsize) // STEP + 1
    if not works(low * STEP):
        return {"n": None, "attempts": attempts}
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle * STEP) else (low, middle)
    best = next(a for a in reversed(attempts) if a["n"] == low * STEP)
    return {**best, "attempts": attempts}


def rows_of_table(dtype: str, runs: dict[str, dict[str, Any]]) -> list[list[str]]:
    def gib(size: float) -> str:
        return f"{size / 2**30:.2f}"

    few, ours, theirs = (runs[name] for name in RUNS)
    label = f"ours, {few['rows']} rows"
    right = "exact" if few["right"] else "WRONG"
    memory = [gib(few["bytes"]), gib(few["extra_bytes"])]
    rows = [
        [dtype, f"{label}, held", f"{few['n_fits']:,}", "", *memory, ""],
        [dtype, f"{label}, run", f"{few['n_computed']:,}", f"{few['seconds']:.2f}", "", "", right],
    ]
    cells = [f"{ours['n']:,}", f"{ours['seconds']:.2f}", gib(ours["bytes"])]
    ratio = f"{ours['error_over_bound']:.3f}"
    rows.append([dtype, "ours, square", *cells, gib(ours["extra_bytes"]), ratio])
    if theirs["n"] is None:
        return [*rows, [dtype, "unfused, square", "none", *[""] * 4]]
    cells = [f"{theirs['n']:,}", f"{theirs['seconds']:.2f}", gib(theirs["bytes"])]
    ratio = f"{theirs['error_over_bound']:.3f}"
    return [*rows, [dtype, "unfused, square", *cells, "", ratio]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rows", type=int, default=4096, help="rows of q beside the longest k")
    parser.add_argument("--seconds", type=float, default=25, help="for our run with few rows")
    parser.add_argument("--square-seconds", type=float, default=5, help="for our square run")
    args = parser.parse_args()
    cupy.get_default_memory_pool().set_limit(size=LIMIT)
    found: dict[str, dict[str, Any]] = {dtype: {} for dtype in args.dtype}
    # Unfused comes last: should it break the CUDA context, ours has been measured.
    for name in RUNS:
        for dtype in args.dtype:
            if name == "few rows":
                free()
                found[dtype][name] = few_rows(dtype, args.rows, args.seconds)
            elif name == "square":
                free()
                found[dtype][name] = square(dtype, args.square_seconds)
            else:
                found[dtype][name] = unfused(dtype)
            told = {k: x for k, x in found[dtype][name].items() if k != "attempts"}
            print(dtype, name, told, flush=True)
    table = [["dtype", "what", "n", "seconds", "GiB held", "GiB besides", "error/bound"]]
    for dtype, runs in found.items():
        table += rows_of_table(dtype, runs)
    print("", *aligned(table), sep="\n")
    if args.json:
        results = {"machine": machine(), "limit_bytes": LIMIT, "d": D, "dtypes": found}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
