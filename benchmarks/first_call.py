"""Time the first call of a process, cold and with a warm cache, and the host cost of later ones.

    python benchmarks/first_call.py --json benchmarks/results/first_call.json

A first call loads NVRTC, compiles the kernel or finds it in CuPy's cache, loads it, and runs. Each
is measured in a process of its own, twice in one new cache folder: cold, then warm. The CUDA
context exists and the arrays are on the GPU by then; that and importing CuPy is told apart.

Later calls are made in this process, a thousand in a row without waiting. Where the host's time and
the time until the GPU is done are the same, the host is the limit. torch's
scaled_dot_product_attention takes its turns among them if torch is installed and sees the GPU.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAMILIES = ("naive", "simt")
DTYPES = ("float16", "bfloat16", "float32", "float64")
DIMS = (64, 128)
N = 256
CALLS = 1000
SAMPLES = 15
WARM_SHAPE = (1, 8, 128, 64)
ROOT = Path(__file__).parents[1]


def first_call(family: str, dtype: str, d: int) -> dict[str, float]:
    """Time the first calls of this process."""
    begin = time.perf_counter()
    import cupy
    import numpy as np

    import cupy_flash
    from cupy_flash.arrays import to_dtype

    x = cupy.empty((N, d), to_dtype(dtype))
    x.set(np.ones(x.shape, x.dtype))
    cupy.cuda.Device().synchronize()
    seconds = {"import and context": time.perf_counter() - begin}
    for name in ("first", "second"):
        begin = time.perf_counter()
        cupy_flash.attention(x, x, x, kernel=family)
        cupy.cuda.Device().synchronize()
        seconds[name] = time.perf_counter() - begin
    return seconds


def fresh(arguments: list[str], cache: str) -> dict[str, float]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    result = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "CUPY_CACHE_DIR": cache},
    )
    measured: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return measured


def candidates(dtype: str) -> dict[str, Callable[[], Any]]:
    """Return what is called in a row: ours, and torch's beside it where torch is installed."""
    import numpy as np

    import cupy_flash
    from gpu_timing import random_array

    rng = np.random.default_rng(0)
    q, k, v, out = (random_array(rng, WARM_SHAPE, np.dtype(dtype)) for _ in range(4))
    calls: dict[str, Callable[[], Any]] = {
        "out given": lambda: cupy_flash.attention(q, k, v, out=out),
        "out allocated": lambda: cupy_flash.attention(q, k, v),
    }
    if torch_version():
        import torch

        if torch.cuda.is_available():
            on_gpu = [torch.from_numpy(x.get()).to("cuda") for x in (q, k, v)]
            attend = torch.nn.functional.scaled_dot_product_attention
            calls["torch SDPA"] = lambda: attend(*on_gpu)
    return calls


def torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def host_microseconds(dtype: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median and the least of the host's time per call of many in a row.

    And of the time until the GPU is done too. The candidates take turns, so that what slows the
    host for a while slows them all.
    """
    import cupy

    calls = candidates(dtype)
    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {}
    for _ in range(SAMPLES):
        for name, call in calls.items():
            cupy.cuda.Device().synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            host = time.perf_counter() - begin
            cupy.cuda.Device().synchronize()
            done = time.perf_counter() - begin
            for when, seconds in (("host", host), ("until the GPU is done", done)):
                samples.setdefault(f"{name}, {when}", []).append(seconds / CALLS * 1e6)
    return (
        {name: statistics.median(times) for name, times in samples.items()},
        {name: min(times) for name, times in samples.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        family, dtype, d = args.child
        print(json.dumps(first_call(family, dtype, int(d))))
        return
    from cupy_flash.commands.table import aligned
    from gpu_timing import machine

    firsts: list[dict[str, Any]] = []
    table = [["kernel", "dtype", "d", "cold s", "warm cache s", "second call s", "import s"]]
    with tempfile.TemporaryDirectory() as cache:
        # Brings the libraries into the system's file cache; only CuPy's is to be cold.
        fresh([FAMILIES[0], DTYPES[0], str(DIMS[0])], cache)
    for family in FAMILIES:
        for dtype in DTYPES:
            for d in DIMS:
                with tempfile.TemporaryDirectory() as cache:
                    cold, warm = (fresh([family, dtype, str(d)], cache) for _ in range(2))
                firsts.append(
                    {"family": family, "dtype": dtype, "d": d, "cold": cold, "warm": warm}
                )
                figures = (cold["first"], warm["first"], warm["second"], warm["import and context"])
                table.append([family, dtype, str(d), *(f"{x:.4f}" for x in figures)])
                print(*table[-1], flush=True)
    print("", *aligned(table), sep="\n")
    medians, least = {}, {}
    costs = [["dtype", "candidate", "median us", "least us"]]
    for dtype in ("float16", "float32"):
        medians[dtype], least[dtype] = host_microseconds(dtype)
        for name, median in medians[dtype].items():
            costs.append([dtype, name, f"{median:.1f}", f"{least[dtype][name]:.1f}"])
    print(f"\nper call, of {SAMPLES} times {CALLS} calls in a row on {WARM_SHAPE}:")
    print(*aligned(costs), sep="\n")
    if args.json:
        results = {
            "machine": machine(),
            "torch": torch_version(),
            "n": N,
            "first_calls": firsts,
            "microseconds": medians,
            "least_microseconds": least,
        }
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
