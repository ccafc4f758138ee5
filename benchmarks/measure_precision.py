"""Measure speed and errors of attention in each precision that float32 and float64 have.

    python benchmarks/measure_precision.py --json benchmarks/results/precision.json

Speed: 16,384 tokens in sequences of 4,096, heads x d = 2,048, not causal; all of a point take turns
in one run. Errors: 64 rows over n keys, beside attention in float64 (of float64: 8 rows, beside
long double on the CPU), of ours and of unfused CuPy; on normally distributed data, with q 30 times
as large, with all scores lower by 120, and with a channel of k and v far above the others.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from cupy_flash import attention
from cupy_flash.commands.table import aligned
from cupy_flash.unfused import standard_attention
from gpu_timing import machine, medians
from time_options import write

PRECISIONS = (("float32", "highest"), ("float32", "tf32"), ("float64", "highest"))
DIMS = (64, 128)
LENGTHS = (4096, 131_072)
DATA = ("normal", "x30", "offset", "outlier")
TOKENS, WIDTH, N = 16_384, 2048, 4096
ROWS = {"float32": 64, "float64": 8}
Array = np.ndarray[Any, Any]


def torch_efficient(q: Any, k: Any, v: Any) -> Callable[[], Any] | None:
    """Return PyTorch's float32 attention on the same arrays, if PyTorch is installed."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return None
    from peers_torch import on_cupys_stream

    tensors = [torch.from_dlpack(x) for x in (q, k, v)]

    def call() -> Any:
        with on_cupys_stream(), sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*tensors)

    return call


def speeds(dtype: str, d: int) -> dict[str, float]:
    """Return TFLOP/s of each precision, of unfused CuPy and of PyTorch."""
    rng = np.random.default_rng(d)
    shape = (TOKENS // N, WIDTH // d, N, d)
    q, k, v = (cupy.asarray(rng.standard_normal(shape).astype(dtype)) for _ in range(3))
    out = cupy.empty_like(q)
    calls: dict[str, Callable[[], Any]] = {
        precision: lambda precision=precision: attention(q, k, v, precision=precision, out=out)
        for of_dtype, precision in PRECISIONS
        if of_dtype == dtype
    }
    eager = {"unfused": lambda: standard_attention(q, k, v)}
    if dtype == "float32" and (call := torch_efficient(q, k, v)):
        eager["torch efficient"] = call
    seconds = medians(calls | eager, eager=eager, repeat=1, rounds=5)
    flops = 4.0 * math.prod(shape) * N
    return {name: flops / one / 1e12 for name, one in seconds.items()}


def drawn(data: str, n: int, d: int, dtype: str) -> list[Array]:
    """Draw q, k and v of one head."""
    rng = np.random.default_rng(n + d)
    q, k, v = (rng.standard_normal((rows, d)) for rows in (ROWS[dtype], n, n))
    if data == "x30":
        q *= 30
    elif data == "offset":
        q[:, 0] = math.sqrt(120 * math.sqrt(d))
        k[:, 0] = -q[0, 0]
    elif data == "outlier":
        k[:, 5] *= 10
        v[:, 5] *= 20
    return [x.astype(dtype) for x in (q, k, v)]


def exact_attention(q: Array, k: Array, v: Array) -> Array:
    """Compute attention in the next wider type."""
    wide = np.longdouble if q.dtype == np.float64 else np.float64
    S = q.astype(wide) @ k.astype(wide).T / np.sqrt(wide(q.shape[-1]))
    P = np.exp(S - S.max(axis=1, keepdims=True))
    out: Array = (P @ v.astype(wide)) / P.sum(axis=1, keepdims=True)
    return out


def errors(dtype: str, d: int, n: int, data: str) -> dict[str, dict[str, float]]:
    """Return the largest and the rms error of each precision and of unfused CuPy."""
    hosts = drawn(data, n, d, dtype)
    want = exact_attention(*hosts)
    arrays = [cupy.asarray(x) for x in hosts]
    found = {
        precision: attention(*arrays, precision=precision)
        for of_dtype, precision in PRECISIONS
        if of_dtype == dtype
    }
    found["unfused"] = standard_attention(*arrays)
    measured = {}
    for name, got in found.items():
        off = np.abs(got.get().astype(want.dtype) - want).astype(np.float64)
        measured[name] = {"max": float(off.max()), "rms": float(np.sqrt(np.mean(off**2)))}
    return measured


def report(points: Sequence[dict[str, Any]]) -> None:
    rows = [["dtype", "d", "precision", "TFLOP/s", "data", "n", "max error", "rms", "of unfused"]]
    for point in points:
        for name, one in point["errors"].items():
            plain = point["errors"]["unfused"]
            ratios = (f"{one[key] / plain[key]:.2f}" for key in ("max", "rms"))
            place = [point["dtype"], str(point["d"]), name, f"{point['tflops'][name]:.1f}"]
            sizes = [point["data"], str(point["n"]), f"{one['max']:.1e}", f"{one['rms']:.1e}"]
            rows.append([*place, *sizes, " ".join(ratios)])
    print("", *aligned(rows), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the results there")
    args = parser.parse_args()
    points = []
    for dtype, d in itertools.product(ROWS, DIMS):
        tflops = speeds(dtype, d)
        print(dtype, d, {name: round(rate, 1) for name, rate in tflops.items()}, flush=True)
        for data, n in itertools.product(DATA, LENGTHS):
            found = errors(dtype, d, n, data)
            point = {"dtype": dtype, "d": d, "n": n, "data": data}
            points.append({**point, "tflops": tflops, "errors": found})
    write({"machine": machine(), "points": points}, args.json, add=False)
    report(points)


if __name__ == "__main__":
    main()
