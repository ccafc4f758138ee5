"""Fixtures of the tests that hold much GPU memory."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let one test process at a time hold the large buffers."""
    with open(tmp_path_factory.getbasetemp().parent / "large_buffers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def far(alone: None) -> Iterator[Any]:
    from far_memory import BUFFER, FLOAT16, PERIOD, Far, cupy, demand, repeated

    demand(2 * BUFFER * FLOAT16.itemsize + 2**30)
    pattern = np.random.default_rng(0).standard_normal(PERIOD, np.float32).astype(FLOAT16)
    buffers = Far(pattern, repeated(pattern, BUFFER), cupy.empty(BUFFER, FLOAT16))
    yield buffers
    buffers.numbers = buffers.out = None
    cupy.get_default_memory_pool().free_all_blocks()
