"""What a result file says about where, when and with what it was measured."""

from __future__ import annotations

import datetime
import platform
import re
from pathlib import Path

import numpy as np

from cupy_flash import __version__
from cupy_flash.device import import_cupy


def machine(on_gpu: bool = True) -> dict[str, str]:
    """Describe the current GPU, or the processor, and the versions of what ran on it."""
    hardware = _gpu() if on_gpu else {"processor": processor()}
    return {
        **hardware,
        "numpy": np.__version__,
        "cupy_flash": __version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _gpu() -> dict[str, str]:
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    cuda = runtime.driverGetVersion()
    return {
        "gpu": properties["name"].decode(),
        "driver": f"{_driver_version()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        "cupy": cupy.__version__,
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
    }


def _driver_version() -> str:
    """Return the driver's own number, which CUDA's runtime doesn't tell."""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", _text("/proc/driver/nvidia/version"))
    return found[0] if found else "unknown"


def processor() -> str:
    """Return the name of the processor, or its architecture where the system doesn't tell."""
    found = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo"), flags=re.MULTILINE)
    return found[1] if found else platform.machine()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
