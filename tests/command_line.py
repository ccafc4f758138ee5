"""What tests of the commands share: fresh interpreters, hidden and pretended GPUs, faults."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from cupy_flash import blocked, device
from cupy_flash.__main__ import main
from cupy_flash.commands import machine

ROOT = Path(__file__).parents[1]
NO_GPU = "a test hides the GPU"

BLOCK_CUPY = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends", "cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
from cupy_flash.__main__ import main
sys.exit(main())
"""


def hide_gpu(monkeypatch):
    monkeypatch.setattr(machine, "gpu_problem", lambda index=0: NO_GPU)


def fresh(*arguments, code=None, **variables):
    """Run the command line in a fresh interpreter that sees no GPU."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT), **variables}
    start = ["-m", "cupy_flash"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )


def refused(capsys, text):
    """Run a command that must be refused; what it says on stderr."""
    try:
        code = main(shlex.split(text))
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in captured.err
    return captured.err


def two_gpus(monkeypatch):
    """Make the machine one with two GPUs, as far as `info` and `check` look."""
    gpus = [device.assumed(90), device.assumed(75)]
    properties = {"totalGlobalMem": 2**34}
    runtime = SimpleNamespace(
        getDeviceCount=lambda: len(gpus), getDeviceProperties=lambda index: properties
    )
    cupy = SimpleNamespace(
        __version__="14.2.0",
        asarray=np.asarray,
        asnumpy=np.asarray,
        cuda=SimpleNamespace(runtime=runtime, Device=lambda index: contextlib.nullcontext()),
    )
    monkeypatch.setattr(device, "import_cupy", lambda: cupy)
    monkeypatch.setattr(device, "actual", lambda index: gpus[index])
    monkeypatch.setattr(device, "gpu_is_available", lambda: True)


def replaced_attend(change):
    attend = blocked.attend

    def wrong(Q, K, V, problem, offset):
        return change(attend, Q, K, V, problem, offset)

    return wrong


def scaled(attend, Q, K, V, problem, offset):
    O, lse = attend(Q, K, V, problem, offset)
    return O * np.asarray(1.01, O.dtype), lse
