"""Named barriers in the emulator: who waits for whom, and which mistakes it notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cupy_flash.source import flatten
from emulation import SCHEDULES, EmulatedKernel, EmulationError
from tiny_kernels import PRELUDE, kernel_of, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]
ROLES = PRELUDE + flatten("ptx/roles.cuh")
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def roles(body: str) -> EmulatedKernel:
    return kernel_of(body, prelude=ROLES)


def run(body: str, *, threads: int = 64, count: int = 0, **options: int) -> Array:
    """Run a body on x = 1, 2, ... and return y, which starts as NaN."""
    x = np.arange(1, 1 + (count or threads), dtype=np.float32)
    y = np.full_like(x, np.nan)
    return launch(roles(body), x, y, threads=threads, smem=8192, **options)


# The last warp brings a tile of 32 numbers, n of them after each other, to one place; the others
# add them up, each warp its own multiple. Barrier 1: a tile is there; 2: its place is free.
PIPE = """
const int warps = blockDim.x / 32;
if (i / 32 == warps - 1) {
  for (int tile = 0; tile < p.n; ++tile) {
    const float value = load(p.x + 32 * tile + i % 32);
    if (tile > 0) meet<THREADS>(2);
    sm[i % 32] = value;
    arrive<THREADS>(1);
  }
  return;
}
float sum = 0.f;
for (int tile = 0; tile < p.n; ++tile) {
  meet<THREADS>(1);
  // Of another lane.
  sum += sm[31 - i % 32];
  if (tile + 1 < p.n) arrive<THREADS>(2);
}
store(p.y + i, sum * (1 + i / 32));
"""
TILES = 5


def pipe(body: str, threads: int, **options: int) -> Array:
    body = body.replace("THREADS", str(threads))
    return run(body, threads=threads, count=32 * TILES, n=TILES, **options)[: threads - 32]


def piped(threads: int) -> Array:
    sums = np.arange(1, 1 + 32 * TILES).reshape(TILES, 32)[:, ::-1].sum(axis=0)
    return (sums * np.arange(1, threads // 32)[:, None]).reshape(-1)


@every_schedule
@pytest.mark.parametrize("threads", [64, 96, 160])
def test_a_producer_and_its_consumers_take_turns(threads: int, schedule: int) -> None:
    for seed in range(3):
        got = pipe(PIPE, threads, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(got, piped(threads))


READ, STORE = "sum += sm[31 - i % 32];", "sm[i % 32] = value;"
THERE, FREE = "arrive<THREADS>(1);", "if (tile + 1 < p.n) arrive<THREADS>(2);"
# Nobody comes too late or never, but some schedules show data that is old or not there yet.
STALE = {
    "the place is free before it is read": (f"{READ}\n  {FREE}", f"{FREE}\n  {READ}"),
    "a tile is there before it is stored": (f"{STORE}\n    {THERE}", f"{THERE}\n    {STORE}"),
}


@pytest.mark.parametrize("name", STALE)
def test_stale_data_is_read_under_some_schedules(name: str) -> None:
    old, new = STALE[name]
    assert PIPE.count(old) == 1
    body = PIPE.replace(old, new)
    wrong = [
        not np.array_equal(pipe(body, 96, schedule=schedule, seed=seed), piped(96))
        for schedule in SCHEDULES.values()
        for seed in range(2)
    ]
    assert any(wrong)


# Without a barrier the other one is met by the wrong warps.
MISSING = {
    "nobody waits for a tile": ("meet<THREADS>(1);", THERE),
    "nobody waits for the place": ("if (tile > 0) meet<THREADS>(2);", FREE),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_barrier_is_noticed_under_some_schedules(name: str) -> None:
    body = PIPE
    for part in MISSING[name]:
        assert body.count(part) == 1
        body = body.replace(part, "")

    def run_all() -> None:
        for schedule in SCHEDULES.values():
            pipe(body, 96, schedule=schedule)

    with pytest.raises(EmulationError, match=r"deadlock: .* wait at bar\.sync"):
        run_all()


@every_schedule
def test_barriers_of_some_warps_leave_the_others_alone(schedule: int) -> None:
    """Two pairs of warps meet at barriers of their own, and a fifth warp at none."""
    body = """
    sm[i] = load(p.x + i);
    const int pair = i / 64;
    if (pair < 2) meet<64>(pair == 0 ? 15 : 1);
    const int from = pair < 2 ? i ^ 32 : i;
    store(p.y + i, sm[from]);
    """
    got = run(body, threads=160, schedule=schedule)
    place = np.arange(160)
    np.testing.assert_array_equal(got, 1 + np.where(place < 128, place ^ 32, place))


@every_schedule
def test_one_barrier_serves_all_in_turn(schedule: int) -> None:
    """Each warp brings a tile to the place of the last one, which all read in between."""
    body = """
    float sum = 0.f;
    for (int turn = 0; turn < 6; ++turn) {
      if (turn % 3 == i / 32) sm[i % 32] = turn + load(p.x + i % 32);
      meet<96>(7);
      sum = 2.f * sum + sm[31 - i % 32];
      meet<96>(7);
    }
    store(p.y + i, sum);
    """
    got = run(body, threads=96, schedule=schedule)
    want = np.zeros(32)
    for turn in range(6):
        want = 2 * want + turn + np.arange(32, 0, -1)
    np.testing.assert_array_equal(got, np.tile(want, 3))


@every_schedule
def test_warps_may_come_to_a_barrier_at_different_places(schedule: int) -> None:
    body = """
    sm[i] = load(p.x + i);
    if (i < 32) meet<64>(3);
    else meet<64>(3);
    store(p.y + i, sm[i ^ 32]);
    """
    np.testing.assert_array_equal(run(body, schedule=schedule), 1 + (np.arange(64) ^ 32))


@every_schedule
def test_named_barriers_and_that_of_the_block_don_t_meet(schedule: int) -> None:
    body = """
    sm[i] = load(p.x + i);
    if (i < 64) meet<64>(1);
    __syncthreads();
    store(p.y + i, sm[(i + 64) % 96]);
    """
    got = run(body, threads=96, schedule=schedule)
    np.testing.assert_array_equal(got, 1 + (np.arange(96) + 64) % 96)


MISTAKES = {
    "warps that expect different numbers": (
        96,
        "if (i < 32) meet<96>(1);\nelse if (i < 64) meet<64>(1);",
        r"bar\.sync \(body\.cuh:\d\), barrier 1: its warps differ in how many threads it has",
    ),
    "an arrival too many": (
        64,
        "if (i < 32) { arrive<64>(2); arrive<64>(2); }\nelse meet<64>(2);",
        r"barrier 2 weren't met|deadlock: threads of warp \d wait at bar\.sync",
    ),
    "an arrival of more than it has": (
        96,
        "if (i < 32) arrive<64>(1);\nelse if (i < 64) arrive<96>(1);\nelse arrive<64>(1);",
        r"bar\.arrive \(body\.cuh:\d\), barrier 1: its warps differ in how many threads it has",
    ),
    "nobody meets who arrived": (
        64,
        "if (i < 32) arrive<64>(4);",
        r"threads that arrived at barrier 4 weren't met there",
    ),
    "the block's barrier": (64, "meet<64>(0);", r"bar\.sync: barrier 0 of 64 threads"),
    "a barrier that there isn't": (64, "arrive<64>(16);", r"bar\.arrive: barrier 16 of 64 threads"),
    "a number below 0": (64, "meet<64>(-1);", r"bar\.sync: barrier -1 of 64 threads"),
    "half a warp": (64, "meet<48>(1);", r"barrier 1 of 48 threads: barriers are 1 to 15, of whole"),
    "nobody": (64, "arrive<0>(1);", r"barrier 1 of 0 threads: barriers are 1 to 15, of whole"),
    "more threads than the block has": (
        64,
        "meet<96>(1);",
        r"barrier 1 of 96 threads: barriers are 1 to 15, of whole warps of the block",
    ),
    "lanes that stay away": (
        64,
        "if (i % 32 < 16) meet<64>(1);",
        r"lanes of warp \d diverged: lanes 0x0000ffff wait at bar\.sync \(body\.cuh:1\) "
        r"for barrier 1, lanes 0xffff0000 exited",
    ),
    "lanes at different barriers": (
        64,
        "meet<64>(1 + i % 2);",
        r"lanes of warp \d diverged: lanes 0x55555555 wait at bar\.sync \(body\.cuh:1\) "
        r"for barrier 1, lanes 0xaaaaaaaa wait at bar\.sync \(body\.cuh:1\) for barrier 2",
    ),
    "a warp that nobody comes to": (
        96,
        "if (i >= 64) meet<64>(5);\nelse if (i >= 32) __syncthreads();",
        r"deadlock: threads of warp 2 wait at bar\.sync \(body\.cuh:1\) for barrier 5, to which "
        r"32 of 64 threads have come; warp 0 exited; "
        r"warp 1 wait at __syncthreads \(body\.cuh:2\)",
    ),
    "two that wait for each other": (
        64,
        "if (i < 32) { meet<64>(1); arrive<64>(2); }\nelse { meet<64>(2); arrive<64>(1); }",
        r"deadlock: threads of warp 0 wait at bar\.sync \(body\.cuh:1\) for barrier 1, to which "
        r"32 of 64 threads have come; warp 1 wait at bar\.sync \(body\.cuh:2\) for barrier 2",
    ),
    "a barrier of the block that waits for a named one": (
        64,
        "if (i < 32) __syncthreads();\nelse meet<64>(6);",
        r"deadlock: threads of warp 1 wait at bar\.sync \(body\.cuh:2\) for barrier 6, to which "
        r"32 of 64 threads have come; warp 0 wait at __syncthreads \(body\.cuh:1\)",
    ),
}


@every_schedule
@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_noticed(name: str, schedule: int) -> None:
    threads, body, message = MISTAKES[name]
    with pytest.raises(EmulationError, match=message):
        run(body, threads=threads, schedule=schedule)
    # The next launch starts with barriers that nobody has come to.
    run("if (i < 32) arrive<64>(1);\nelse meet<64>(1);", schedule=schedule)


def test_barriers_begin_anew_with_each_block() -> None:
    body = "if (i < 32) arrive<64>(1);\nelse meet<64>(1);\nstore(p.y + i, 1.f + blockIdx.x);"
    assert (run(body, grid=3) == 3).all()
    with pytest.raises(EmulationError, match=r"block 1: threads that arrived at barrier 1"):
        run("if (i < 32 && blockIdx.x == 1) arrive<64>(1);", grid=3)
