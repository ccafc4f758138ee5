"""From text to a kernel that can be launched: RawModule once per variant and device."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from cupy_flash.device import import_cupy, nvrtc_version
from cupy_flash.errors import CompileError
from cupy_flash.select import DEFAULT_SHARED_MEMORY
from cupy_flash.source import AnyVariant, source, target

logger = logging.getLogger("cupy_flash")

# One tuple for every kernel: CuPy compiles an empty program per distinct tuple and process.
OPTIONS = ("--std=c++17",)

_kernels: dict[tuple[AnyVariant, int], Any] = {}
_locks: dict[tuple[AnyVariant, int], threading.Lock] = {}
_locks_guard = threading.Lock()


def options_of(variant: AnyVariant) -> tuple[str, ...]:
    """Return the options that a variant is compiled with, beside those that CuPy adds."""
    # wgmma is in no other target. CuPy adds -arch=sm_90; of both NVRTC from 12.9 on takes this one.
    return (*OPTIONS, "-arch=sm_90a") if target(variant) == "90a" else OPTIONS


def kernel(variant: AnyVariant, device: int) -> Any:
    """Return the compiled kernel of a variant on a device, compiling it on first use.

    The caller has made `device` the current one.

    Raises
    ------
    CompileError
        With variant, options, NVRTC version and the compiler's log.
    RuntimeError
        While the current stream is being captured into a graph: loading a module would break it.
    """
    key = variant, device
    found = _kernels.get(key)
    if found is not None:
        return found
    with _locks_guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        if key not in _kernels:
            _kernels[key] = _compile(variant)
    return _kernels[key]


def _compile(variant: AnyVariant) -> Any:
    cupy = import_cupy()
    if cupy.cuda.get_current_stream().is_capturing():
        raise RuntimeError(
            f"{variant.call}: {variant} isn't compiled yet and the current stream is being "
            "captured; make the same call once before the capture"
        )
    logger.info("compiling %s (a first call; later processes find it in CuPy's cache)", variant)
    begin = time.perf_counter()
    module = cupy.RawModule(code=source(variant), options=options_of(variant))
    try:
        function = module.get_function(variant.entry)
    except cupy.cuda.compiler.CompileException as error:
        raise _failure(variant, str(error)) from error
    except OSError as error:
        hint = "CuPy's kernel cache can't be used; set CUPY_CACHE_DIR to a folder of yours"
        raise _failure(variant, f"{error}\n{hint}") from error
    if variant.shared_memory > DEFAULT_SHARED_MEMORY:
        function.max_dynamic_shared_size_bytes = variant.shared_memory
    logger.info(
        "compiled %s in %.2f s: %d registers, %d bytes of shared memory",
        variant,
        time.perf_counter() - begin,
        function.num_regs,
        variant.shared_memory,
    )
    return function


def _failure(variant: AnyVariant, log: str) -> CompileError:
    return CompileError(str(variant), options_of(variant), ".".join(map(str, nvrtc_version())), log)
