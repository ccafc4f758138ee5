"""What the benchmarks on a GPU share: the machine, medians of some calls, random arrays."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Collection, Mapping
from typing import Any

import cupy
import numpy as np

from cupy_flash import timing
from cupy_flash.commands import provenance


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
    # What the default stream has written is read on this one.
    cupy.cuda.Device().synchronize()
    samples = {
        name: (timing.called if name in eager else timing.replayed)(call, stream, repeat)
        for name, call in calls.items()
    }
    times = timing.interleaved(samples, rounds=rounds)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return normally distributed data on the GPU without cuRAND."""
    return cupy.asarray(rng.standard_normal(shape, np.float32).astype(dtype))


def machine() -> dict[str, str]:
    """Return what a result file says about where and when it was measured."""
    return {**provenance.machine(), "power_limit": power_limit()}


def power_limit() -> str:
    """Return the power limit of the current GPU as nvidia-smi tells it."""
    bus = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id)
    command = ["nvidia-smi", f"--id={bus}", "--query-gpu=power.limit", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
