"""Small problems for compute-sanitizer; run_sanitizers.sh runs them under each of its tools.

    python tests/gpu/sanitizer_problems.py              every problem, each against float64
    python tests/gpu/sanitizer_problems.py --planted T  a kernel with the fault that T looks for

CuPy's memory pool is off, so every array is an allocation of its own that ends where it ends.
What a kernel must not read is never written: padding beyond the lengths and the gaps of a sliced
array. So memcheck sees an access beyond an array, and initcheck one beside its elements.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

import cupy_flash
from cupy_flash import accuracy, reference
from strategies import DTYPES

Array = np.ndarray[Any, Any]

# Head dims of each simt bucket, at its edge and below; naive sums 128 columns at a time.
DIMS = {"simt": ((32, 32), (33, 64), (128, 97), (200, 256)), "naive": ((32, 32), (70, 130))}
LAYOUTS = ("swapped", "transposed", "sliced", "negative", "broadcast")

# Each has the fault that one tool looks for, in 64 threads.
PLANTED = {
    "memcheck": "y[threadIdx.x + 1] = x[threadIdx.x];",
    "initcheck": "y[threadIdx.x] = x[threadIdx.x];",
    "racecheck": """
        __shared__ float shared[64];
        shared[threadIdx.x] = x[threadIdx.x];
        y[threadIdx.x] = shared[63 - threadIdx.x];
    """,
    "synccheck": """
        y[threadIdx.x] = x[threadIdx.x];
        if (threadIdx.x % 2 == 1) __syncwarp(0x55555555u);  // of lanes that the mask leaves out
    """,
}


@dataclass(frozen=True)
class Small:
    """One problem: grouped heads, and sizes that end inside a tile."""

    kernel: str
    dtype: str
    d: int
    p: int
    m: int = 67
    n: int = 70
    causal: bool = False
    lengths: tuple[tuple[int, int], tuple[int, int]] | None = None
    layout: str = "contiguous"


def problems() -> Iterator[Small]:
    for kernel, dims in DIMS.items():
        for dtype in DTYPES:
            for number, (d, p) in enumerate(dims):
                causal = number % 2 == 1
                lengths = ((67, 3), (0, 41)) if number % 2 == 0 else None
                yield Small(kernel, dtype, d, p, causal=causal, lengths=lengths)
        for layout in LAYOUTS:
            yield Small(kernel, "float32", 33, 40, causal=True, layout=layout)
        yield Small(kernel, "float16", 64, 64, m=1, n=129, lengths=((1, 0), (65, 129)))
        yield Small(kernel, "float16", 64, 64, m=5, n=1)
        for empty in ({"d": 0}, {"p": 0}, {"n": 0}):
            yield Small(kernel, "float32", **{"d": 8, "p": 8, **empty})


def on_gpu(x: Array, layout: str, counts: tuple[int, int] | None) -> Any:
    """Upload (entries, heads, rows, columns) into an allocation that ends with its last element."""
    if layout == "swapped":
        return cupy.asarray(np.ascontiguousarray(x.swapaxes(1, 2))).swapaxes(1, 2)
    if layout == "transposed":
        return cupy.asarray(np.ascontiguousarray(x.swapaxes(2, 3))).swapaxes(2, 3)
    if layout == "negative":
        return cupy.asarray(np.ascontiguousarray(x[..., ::-1, ::-1]))[..., ::-1, ::-1]
    if layout == "broadcast":
        return cupy.broadcast_to(cupy.asarray(x[:1]), x.shape)
    if layout == "sliced":
        wide = cupy.empty((*x.shape[:3], 2 * x.shape[3] - 1), x.dtype)
        wide[..., ::2] = cupy.asarray(x)
        return wide[..., ::2]
    array = cupy.empty(x.shape, x.dtype)
    for entry, count in enumerate(counts or (x.shape[2],) * 2):
        for head in range(x.shape[1]):
            if x[entry, head, :count].size:
                array[entry, head, :count].set(x[entry, head, :count])
    return array


def run(small: Small) -> float:
    """Compute a problem; return the worst error / bound."""
    rng = np.random.default_rng(0)
    shapes = ((2, 2, small.m, small.d), (2, 1, small.n, small.d), (2, 1, small.n, small.p))
    q, k, v = (rng.standard_normal(s, np.float32).astype(DTYPES[small.dtype]) for s in shapes)
    if small.layout == "broadcast":
        q, k, v = (np.repeat(x[:1], 2, axis=0) for x in (q, k, v))
    rows, keys = small.lengths or (None, None)
    arrays = [on_gpu(x, small.layout, counts) for x, counts in ((q, rows), (k, keys), (v, keys))]
    options: dict[str, Any] = {"causal": small.causal}
    if small.lengths is not None:
        options["q_lengths"] = np.array(rows, np.int32)
        options["k_lengths"] = np.array(keys, np.int64)
    on_device = {
        name: cupy.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }
    out, lse = cupy_flash.attention(*arrays, **on_device, return_lse=True, kernel=small.kernel)
    exact = reference.attention(q, k, v, **options)
    scale = reference.default_scale(small.d)
    worst = 0.0
    for got, want, bound in (
        (out, exact.out, accuracy.out_bound(exact, small.dtype, q, k, v, scale)),
        (lse, exact.lse, accuracy.lse_bound(exact, small.dtype, q, k, scale)),
    ):
        compared = accuracy.compare(got.get(), want, bound)
        if not compared.ok:
            raise SystemExit(f"wrong result: {compared}\n{small}")
        worst = max(worst, compared.ratio)
    return worst


def planted(tool: str) -> None:
    code = f'extern "C" __global__ void fault(const float* x, float* y) {{ {PLANTED[tool]} }}'
    x = cupy.empty(64, np.float32) if tool == "initcheck" else cupy.asarray(np.ones(64, np.float32))
    y = cupy.empty(64, np.float32)
    cupy.RawKernel(code, "fault")((1,), (64,), (x, y))
    cupy.cuda.Device().synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planted", choices=PLANTED, help="run a faulty kernel instead")
    tool = parser.parse_args().planted
    cupy.cuda.set_allocator(None)
    if tool is not None:
        planted(tool)
        return
    ratios = [run(small) for small in problems()]
    print(f"{len(ratios)} problems, worst error / bound {max(ratios):.3f}")


if __name__ == "__main__":
    main()
