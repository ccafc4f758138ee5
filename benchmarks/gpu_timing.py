"""Timing on a GPU: candidates interleaved in one run, CUDA-graph replay, medians."""

from __future__ import annotations

import datetime
import re
import statistics
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import cupy
import numpy as np

import cupy_flash


def capture(call: Callable[[], Any], repeat: int, stream: Any) -> Callable[[], None]:
    """Return what replays a CUDA graph of `repeat` calls; `call` must not allocate."""
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(repeat):
            call()
        graph = stream.end_capture()
    return lambda: graph.launch(stream)


def repeated(call: Callable[[], Any], repeat: int) -> Callable[[], None]:
    """Return what makes `repeat` calls one after another, host cost included."""

    def run() -> None:
        for _ in range(repeat):
            call()

    return run


def medians(
    calls: Mapping[str, Callable[[], Any]],
    *,
    eager: Collection[str] = (),
    repeat: int = 4,
    rounds: int = 9,
) -> dict[str, float]:
    """Return seconds per call of each candidate, all of them once in every round.

    Candidates in `eager` are called, not replayed: CuPy can't capture cuBLAS.
    """
    stream = cupy.cuda.Stream(non_blocking=True)
    runs = {
        name: repeated(call, repeat) if name in eager else capture(call, repeat, stream)
        for name, call in calls.items()
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            with stream:
                start.record()
                run()
                stop.record()
            stop.synchronize()
            seconds = cupy.cuda.get_elapsed_time(start, stop) / 1e3 / repeat
            times[name].append(seconds)
    # The first round warms up.
    return {name: statistics.median(samples[1:]) for name, samples in times.items()}


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return normally distributed data on the GPU without cuRAND."""
    return cupy.asarray(rng.standard_normal(shape, np.float32).astype(dtype))


def driver_version() -> str:
    """Return the driver's own number, which CUDA's runtime doesn't tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return found[0] if found else "unknown"


def machine() -> dict[str, str]:
    """Return what a result file says about where and when it was measured."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    cuda = runtime.driverGetVersion()
    nvrtc = cupy.cuda.nvrtc.getVersion()
    return {
        "gpu": properties["name"].decode(),
        "driver": f"{driver_version()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
        "cupy": cupy.__version__,
        "nvrtc": ".".join(map(str, nvrtc)),
        "numpy": np.__version__,
        "cupy_flash": cupy_flash.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
