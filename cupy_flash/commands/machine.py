"""What is installed on this machine and which parts CuPy really uses: one function per question.

A function raises whatever stops it; `probe` turns that into an `Unknown` that says why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cupy_flash import device as devices

DEFAULT_CACHE = "~/.cupy/kernel_cache"


@dataclass(frozen=True)
class Unknown:
    """What a failed probe found out: only why it failed."""

    why: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"unknown ({self.why})"


def probe(find: Callable[[], Any]) -> Any:
    """Return what `find` returns, or an Unknown with the exception that it raised."""
    try:
        return find()
    except Exception as error:
        return Unknown(one_line(error))


def one_line(error: BaseException) -> str:
    """Return an exception's type and first line; for an ImportError, those of its cause."""
    if isinstance(error, ImportError) and error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def gpu_problem(index: int = 0) -> str | None:
    """Say why nothing can run on CUDA device `index` here; None if something can."""
    try:
        cupy = devices.import_cupy()
    except Exception as error:
        return f"CuPy can't be imported ({one_line(error)})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"CuPy {cupy.__version__} sees no GPU ({one_line(error)})"
    if 0 <= index < count:
        return None
    return f"CuPy {cupy.__version__} sees {count} GPUs, numbered from 0, and none is number {index}"


def distributions() -> dict[str, str]:
    """Return every installed distribution's version by its normalised name."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        # The first on sys.path is the one that is imported.
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return found


def gpus() -> list[dict[str, Any]]:
    """Describe every GPU that CuPy sees, without making a context on it."""
    runtime = devices.import_cupy().cuda.runtime
    found = []
    for index in range(runtime.getDeviceCount()):
        gpu = devices.actual(index)
        found.append(
            {
                "index": index,
                "name": gpu.name,
                "arch": gpu.arch,
                "memory_bytes": int(runtime.getDeviceProperties(index)["totalGlobalMem"]),
                "multiprocessors": gpu.sm_count,
                "shared_memory_per_block_bytes": gpu.shared_memory,
            }
        )
    return found


def driver_version() -> tuple[int, int]:
    """Return the highest CUDA version that the driver supports."""
    number = devices.import_cupy().cuda.runtime.driverGetVersion()
    if number == 0:
        raise RuntimeError("no NVIDIA driver is installed")
    return _major_minor(number)


def runtime_version() -> tuple[int, int]:
    """Return the version of the CUDA runtime that CuPy is linked to."""
    return _major_minor(devices.import_cupy().cuda.runtime.runtimeGetVersion())


def _major_minor(number: int) -> tuple[int, int]:
    """Split CUDA's 12090 into (12, 9)."""
    return number // 1000, number % 1000 // 10


def highest_arch() -> int:
    """Return the newest architecture that the loaded NVRTC compiles for."""
    devices.import_cupy()
    from cupy.cuda import nvrtc

    return max(int(arch) for arch in nvrtc.getSupportedArchs())


def nvrtc_path() -> str:
    """Return the file of the NVRTC that CuPy loaded into this process, or "unknown"."""
    # Loads it, if nothing has yet.
    devices.nvrtc_version()
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        from cuda import pathfinder

        return str(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path or "unknown")
    # The sixth field of a line, and libnvrtc-builtins is another library.
    paths = re.findall(r"(/.*/libnvrtc\.(?:alt\.)?so[.\d]*)$", maps, flags=re.MULTILINE)
    return ", ".join(dict.fromkeys(paths)) or "unknown"


def header_folder() -> str | None:
    """Return the folder of CUDA headers that CuPy passes to NVRTC; None if it finds none."""
    devices.import_cupy()
    from cuda import pathfinder

    found = pathfinder.find_nvidia_header_directory("cudart")
    return None if found is None else str(found)


def kernel_cache() -> tuple[Path, bool]:
    """Return the folder where CuPy keeps compiled kernels and whether it can be written."""
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path(DEFAULT_CACHE).expanduser()).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return folder, existing.is_dir() and os.access(existing, os.W_OK)
