"""NumPy in CuPy's place for benchmarks, with events that say 2 ms."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np

from cupy_flash import timing


class FakeStream(contextlib.nullcontext):
    ptr = 1

    def synchronize(self):
        pass

    def begin_capture(self):
        pass

    def end_capture(self):
        return SimpleNamespace(launch=lambda stream: None)


def pretend(monkeypatch, *modules):
    """Replace the CuPy of modules, and of what they time with."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    cuda = SimpleNamespace(
        Event=lambda: event,
        Stream=lambda non_blocking: FakeStream(),
        Device=lambda: SimpleNamespace(synchronize=lambda: None),
        get_elapsed_time=lambda start, stop: 2.0,
    )
    fake = SimpleNamespace(
        asarray=np.asarray,
        asnumpy=np.asarray,
        ascontiguousarray=np.ascontiguousarray,
        empty=np.empty,
        empty_like=np.empty_like,
        zeros=np.zeros,
        cuda=cuda,
        get_default_memory_pool=lambda: SimpleNamespace(free_all_blocks=lambda: None),
    )
    for module in modules:
        monkeypatch.setattr(module, "cupy", fake)
    monkeypatch.setattr(timing, "import_cupy", lambda: fake)
