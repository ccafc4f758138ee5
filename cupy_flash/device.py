"""What the kernel choice needs to know of a GPU: real ones through CuPy, others by number."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass, replace
from typing import Any

from cupy_flash.errors import INSTALL_CUPY, PerformanceWarning


@dataclass(frozen=True)
class Device:
    """A GPU as the selection sees it.

    Attributes
    ----------
    arch : int
        Compute capability times ten: 90 for an H200.
    name : str
        As the driver names it.
    shared_memory : int
        Bytes of shared memory that one block may have after opting in.
    sm_count : int
        Number of multiprocessors.
    warpgroups : bool
        Whether kernels may use wgmma: on compute capability 9.0, compiled for sm_90a.
    """

    arch: int
    name: str
    shared_memory: int
    sm_count: int
    warpgroups: bool = False

    @property
    def float64_matrix(self) -> bool:
        """Whether its tensor cores multiply float64 faster than its FMA units do."""
        return self.arch in (80, 90)

    @property
    def with_warpgroups(self) -> Device | None:
        """What it would be with another NVRTC; None if that wouldn't change anything."""
        missing = self.arch == 90 and not self.warpgroups
        return replace(self, warpgroups=True) if missing else None


# Compute capability: (largest shared memory of a block in bytes, multiprocessors of a usual part).
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_KNOWN = {
    75: (65_536, 40),
    80: (166_912, 108),
    86: (101_376, 84),
    89: (101_376, 128),
    90: (232_448, 132),
    100: (232_448, 148),
    120: (101_376, 170),
}


def assumed(arch: int) -> Device:
    """Describe a GPU that isn't here by its architecture number, for `explain` and compiling."""
    if arch not in _KNOWN:
        known = ", ".join(map(str, _KNOWN))
        raise ValueError(f"explain: arch is {arch!r}; known are {known} (90 is an H100 or H200)")
    shared_memory, sm_count = _KNOWN[arch]
    name = f"a GPU of compute capability {arch / 10}"
    return Device(arch, name, shared_memory, sm_count, warpgroups=arch == 90)


@functools.cache
def actual(index: int) -> Device:
    """Describe CUDA device `index`."""
    runtime = import_cupy().cuda.runtime
    properties = runtime.getDeviceProperties(index)
    arch = properties["major"] * 10 + properties["minor"]
    return Device(
        arch=arch,
        name=properties["name"].decode(),
        shared_memory=properties["sharedMemPerBlockOptin"],
        sm_count=properties["multiProcessorCount"],
        warpgroups=arch == 90 and compiles_for_sm_90a(),
    )


def compiles_for_sm_90a() -> bool:
    """Whether an option of RawModule makes CuPy compile for sm_90a."""
    # Older ones refuse a second -arch; to PTX CuPy's own one is of another kind (compute_90).
    return nvrtc_version() >= (12, 9) and os.environ.get("CUPY_COMPILE_WITH_PTX", "0") in ("", "0")


@functools.cache
def warn_of_missing_warpgroups() -> None:
    """Warn, once, whoever called `attention` or its gradients."""
    version = ".".join(map(str, nvrtc_version()))
    warnings.warn(
        "cupy_flash: on this GPU the call would be faster by warpgroups (wgmma), which kernels for "
        f"sm_90a have: install NVRTC 12.9 or newer, CuPy has loaded {version}, and leave "
        "CUPY_COMPILE_WITH_PTX unset",
        PerformanceWarning,
        stacklevel=4,
    )


def import_cupy() -> Any:
    """Import CuPy, or raise the ImportError that says how to install it."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(INSTALL_CUPY) from error
    return cupy


def gpu_is_available() -> bool:
    """Whether CuPy is installed and sees a GPU; never raises."""
    try:
        cupy = import_cupy()
    except (ImportError, OSError):
        # OSError: CuPy makes its cache folder when it is imported.
        return False
    return bool(cupy.cuda.is_available())


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """Version of the NVRTC that CuPy loaded."""
    from cupy.cuda import nvrtc

    import_cupy()
    major, minor = nvrtc.getVersion()
    return int(major), int(minor)
