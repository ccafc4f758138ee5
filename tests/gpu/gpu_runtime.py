"""Arrays, pauses and graphs for tests of how calls live in CuPy's runtime."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from problems import DTYPES, ONE_DTYPE

cupy = pytest.importorskip("cupy")

SHAPE = (2, 3, 200, 64)

every_kernel = pytest.mark.parametrize(("kernel", "dtype"), ONE_DTYPE.items())
# Where a test takes seconds, or is about limits that naive hasn't.
every_fast_kernel = pytest.mark.parametrize(
    ("kernel", "dtype"), [pair for pair in ONE_DTYPE.items() if pair[0] != "naive"]
)

# A pause on the GPU that doesn't depend on its clock.
SPIN = r"""
extern "C" __global__ void spin(unsigned long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
"""


@functools.cache
def spin_kernel() -> Any:
    return cupy.RawKernel(SPIN, "spin")


def spin(milliseconds: int) -> None:
    spin_kernel()((1,), (1,), (np.uint64(milliseconds * 1_000_000),))


def drawn(seed: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(SHAPE, np.float32).astype(DTYPES[dtype])


def inputs(dtype: str = "float32") -> list[Any]:
    arrays = [cupy.asarray(drawn(seed, dtype)) for seed in range(3)]
    # A non-blocking stream would not wait for the copies.
    cupy.cuda.Device().synchronize()
    return arrays


def fill_with_nan(*arrays: Any) -> None:
    """Fill on the current stream; in every dtype a number whose bits are all ones is a NaN."""
    for array in arrays:
        array.data.memset_async(0xFF, array.nbytes)


def same_bits(a: Any, b: Any) -> bool:
    return cupy.asnumpy(a).tobytes() == cupy.asnumpy(b).tobytes()


def captured(stream: Any, call: Any) -> Any:
    cupy.cuda.Device().synchronize()
    # The strictest mode: no thread may synchronise or allocate device memory meanwhile.
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeGlobal)
    try:
        call()
    finally:
        graph = stream.end_capture()
    return graph
