"""Time candidate tiles of the simt kernel beside each other and beside unfused CuPy.

    python benchmarks/time_tiles.py --json benchmarks/results/simt_tiles.json

What wins goes into SIMT_TILES of cupy_flash/select.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cupy_flash import attention, explain, plan, select
from cupy_flash.compile import kernel
from cupy_flash.unfused import standard_attention
from cupy_flash.variant import Tile
from gpu_timing import machine, medians, random_array

CANDIDATES: dict[tuple[str, int], list[Tile]] = {
    ("float32", 32): [
        Tile(64, 64, 16, 16, 32, 64, 2),
        Tile(64, 64, 16, 16, 32, 32, 2),
        Tile(64, 64, 8, 16, 32, 32, 3),
        Tile(128, 64, 16, 16, 32, 32, 1),
        Tile(64, 64, 8, 16, 32, 64, 2),
    ],
    ("float32", 64): [
        Tile(64, 64, 16, 16, 64, 64, 2),
        Tile(64, 64, 16, 16, 32, 32, 2),
        Tile(64, 64, 8, 16, 32, 32, 3),
        Tile(64, 64, 8, 16, 16, 32, 3),
        Tile(64, 64, 8, 16, 16, 16, 3),
        Tile(64, 64, 8, 16, 32, 16, 3),
        Tile(64, 32, 8, 16, 32, 16, 3),
    ],
    ("float32", 128): [
        Tile(64, 64, 16, 16, 32, 16, 2),
        Tile(64, 32, 16, 16, 32, 16, 2),
        Tile(64, 64, 8, 16, 32, 16, 2),
        Tile(64, 64, 8, 16, 32, 8, 2),
        Tile(64, 32, 8, 16, 32, 8, 3),
    ],
    ("float32", 256): [
        Tile(32, 64, 16, 16, 32, 16, 2),
        Tile(32, 64, 16, 16, 16, 8, 2),
        Tile(32, 64, 8, 16, 16, 8, 2),
        Tile(32, 64, 8, 16, 32, 8, 2),
    ],
    ("float64", 32): [
        Tile(64, 32, 16, 16, 32, 32, 2),
        Tile(64, 64, 8, 16, 16, 16, 2),
        Tile(32, 64, 8, 16, 16, 16, 3),
        Tile(32, 32, 8, 16, 32, 32, 3),
        Tile(32, 64, 16, 16, 32, 32, 2),
        Tile(64, 32, 8, 16, 32, 16, 2),
    ],
    ("float64", 64): [
        Tile(64, 32, 16, 16, 32, 16, 2),
        Tile(32, 64, 16, 16, 32, 16, 2),
        Tile(32, 32, 8, 16, 32, 16, 3),
        Tile(64, 32, 8, 16, 32, 16, 2),
        Tile(64, 32, 16, 16, 16, 8, 2),
        Tile(32, 64, 8, 16, 16, 8, 3),
        Tile(32, 64, 8, 16, 16, 16, 2),
        Tile(32, 64, 8, 16, 32, 16, 2),
    ],
    ("float64", 128): [
        Tile(32, 64, 16, 16, 16, 8, 2),
        Tile(32, 32, 16, 16, 16, 8, 2),
        Tile(32, 32, 8, 16, 16, 8, 2),
        Tile(32, 64, 8, 16, 16, 8, 2),
    ],
    ("float64", 256): [
        Tile(16, 64, 16, 16, 16, 8, 2),
        Tile(16, 64, 8, 16, 16, 8, 2),
        Tile(16, 32, 8, 16, 16, 8, 2),
    ],
}
N = 4096


def measure(dtype: Any, bucket: int, heads: int) -> dict[str, Any]:
    accumulate = "float64" if dtype == np.float64 else "float32"
    rng = np.random.default_rng(0)
    shape = (1, heads, N, bucket)
    q, k, v, out = (random_array(rng, shape, dtype) for _ in range(4))
    flops = 4 * heads * N * N * bucket
    calls: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for tile in CANDIDATES[accumulate, bucket]:
        name = (
            f"{tile.block_m}x{tile.block_n} {tile.threads_m}x{tile.threads_n} "
            f"{tile.chunk_d}/{tile.chunk_n} b{tile.blocks}"
        )

        def call(tile: Tile = tile) -> None:
            select.SIMT_TILES[accumulate, bucket] = tile
            plan.forget()
            attention(q, k, v, out=out, kernel="simt")

        call()
        variant = explain(q, k, v, kernel="simt").variant
        assert variant is not None
        function = kernel(variant, 0)
        details[name] = {
            "registers": function.num_regs,
            "local": function.local_size_bytes,
            "shared": variant.shared_memory,
        }
        calls[name] = call
    calls["unfused"] = lambda: standard_attention(q, k, v)
    times = medians(calls, eager=("unfused",), repeat=2, rounds=3)
    return {
        name: {"tflops": flops / seconds / 1e12, **details.get(name, {})}
        for name, seconds in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--heads", type=int, default=16)
    args = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "n": N, "heads": args.heads, "tiles": {}}
    for dtype in (np.float32, np.float64, np.float16):
        name = np.dtype(dtype).name
        for bucket in select.HEAD_DIM_BUCKETS:
            rows = measure(np.dtype(dtype), bucket, args.heads)
            results["tiles"][f"{name} {bucket}"] = rows
            for label, row in rows.items():
                print(
                    f"{name:9} d={bucket:3} {label:24}",
                    *(f"{k}={v:.4g}" for k, v in row.items()),
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
