"""Barriers in shared memory in the emulator: when phases end, and which mistakes it notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_flash.source import flatten
from emulation import SCHEDULES, EmulatedKernel, EmulationError
from tiny_kernels import PRELUDE, kernel_of, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]
BARRIERS = PRELUDE + flatten("ptx/mbarrier.cuh")
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def barriers(body: str) -> EmulatedKernel:
    return kernel_of(body, prelude=BARRIERS)


def run(body: str, *, threads: int = 64, count: int = 0, **options: int) -> Array:
    """Run a body on x = 1, 2, ... and return y, which starts as NaN."""
    x = np.arange(1, 1 + (count or threads), dtype=np.float32)
    y = np.full_like(x, np.nan)
    return launch(barriers(body), x, y, threads=threads, smem=8192, **options)


# The last warp brings tiles of 32 numbers to STAGES places in turns; the others add them up, each
# warp its own multiple. A place's barriers, one after the other from byte 4096 on: it is full, and
# free.
RING = """
const int warps = blockDim.x / 32;
if (i == 0) {
  for (int s = 0; s < STAGES; ++s) {
    Mbarrier{4096u + 16 * s}.init(1);
    Mbarrier{4104u + 16 * s}.init(warps - 1);
  }
}
__syncthreads();
if (i / 32 == warps - 1) {
  for (int tile = 0; tile < p.n; ++tile) {
    const unsigned s = tile % STAGES;
    const float value = load(p.x + 32 * tile + i % 32);
    Mbarrier{4104u + 16 * s}.wait(tile / STAGES % 2 ^ 1);
    sm[32 * s + i % 32] = value;
    __syncwarp();
    if (i % 32 == 0) Mbarrier{4096u + 16 * s}.arrive();
  }
  return;
}
float sum = 0.f;
for (int tile = 0; tile < p.n; ++tile) {
  const unsigned s = tile % STAGES;
  Mbarrier{4096u + 16 * s}.wait(tile / STAGES % 2);
  // Of another lane.
  sum += sm[32 * s + 31 - i % 32];
  __syncwarp();
  if (i % 32 == 0) Mbarrier{4104u + 16 * s}.arrive();
}
store(p.y + i, sum * (1 + i / 32));
"""
TILES = 7


def ring(body: str, threads: int, stages: int, **options: int) -> Array:
    body = body.replace("STAGES", str(stages))
    return run(body, threads=threads, count=32 * TILES, n=TILES, **options)[: threads - 32]


def summed(threads: int) -> Array:
    sums = np.arange(1, 1 + 32 * TILES).reshape(TILES, 32)[:, ::-1].sum(axis=0)
    return (sums * np.arange(1, threads // 32)[:, None]).reshape(-1)


@every_schedule
@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("threads", [64, 96, 160])
def test_places_go_round(threads: int, stages: int, schedule: int) -> None:
    for seed in range(3):
        got = ring(RING, threads, stages, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(got, summed(threads))


READ, STORE = "sum += sm[32 * s + 31 - i % 32];", "sm[32 * s + i % 32] = value;"
FULL = "if (i % 32 == 0) Mbarrier{4096u + 16 * s}.arrive();"
FREE = "if (i % 32 == 0) Mbarrier{4104u + 16 * s}.arrive();"
# Old data under some schedules, or warps that wait for ever.
MISTAKEN = {
    "a place is free before it is read": (READ, f"{FREE} __syncwarp(); {READ}", FREE, ""),
    "a place is full before it is filled": (STORE, f"{FULL} __syncwarp(); {STORE}", FULL, ""),
    "the wrong parity of what is full": (
        "wait(tile / STAGES % 2);",
        "wait(tile / STAGES % 2 ^ 1);",
    ),
    "the wrong parity of what is free": (
        "wait(tile / STAGES % 2 ^ 1);",
        "wait(tile / STAGES % 2);",
    ),
    "the parity never changes": ("wait(tile / STAGES % 2);", "wait(0);"),
    "one warp doesn't say that a place is free": (FREE, FREE.replace("i % 32", "i")),
    "an arrival too few is asked for": (".init(warps - 1);", ".init(warps - 2);"),
    "an arrival too many is asked for": (".init(warps - 1);", ".init(warps);"),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_a_mistake_shows_under_some_schedules(name: str) -> None:
    body = RING
    texts = MISTAKEN[name]
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert old in body
        # The last one: what replaces a text may hold it.
        head, tail = body.rsplit(old, 1) if new == "" else body.split(old, 1)
        body = head + new + tail

    def wrong(schedule: int, seed: int) -> bool:
        try:
            got = ring(body, 128, 2, schedule=schedule, seed=seed)
        except EmulationError:
            return True
        return not np.array_equal(got, summed(128))

    assert any(wrong(schedule, seed) for schedule in SCHEDULES.values() for seed in range(3))


MISTAKES = {
    "nobody made it": ("Mbarrier{4096u}.wait(1);", r"try_wait at byte 4096 .* no mbarrier"),
    "nobody made it, one arrives": (
        "if (i == 0) Mbarrier{4096u}.arrive();",
        r"mbarrier\.arrive at byte 4096 .* no mbarrier",
    ),
    "it is made twice": (
        "if (i < 2) Mbarrier{4096u}.init(1);",
        r"mbarrier\.init of 1 arrivals at byte 4096 .* there is one already",
    ),
    "no arrivals": ("if (i == 0) Mbarrier{4096u}.init(0);", r"1 to 2\^20 - 1 arrivals"),
    "half of it": ("if (i == 0) Mbarrier{4100u}.init(1);", r"mbarrier\.init of 8 bytes .* 4100"),
    "beyond shared memory": ("if (i == 0) Mbarrier{8192u}.init(1);", r"mbarrier\.init of 8 bytes"),
    "a parity of 2": (
        "if (i == 0) Mbarrier{4096u}.init(1);\n__syncthreads();\nMbarrier{4096u}.wait(2);",
        r"for parity 2: it is 0 or 1",
    ),
    "lanes that wait for different phases": (
        "if (i == 0) Mbarrier{4096u}.init(1);\n__syncthreads();\nMbarrier{4096u}.wait(i % 2);",
        r"lanes of warp \d diverged: .* for parity 0 of the mbarrier at byte 4096",
    ),
    "a phase that never ends": (
        "if (i == 0) Mbarrier{4096u}.init(3);\n__syncthreads();\n"
        "if (i == 0) Mbarrier{4096u}.arrive();\nMbarrier{4096u}.wait(0);",
        r"deadlock: threads of warp \d wait at mbarrier\.try_wait \(body\.cuh:4\) for parity 0 of "
        r"the mbarrier at byte 4096, whose phase 0 lacks 2 of 3 arrivals",
    ),
}


@every_schedule
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_noticed(name: str, schedule: int) -> None:
    body, message = MISTAKES[name]
    with pytest.raises(EmulationError, match=message):
        run(body, schedule=schedule)


def test_barriers_begin_anew_with_each_block() -> None:
    body = """
    if (i == 0) Mbarrier{4096u}.init(1);
    __syncthreads();
    if (i == 0) Mbarrier{4096u}.arrive();
    Mbarrier{4096u}.wait(0);
    store(p.y + i, 1.f + blockIdx.x);
    """
    assert (run(body, grid=3) == 3).all()
