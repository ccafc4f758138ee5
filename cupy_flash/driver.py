"""What a warm call uses of CuPy, looked up once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cupy_flash.device import import_cupy


@dataclass(frozen=True)
class Driver:
    """CuPy's own ways to the CUDA driver, without what its arrays and kernels do around them.

    Attributes
    ----------
    current_device : callable
        Returns the current device.
    current_stream : callable
        Returns CuPy's current stream of a device.
    default_stream : int
        The stream that CuPy launches on where that one's address is 0: the thread's own under
        CUPY_CUDA_PER_THREAD_DEFAULT_STREAM.
    launch : callable
        cuLaunchKernel.
    Refusal : type
        What it raises.
    allocate : callable
        Returns so many bytes from CuPy's allocator.
    ndarray : type
        CuPy's array, of a shape, dtype, memory and strides.
    """

    current_device: Callable[[], int]
    current_stream: Callable[[int], Any]
    default_stream: int
    launch: Callable[..., None]
    Refusal: type[Exception]
    allocate: Callable[[int], Any]
    ndarray: Callable[..., Any]


@functools.cache
def driver() -> Driver:
    """Look CuPy's functions up."""
    cupy = import_cupy()
    cuda = cupy.cuda
    from cupy_backends.cuda.stream import get_default_stream_ptr

    return Driver(
        current_device=cuda.runtime.getDevice,
        current_stream=cuda.get_current_stream,
        default_stream=get_default_stream_ptr(),
        launch=cuda.driver.launchKernel,
        Refusal=cuda.driver.CUDADriverError,
        allocate=cuda.alloc,
        ndarray=cupy.ndarray,
    )
