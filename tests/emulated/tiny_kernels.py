"""Kernels of a few lines, to try the emulator on."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from cupy_flash.source import flatten
from emulation import EmulatedKernel, Region, build

PARAMS = np.dtype([("x", np.uint64), ("y", np.uint64), ("n", np.int32)], align=True)
C_TYPES = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned",
    np.dtype(np.int64): "long long",
}
PRELUDE = """
#line 1 "memory.cuh"
using emu::shared_memory;
template <class T> __device__ __forceinline__ T load(const T* p) {
  emu::check_read(p, sizeof(T));
  return *p;
}
template <class T> __device__ __forceinline__ void store(T* p, T value) {
  emu::check_write(p, sizeof(T));
  *p = value;
}
"""
KERNEL = """
struct Params { const TYPE* x; TYPE* y; int n; };
extern "C" __global__ void __launch_bounds__(1024) kernel(const __grid_constant__ Params p) {
  TYPE* sm = reinterpret_cast<TYPE*>(shared_memory()); (void)sm;
  const int i = threadIdx.x; (void)i;
#line 1 "body.cuh"
BODY
}
"""
EMPTY = PRELUDE + KERNEL.replace("TYPE", "float").replace("BODY", "")
# What kernels_cu/ptx holds, the exponential and tanh; none of these files includes another one.
PRIMITIVES = (
    "ptx/memory",
    "hyperbolic",
    "ptx/shared",
    "ptx/async_copy",
    "ptx/pack",
    "ptx/matrix",
    "ptx/matrix32",
    "ptx/matrix64",
    "ptx/wgmma",
)
ELEMENTS = """
#line 1 "elements.cuh"
struct Float16 { unsigned short bits; };
struct BFloat16 { unsigned short bits; };
"""


@functools.cache
def primitives() -> str:
    """Return the text of the primitives, which take the place of `PRELUDE` on CPU and GPU."""
    return "".join(flatten(f"{name}.cuh") for name in PRIMITIVES) + ELEMENTS


def kernel_text(body: str, dtype: Any, prelude: str) -> str:
    """Return a kernel with p.x, p.y, p.n, shared memory `sm` and thread index `i` at hand."""
    text = KERNEL.replace("TYPE", C_TYPES[np.dtype(dtype)])
    return prelude + text.replace("BODY", textwrap.dedent(body).strip())


def kernel_of(
    body: str, dtype: Any = np.float32, prelude: str = PRELUDE, **options: bool
) -> EmulatedKernel:
    """Build such a kernel, with the primitives in it if they are its prelude."""
    text = kernel_text(body, dtype, prelude)
    path = build(text, "kernel", PARAMS.itemsize, **options)
    return EmulatedKernel(path, "kernel", PARAMS.itemsize)


def launch(
    kernel: EmulatedKernel,
    x: np.ndarray,
    y: np.ndarray,
    *,
    n: int = 0,
    grid: int = 1,
    threads: int = 32,
    smem: int = 0,
    regions: Sequence[Region] | None = None,
    **options: int,
) -> np.ndarray:
    params = np.array((x.ctypes.data, y.ctypes.data, n), PARAMS)[()]
    if regions is None:
        regions = [Region.of("x", x), Region.of("y", y, writable=True)]
    kernel.launch(params, grid, threads, smem, regions, **options)
    return y


def emulate(body: str, *, count: int = 32, n: int = 0, **options: int) -> np.ndarray:
    """Run a float32 body on x = 0, 1, ... and return y, which starts as NaN."""
    x = np.arange(count, dtype=np.float32)
    return launch(kernel_of(body), x, np.full_like(x, np.nan), n=n, **options)
