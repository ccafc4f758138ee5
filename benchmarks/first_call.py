"""Time the first call of a process, cold and with a warm cache.

    python benchmarks/first_call.py --json benchmarks/results/first_call.json

A first call loads NVRTC, compiles the kernel or finds it in CuPy's cache, loads it, and runs. Each
is measured in a process of its own, twice in one new cache folder: cold, then warm. The CUDA
context exists and the arrays are on the GPU by then; that and importing CuPy is told apart.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DTYPES = {
    "naive": ("float16", "bfloat16", "float32", "float64"),
    "simt": ("float16", "bfloat16", "float32", "float64"),
    "sm80": ("float16", "bfloat16"),
}
DIMS = (64, 128)
N = 256
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
        fresh(["naive", "float16", str(DIMS[0])], cache)
    for family, dtypes in DTYPES.items():
        for dtype in dtypes:
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
    if args.json:
        results = {"machine": machine(), "n": N, "first_calls": firsts}
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
