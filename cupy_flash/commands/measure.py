"""Time and memory of one call, on the GPU or with NumPy, for the demo."""

from __future__ import annotations

import math
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from cupy_flash import device as devices

Call = Callable[[], Any]

WARM_UP = 2
SAMPLES = 7
# A sample repeats a short call until it lasts about this long: an event's resolution is 0.5 us.
SAMPLE_SECONDS = 2e-3
MOST_CALLS = 100


class Place(Protocol):
    """Where arrays live and how calls on them are measured."""

    timed_by: str
    memory_from: str

    def array(self, x: Any) -> Any:
        """Copy a NumPy array there."""

    def host(self, x: Any) -> Any:
        """Copy an array from there to NumPy."""

    def once(self, call: Call) -> tuple[Any, float]:
        """Call once; the result and the seconds until it is there."""

    def seconds(self, call: Call) -> float:
        """Return the median seconds of a call, after warming up."""

    def extra_bytes(self, call: Call) -> int:
        """Return how many bytes a call needs at most, besides its arguments and result."""


class Cpu:
    """NumPy arrays."""

    timed_by = "perf_counter, median of 3 calls after the first, fewer if they take long"
    memory_from = "tracemalloc's peak during a call, without arguments and result"

    def array(self, x: Any) -> Any:
        """Return the array itself."""
        return x

    def host(self, x: Any) -> Any:
        """Return the array itself."""
        return x

    def once(self, call: Call) -> tuple[Any, float]:
        """Call once; the result and its seconds."""
        begin = time.perf_counter()
        result = call()
        return result, time.perf_counter() - begin

    def seconds(self, call: Call) -> float:
        """Return the median seconds of up to three calls, after one that doesn't count."""
        call()
        samples = [self.once(call)[1]]
        while len(samples) < 3 and sum(samples) < 0.5:
            samples.append(self.once(call)[1])
        return statistics.median(samples)

    def extra_bytes(self, call: Call) -> int:
        """Return the largest sum of allocated bytes during a call, less the result's."""
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            result = call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        return max(0, peak - before - int(result.nbytes))


class Gpu:
    """CuPy arrays on the current device and stream."""

    timed_by = (
        f"CUDA events around calls in a row, about {SAMPLE_SECONDS * 1e3:g} ms of them, median of "
        f"{SAMPLES} such samples"
    )
    memory_from = (
        "what a call took from the device through a fresh CuPy memory pool, without the result; "
        "cuBLAS's own workspace isn't counted"
    )

    def __init__(self) -> None:
        self.cupy = devices.import_cupy()

    def array(self, x: Any) -> Any:
        """Copy a NumPy array to the current device."""
        return self.cupy.asarray(x)

    def host(self, x: Any) -> Any:
        """Copy to NumPy, which waits for the current stream."""
        return self.cupy.asnumpy(x)

    def once(self, call: Call) -> tuple[Any, float]:
        """Call once; the result and the seconds until the GPU is done with it."""
        stream = self.cupy.cuda.get_current_stream()
        stream.synchronize()
        begin = time.perf_counter()
        result = call()
        stream.synchronize()
        return result, time.perf_counter() - begin

    def seconds(self, call: Call) -> float:
        """Return the median seconds of a call among many in a row."""
        for _ in range(WARM_UP):
            call()
        one = max(self._sample(call, 1), 1e-9)
        calls = min(max(math.ceil(SAMPLE_SECONDS / one), 1), MOST_CALLS)
        return statistics.median(self._sample(call, calls) for _ in range(SAMPLES))

    def _sample(self, call: Call, calls: int) -> float:
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        milliseconds: float = self.cupy.cuda.get_elapsed_time(begin, end)
        return milliseconds * 1e-3 / calls

    def extra_bytes(self, call: Call) -> int:
        """Return what a pool that starts empty took from the device, less the result's size."""
        # What earlier calls left in the default pool must not make this one run out of memory.
        self.cupy.get_default_memory_pool().free_all_blocks()
        pool = self.cupy.cuda.MemoryPool()
        try:
            with self.cupy.cuda.using_allocator(pool.malloc):
                result = call()
                self.cupy.cuda.get_current_stream().synchronize()
                taken = pool.total_bytes()
                # A pool rounds every allocation up to 512 bytes.
                kept = -(-int(result.nbytes) // 512) * 512
                del result
        finally:
            # A pool that is forgotten keeps its memory until Python collects cycles.
            pool.free_all_blocks()
        return max(0, int(taken) - kept)


def place(on_gpu: bool) -> Place:
    """Return the GPU or NumPy."""
    return Gpu() if on_gpu else Cpu()


def random_arrays(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> list[Any]:
    """Draw q, k and v from a standard normal distribution with NumPy, without cuRAND."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape, np.float32).astype(dtype) for _ in range(3)]
