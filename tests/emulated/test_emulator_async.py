"""cp.async in the emulator: groups, when bytes land, which errors that shows, bad copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulation import LANDINGS, EmulationError, Region
from tiny_kernels import kernel_of, launch, primitives

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

LATE, EARLY = LANDINGS["late"], LANDINGS["early"]

every_landing = pytest.mark.parametrize("landing", LANDINGS.values(), ids=LANDINGS.keys())


def aligned(count: int) -> np.ndarray[Any, Any]:
    """Return 0, 1, ... at a multiple of 16 bytes."""
    memory = np.empty(count + 4, np.float32)
    x = memory[-memory.ctypes.data % 16 // 4 :][:count]
    x[:] = np.arange(count)
    return x


def run(body: str, count: int = 128, y: np.ndarray[Any, Any] | None = None, **options: Any) -> Any:
    kernel = kernel_of(body, np.float32, primitives())
    y = np.full(count, 7, np.float32) if y is None else y
    return launch(kernel, aligned(count), y, **{"smem": 1024, **options})


# When bytes land.


def test_a_copy_lands_at_its_issue_or_at_the_wait_for_its_group() -> None:
    body = """
    const unsigned shared = shared_address(sm);
    sm[4 * i] = 5.f;
    copy_async<16>(shared + 16 * i, p.x + 4 * i, true);
    commit_async();
    store_global(p.y + 4 * i, sm[4 * i + 1]);
    wait_async<1>();
    store_global(p.y + 4 * i + 1, sm[4 * i + 1]);
    wait_async<0>();
    store_global(p.y + 4 * i + 2, sm[4 * i + 1]);
    store_global(p.y + 4 * i + 3, sm[4 * i]);
    """
    x = aligned(128).reshape(32, 4)
    late, early = (run(body, landing=landing).reshape(32, 4) for landing in (LATE, EARLY))
    assert np.isnan(late[:, :2]).all()
    np.testing.assert_array_equal(late[:, 2:], x[:, [1, 0]])
    np.testing.assert_array_equal(early, x[:, [1, 1, 1, 0]])


@every_landing
def test_global_memory_is_read_when_the_copy_lands(landing: int) -> None:
    body = """
    copy_async<16>(shared_address(sm) + 16 * i, p.y + 4 * i, true);
    commit_async();
    store_global(p.y + 4 * i, -1.f);
    wait_async<0>();
    store_global(p.y + 4 * i + 1, sm[4 * i]);
    """
    y = run(body, y=aligned(128), landing=landing)
    np.testing.assert_array_equal(y[1::4], np.arange(32) * 4 if landing == EARLY else -1)


def test_late_a_wait_lands_all_but_the_latest_groups() -> None:
    body = """
    const unsigned shared = shared_address(sm) + 128 * (i / 8);
    if (i % 8 == 0) {
      for (int group = 0; group < 4; ++group) {
        copy_async<16>(shared + 32 * group, p.x + 8 * group, true);
        copy_async<16>(shared + 32 * group + 16, p.x + 8 * group + 4, true);
        commit_async();
      }
      if (i == 0) wait_async<4>();
      if (i == 8) wait_async<3>();
      if (i == 16) { commit_async(); wait_async<2>(); }
      if (i == 24) wait_async<0>();
    }
    __syncwarp();
    for (int j = 0; j < 4; ++j) store_global(p.y + 4 * i + j, sm[4 * i + j]);
    __syncwarp();
    wait_async<0>();
    """
    y = run(body).reshape(4, 32)
    for landed, row in zip((0, 1, 3, 4), y, strict=True):
        np.testing.assert_array_equal(row[: 8 * landed], np.arange(8 * landed))
        assert np.isnan(row[8 * landed :]).all()


# Errors that one of the landings shows.

# Each tile of 128 numbers, of which a thread copies four and sums the four of another thread.
PIPELINE = """
const unsigned shared = shared_address(sm);
float sum = 0.f;
auto copy = [&](int tile) {
  copy_async<16>(shared + 512 * (tile % 2) + 16 * i, p.x + 128 * tile + 4 * i, true);
  commit_async();
};
copy(0);
for (int tile = 0; tile < 4; ++tile) {
  if (tile < 3) copy(tile + 1);
  if (tile < 3) wait_async<PENDING>();
  else wait_async<0>();
  __syncthreads();
  for (int j = 0; j < 4; ++j) sum += sm[128 * (tile % 2) + (4 * i + 68 + j) % 128];
  BARRIER
}
store_global(p.y + i, sum);
wait_async<0>();
"""


@every_landing
@pytest.mark.parametrize(
    ("pending", "barrier", "shows"),
    [
        ("1", "__syncthreads();", ()),
        ("0", "__syncthreads();", ()),
        ("2", "__syncthreads();", (LATE,)),
        ("1", "", (LATE, EARLY)),
    ],
    ids=["right", "waits for all", "waits for too little", "no barrier before an overwrite"],
)
def test_pipeline(pending: str, barrier: str, shows: tuple[int, ...], landing: int) -> None:
    body = PIPELINE.replace("PENDING", pending).replace("BARRIER", barrier)
    y = run(body, count=512, landing=landing)[:32]
    tiles = np.roll(np.arange(512).reshape(4, 128), -68, axis=1)
    right = np.array_equal(y, tiles.reshape(4, 32, 4).sum(axis=(0, 2)))
    assert right == (landing not in shows)


# Bad copies. x holds the arguments: destination, source in bytes from y, whether it is present.

COPY = """
if (i == 3) {
  const char* source = reinterpret_cast<const char*>(p.y) + load_global(p.x + 1);
  copy_async<16>(load_global(p.x), source, load_global(p.x + 2) != 0);
  commit_async();
}
wait_async<0>();
store_global(p.y, sm[0]);
"""
BAD_COPY = {
    "misaligned destination": (
        (8, 0, 1),
        r"cp\.async of 16 bytes at byte 8 of 64 bytes of shared memory: not 16-byte aligned",
    ),
    "destination past the end": (
        (64, 0, 0),
        r"cp\.async of 16 bytes at byte 64 of 64 bytes of shared memory: outside",
    ),
    "misaligned source": (
        (0, 4, 1),
        r"cp\.async of 16 bytes at y\+4 \(0x[0-9a-f]+\) is not 16-byte aligned; y has 40 bytes",
    ),
    "source past the end": ((0, 32, 1), r"cp\.async of 16 bytes at y\+32 .* is outside every"),
    "source before the start": ((0, -16, 1), r"cp\.async of 16 bytes at y-16 .* is outside every"),
}
GOOD_COPY = {
    "up to the last byte": (48, 16, 1),
    "nothing from beyond": (0, 4096, 0),
    "nothing from a misaligned address": (0, 33, 0),
}


def copy(arguments: tuple[int, int, int], landing: int) -> np.ndarray[Any, Any]:
    kernel = kernel_of(COPY, np.int32, primitives())
    x, y = np.array(arguments, np.int32), aligned(10).view(np.int32)
    regions = [Region.of("y", y, writable=True), Region("x", x.ctypes.data, x.nbytes, False)]
    return launch(kernel, x, y, smem=64, regions=regions, landing=landing)


@every_landing
@pytest.mark.parametrize("name", BAD_COPY)
def test_bad_copy_is_noticed(name: str, landing: int) -> None:
    arguments, message = BAD_COPY[name]
    with pytest.raises(EmulationError, match=rf"block 0, thread 3: {message}"):
        copy(arguments, landing)


@every_landing
@pytest.mark.parametrize("name", GOOD_COPY)
def test_only_the_bytes_that_are_copied_are_checked(name: str, landing: int) -> None:
    destination = GOOD_COPY[name][0]
    assert copy(GOOD_COPY[name], landing)[0] == (0 if destination == 0 else -1)


@every_landing
@pytest.mark.parametrize("last", ["commit_async();", "wait_async<0>();", "commit_async();\n"])
def test_a_copy_that_nobody_waits_for_is_noticed(last: str, landing: int) -> None:
    body = f"if (i >= p.n) copy_async<16>(shared_address(sm) + 16 * i, p.x + 4 * i, true);\n{last}"
    message = r"thread 9: cp\.async still pending at exit: 1 copies without a wait"
    with pytest.raises(EmulationError, match=message):
        run(body, n=9, landing=landing)
    # The next launch starts without them.
    run(body, n=32, landing=landing)


def test_too_many_pending_copies_are_noticed() -> None:
    copies = "for (int k = 0; k < p.n; ++k) copy_async<16>(shared_address(sm), p.x, true);"
    body = f"{copies}\ncommit_async();"
    wait = "\nwait_async<0>();"
    run(body + wait, n=1024)
    with pytest.raises(EmulationError, match=r"more than 1024 cp\.async of one thread are pending"):
        run(body + wait, n=1025)


def test_landings_are_named() -> None:
    with pytest.raises(ValueError, match=r"landing=2: allowed are \{'late': 0, 'early': 1\}"):
        run("", landing=2)


# Vectors in shared memory.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "load_shared<Words4>(8);",
            r"load of 16 bytes at byte 8 of 1024 bytes of .*: not 16-byte aligned",
        ),
        (
            "store_shared(1024, Words4{});",
            r"store of 16 bytes at byte 1024 of 1024 bytes of shared memory: outside",
        ),
        (
            "load_shared<Words2>(4);",
            r"load of 8 bytes at byte 4 of 1024 bytes of .*: not aligned to its size",
        ),
        (
            "store_shared(1, static_cast<unsigned short>(0));",
            r"store of 2 bytes at byte 1 of 1024 bytes of .*: not aligned to its size",
        ),
        (
            "store_shared(1024, static_cast<unsigned char>(0));",
            r"store of 1 bytes at byte 1024 of 1024 bytes of shared memory: outside",
        ),
        (
            "shared_address(sm - 1);",
            r"shared address of a pointer to byte -4 of 1024 bytes of shared memory",
        ),
        ("shared_address(sm + 257);", r"shared address of a pointer to byte 1028 of 1024"),
    ],
)
def test_bad_shared_access_is_noticed(body: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        run(body)


def test_one_past_the_end_has_a_shared_address() -> None:
    y = run("store_global(p.y + i, static_cast<float>(shared_address(sm + 256)));")
    np.testing.assert_array_equal(y[:32], 1024)
