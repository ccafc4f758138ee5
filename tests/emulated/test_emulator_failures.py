"""The emulator notices divergence, bad accesses, overruns, endless loops and undefined code."""

from __future__ import annotations

import numpy as np
import pytest

from emulation import SCHEDULES, EmulationError, Region
from tiny_kernels import emulate, kernel_of, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())

# Divergence: found by the emulator, under every schedule.

DIVERGENT = {
    "a warp exits before the barrier": (
        "if (i < 32) __syncthreads();",
        r"warps diverged: threads of warp 0 wait at __syncthreads \(body.cuh:1\), "
        r"threads of warp 1 exited",
    ),
    "warps at two barriers": (
        "if (i < 32) __syncthreads();\nelse __syncthreads();",
        r"warps diverged: .* \(body.cuh:1\), threads of warp 1 wait at __syncthreads "
        r"\(body.cuh:2\)",
    ),
    "lanes exit before the barrier": (
        "if (i % 32 < 16) __syncthreads();",
        r"lanes of warp \d diverged: lanes 0x0000ffff wait at __syncthreads \(body.cuh:1\), "
        r"lanes 0xffff0000 exited",
    ),
    "lanes at two barriers on one line": (
        "if (i % 2) __syncthreads(); else __syncthreads();",
        r"lanes 0x55555555 wait at __syncthreads .*, lanes 0xaaaaaaaa wait at __syncthreads",
    ),
    "lanes at two shuffles": (
        "float v = i;\nif (i & 4) v = __shfl_sync(0xffffffffu, v, 0);\n"
        "else v = __shfl_sync(0xffffffffu, v, 0);\nsm[i] = v;",
        r"lanes 0x0f0f0f0f wait at __shfl_sync \(body.cuh:3\), "
        r"lanes 0xf0f0f0f0 wait at __shfl_sync \(body.cuh:2\)",
    ),
    "lanes at two kinds": (
        "float v = i;\nif (i & 4) v = __shfl_xor_sync(0xffffffffu, v, 1);\nelse __syncwarp();\n"
        "sm[i] = v;",
        r"0x0f0f0f0f wait at __syncwarp .* 0xf0f0f0f0 wait at __shfl_xor_sync",
    ),
    "lanes in two instances of a template": (
        "auto swap = [](auto v) { return __shfl_xor_sync(0xffffffffu, v, 1); };\n"
        "sm[i] = i < 48 ? swap(1.f) : static_cast<float>(swap(1.0));",
        r"lanes 0x0000ffff wait at __shfl_xor_sync \(body.cuh:1\), lanes 0xffff0000 wait at",
    ),
    "an exited lane of the mask": (
        "if (i == 37) return;\nsm[i] = __shfl_sync(0xffffffffu, 1.f, 0);",
        r"warp 1 diverged: lanes 0xffffffdf wait at __shfl_sync \(body.cuh:2\), "
        r"lanes 0x00000020 exited",
    ),
    "lanes at two votes": (
        "sm[i] = i & 4 ? __any_sync(0xffffffffu, 1)\n  : __any_sync(0xffffffffu, 0);",
        r"0x0f0f0f0f wait at __any_sync \(body.cuh:2\), lanes 0xf0f0f0f0 wait at __any_sync",
    ),
    "warps at a vote and a barrier": (
        "if (i < 32) sm[i] = __syncthreads_or(1);\nelse __syncthreads();",
        r"threads of warp 0 wait at __syncthreads_or \(body.cuh:1\), "
        r"threads of warp 1 wait at __syncthreads \(body.cuh:2\)",
    ),
    "deadlock of a barrier and a collective": (
        "if (i % 32 == 3) __syncthreads();\nelse __syncwarp();",
        r"0xfffffff7 wait at __syncwarp \(body.cuh:2\), lanes 0x00000008 wait at __syncthreads",
    ),
}


@every_schedule
@pytest.mark.parametrize("name", DIVERGENT)
def test_divergence_is_noticed(name: str, schedule: int) -> None:
    body, message = DIVERGENT[name]
    with pytest.raises(EmulationError, match=rf"^kernel: block 0: .*{message}"):
        emulate(body, threads=64, smem=256, schedule=schedule)


@every_schedule
def test_uniform_branches_are_not_divergence(schedule: int) -> None:
    body = """
    if (i < 32) __syncwarp();
    else sm[i] = __shfl_sync(0xffffffffu, 1.f, 0);
    if (p.n) __syncthreads();
    store(p.y + i, 1.f);
    """
    assert (emulate(body, count=64, n=1, threads=64, smem=256, schedule=schedule) == 1).all()


@pytest.mark.parametrize("call", ["__shfl_sync(0x0000ffffu, 1.f, 0)", "__any_sync(0x0000ffffu, 1)"])
def test_partial_mask_is_refused(call: str) -> None:
    name = call.partition("(")[0]
    with pytest.raises(EmulationError, match=rf"thread 0: {name} with mask 0x0000ffff: only"):
        emulate(f"sm[i] = {call};", smem=128)


# Memory.

BAD_ACCESS = {
    "read past the end": (
        "load(p.x + 1 + i);",
        r"block 0, thread 31: read of 4 bytes at x\+128 \(0x[0-9a-f]+\) is outside every region; "
        r"x has 128 bytes",
    ),
    "read before the start": ("load(p.x - 1);", r"thread 0: read of 4 bytes at x-4 .* outside"),
    "write past the end": (
        "if (i == 5) store(p.y + 32, 1.f);",
        r"thread 5: write of 4 bytes at y\+128 .* outside",
    ),
    "write of a read-only region": (
        "store(const_cast<float*>(p.x) + i, 1.f);",
        r"thread 0: write of 4 bytes at x\+0 .* is in a read-only region",
    ),
    "misaligned vector": (
        "emu::check_read(p.x + i, 16);",
        r"thread 1: read of 16 bytes at x\+4 .* is not 16-byte aligned",
    ),
    "vector across the end": (
        "emu::check_read(p.x + i, 12);",
        r"thread 30: read of 12 bytes at x\+120 .* outside",
    ),
    "null pointer": (
        "load(static_cast<const float*>(nullptr));",
        r"read of 4 bytes at x-\d+ \(0x0\)",
    ),
}


@pytest.mark.parametrize("name", BAD_ACCESS)
def test_bad_access_is_noticed(name: str) -> None:
    body, message = BAD_ACCESS[name]
    # One allocation, so that "the nearest region" does not depend on the allocator.
    memory = np.zeros(1024, np.float32)
    start = -memory.ctypes.data % 16 // 4
    x, y = memory[start : start + 32], memory[start + 512 : start + 544]
    with pytest.raises(EmulationError, match=message):
        launch(kernel_of(body), x, y)


def test_access_may_not_straddle_two_regions() -> None:
    x = np.zeros(32, np.float32)
    kernel = kernel_of("emu::check_read(p.x + p.n, 12);")
    regions = [Region.of("low", x[:16]), Region.of("high", x[16:])]
    launch(kernel, x, x, n=13, regions=regions)
    launch(kernel, x, x, n=16, regions=regions)
    with pytest.raises(EmulationError, match=r"read of 12 bytes at low\+56"):
        launch(kernel, x, x, n=14, regions=regions)


def test_write_may_use_any_of_overlapping_regions() -> None:
    x = np.zeros(32, np.float32)
    regions = [Region.of("input", x), Region.of("output", x[8:], writable=True)]
    kernel = kernel_of("if (i >= p.n) store(p.y + i, load(p.x + i) + 1.f);")
    np.testing.assert_array_equal(launch(kernel, x, x, n=8, regions=regions), [0] * 8 + [1] * 24)
    with pytest.raises(
        EmulationError, match=r"thread 7: write of 4 bytes at input\+28 .*read-only"
    ):
        launch(kernel, x, x, n=7, regions=regions)


def test_access_without_regions_is_noticed() -> None:
    x = np.zeros(32, np.float32)
    with pytest.raises(EmulationError, match=r"no region is registered"):
        launch(kernel_of("load(p.x);"), x, x, regions=[])


def test_region_of_a_strided_view_spans_first_to_last_byte() -> None:
    base = np.zeros((4, 6), np.float32)
    view = base[::-2, 1:5:2]
    region = Region.of("view", view)
    assert region == Region("view", base[1:, 1:].ctypes.data, (2 * 6 + 3) * 4, False)


@pytest.mark.parametrize(("at", "offset"), [("32", 128), ("-1", -1), ("700", 2800)])
def test_shared_memory_overrun_is_noticed(at: str, offset: int) -> None:
    message = rf"block 1: shared memory was written at byte {offset}, outside its 128 bytes"
    with pytest.raises(EmulationError, match=message):
        emulate(f"if (i == 3 && blockIdx.x == 1) sm[{at}] = 0.f;", grid=2, smem=128)


@pytest.mark.parametrize("ctype", ["float", "double"])
def test_shared_memory_around_the_block_reads_as_nan(ctype: str) -> None:
    body = f"""
    const {ctype}* wide = reinterpret_cast<const {ctype}*>(emu::shared_memory());
    store(p.y + i, float(wide[p.n + i]));
    """
    assert np.isnan(emulate(body, n=-32, smem=128)).all()
    assert np.isnan(emulate(body, n=32, smem=128)).all()


def test_stack_overflows_are_noticed_once_and_the_first_is_named() -> None:
    kernel = kernel_of("if (p.n >= 0 && i >= p.n) emu::state.current->stack.low()[200] = 0;")
    x = np.zeros(32, np.float32)
    with pytest.raises(EmulationError, match=r"thread 9 overflowed its stack of 131072 bytes"):
        launch(kernel, x, x, n=9)
    launch(kernel, x, x, n=-1)


# Failures end the launch, and only the launch.


@pytest.mark.parametrize("ucontext", [False, True])
def test_host_twin_can_fail_and_the_first_failure_is_kept(ucontext: bool) -> None:
    kernel = kernel_of(
        'if (i >= p.n) emu::fail("100% misuse");\n__syncthreads();', ucontext=ucontext
    )
    x = np.zeros(64, np.float32)
    for _ in range(2):
        with pytest.raises(EmulationError, match=r"^kernel: block 0, thread 40: 100% misuse$"):
            launch(kernel, x, x, n=40, threads=64)
        launch(kernel, x, x, n=64, threads=64)


def test_a_launch_starts_clean_after_lanes_diverged() -> None:
    body = """
    if (i < p.n) __syncwarp();
    else store(p.y + i, __shfl_xor_sync(0xffffffffu, load(p.x + i), 1));
    """
    kernel = kernel_of(body)
    x = np.arange(32, dtype=np.float32)
    y = np.zeros_like(x)
    with pytest.raises(EmulationError, match=r"diverged"):
        launch(kernel, x, y, n=7)
    np.testing.assert_array_equal(launch(kernel, x, y), np.arange(32) ^ 1)


def test_later_blocks_do_not_run_after_a_failure() -> None:
    x = np.zeros(4, np.float32)
    body = """
    if (blockIdx.x == 1) emu::fail("stop");
    if (i == 0) store(p.y + blockIdx.x, 1.f);
    """
    with pytest.raises(EmulationError, match=r"block 1, thread 0: stop"):
        launch(kernel_of(body), x, x, grid=4, regions=[Region.of("x", x, writable=True)])
    np.testing.assert_array_equal(x, [1, 0, 0, 0])


@pytest.mark.parametrize("body", ["for (;;) load(p.x);", "for (;;) __syncthreads();"])
def test_endless_loop_with_steps_is_noticed(body: str) -> None:
    with pytest.raises(EmulationError, match=r"the block took more than 10000 steps"):
        emulate(body, max_steps=10_000)


def test_steps_are_counted_per_block() -> None:
    body = "for (int k = 0; k < 9; ++k) load(p.x + i);"
    emulate(body, grid=50, max_steps=9 * 32)
    with pytest.raises(EmulationError, match=r"more than 287 steps"):
        emulate(body, grid=50, max_steps=9 * 32 - 1)


# The sanitizer, which sees what the emulator can't: registers and shared-memory pointers.

UNDEFINED = {
    "index outside a register array": (
        "float a[4] = {};\na[p.n & 7] += 1.f;\nsm[i] = a[0] + a[3];",
        r"body.cuh:2: (index outside an array|access outside an object)",
    ),
    "misaligned shared-memory vector": (
        "struct alignas(16) Vector { float v[4]; };\n"
        "*reinterpret_cast<Vector*>(sm + p.n) = Vector{};",
        r"body.cuh:2: misaligned access",
    ),
    "signed overflow": ("sm[i] = p.n * 400000000;", r"body.cuh:1: signed overflow of \*"),
    "shift past the width": (
        "sm[i] = 1 << (p.n * 8);",
        r"body.cuh:1: shift by a negative or too large count",
    ),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_undefined_behaviour_is_noticed(name: str) -> None:
    body, message = UNDEFINED[name]
    x = np.zeros(32, np.float32)
    kernel = kernel_of(body, sanitize=True)
    with pytest.raises(EmulationError, match=rf"thread 0: undefined behaviour at {message}"):
        launch(kernel, x, x, n=6, smem=256)
    launch(kernel, x, x, n=0, smem=256)
