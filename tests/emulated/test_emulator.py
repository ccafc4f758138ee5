"""What the emulator computes, in which order, and which races that shows."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from emulation import BLOCK_ORDERS, SCHEDULES, EmulatedKernel, Region, build
from tiny_kernels import C_TYPES, EMPTY, PARAMS, emulate, kernel_of, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]


@pytest.fixture(params=[False, True], ids=["assembly", "ucontext"])
def ucontext(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=SCHEDULES.values(), ids=SCHEDULES.keys())
def schedule(request: pytest.FixtureRequest) -> int:
    return request.param


# What the emulator computes.


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flushes on x86-64 only")
@pytest.mark.parametrize("flush", [False, True])
def test_subnormal_operands_and_results_are_flushed_on_request(flush: bool) -> None:
    kernel = kernel_of("store(p.y + i, load(p.x + i) * 0.5f);", np.dtype(np.float32))
    x = np.full(32, np.ldexp(1, -126), np.float32)  # the smallest normal number
    x[16:] = np.ldexp(1, -130)
    y = launch(kernel, x, np.ones_like(x), threads=32, flush_subnormals=flush)
    np.testing.assert_array_equal(y, np.zeros_like(x) if flush else x / 2)
    assert np.float32(2.0**-126) / 2 > 0, "the host's own arithmetic flushes now"


def test_indices_over_a_grid() -> None:
    body = """
    const int row = blockIdx.x * blockDim.x + i;
    store(p.y + row, row + 0.5f * gridDim.x);
    """
    y = emulate(body, count=192, grid=3, threads=64)
    np.testing.assert_array_equal(y, np.arange(192) + 1.5)


@pytest.mark.parametrize("dtype", C_TYPES, ids=str)
@pytest.mark.parametrize("mask", [1, 2, 16, 31, 33])
def test_xor_shuffle(dtype: np.dtype, mask: int) -> None:
    kernel = kernel_of("store(p.y + i, __shfl_xor_sync(0xffffffffu, load(p.x + i), p.n));", dtype)
    x = (np.arange(64) * 1234567.875).astype(dtype)
    y = launch(kernel, x, np.zeros_like(x), n=mask, threads=64)
    lanes = np.arange(64)
    np.testing.assert_array_equal(y, x[lanes // 32 * 32 + (lanes % 32 ^ mask % 32)])


@pytest.mark.parametrize("dtype", C_TYPES, ids=str)
def test_indexed_shuffle(dtype: np.dtype, schedule: int) -> None:
    body = "store(p.y + i, __shfl_sync(0xffffffffu, load(p.x + i), i * i + p.n));"
    x = (np.arange(96) * -7654321.125).astype(np.int64).astype(dtype)
    y = launch(kernel_of(body, dtype), x, np.zeros_like(x), n=5, threads=96, schedule=schedule)
    lanes = np.arange(96)
    np.testing.assert_array_equal(y, x[lanes // 32 * 32 + (lanes * lanes + 5) % 32])


def test_back_to_back_collectives_keep_their_operands_apart(schedule: int, ucontext: bool) -> None:
    body = """
    float sum = load(p.x + i);
    for (int m = 1; m < 32; m *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (i % 32 == 0) sm[i / 32] = sum;
    __syncthreads();
    float total = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) total += sm[w];
    store(p.y + i, total);
    """
    x = np.arange(256, dtype=np.float32)
    kernel = kernel_of(body, ucontext=ucontext)
    y = launch(kernel, x, np.zeros_like(x), threads=256, smem=32, schedule=schedule)
    np.testing.assert_array_equal(y, x.sum())


@pytest.mark.parametrize("voter", [-1, 0, 37, 95])
def test_votes_of_a_warp_and_of_a_block(voter: int, schedule: int) -> None:
    body = """
    store(p.y + i, 1.f * __any_sync(0xffffffffu, i == p.n ? 4 : 0));
    store(p.y + 96 + i, 1.f * (__syncthreads_or(i == p.n ? -2 : 0) != 0));
    """
    kernel = kernel_of(body, np.float32)
    y = np.full(192, np.nan, np.float32)
    launch(kernel, y, y, n=voter, threads=96, regions=[Region.of("y", y, True)], schedule=schedule)
    warp, block = (y != 0).reshape(2, 3, 32)
    np.testing.assert_array_equal(warp.any(axis=1), np.arange(3) == voter // 32)
    assert (warp == warp[:, :1]).all()
    assert (block == (voter >= 0)).all()


def test_votes_of_a_block_in_a_row_are_apart_and_wait_for_all(schedule: int) -> None:
    body = """
    for (int turn = 0; turn < 8; ++turn) {
      sm[i] = turn;
      const int odd = __syncthreads_or(turn % 2 != 0 && i == turn * 11);
      if (odd != turn % 2 || sm[95 - i] != turn) return;
      __syncthreads();
    }
    store(p.y + i, 1.f);
    """
    y = emulate(body, count=96, threads=96, smem=384, schedule=schedule)
    np.testing.assert_array_equal(y, 1)


def test_the_fallback_back_end_is_the_portable_one() -> None:
    paths = [build(EMPTY, "kernel", PARAMS.itemsize, ucontext=u) for u in (True, False)]
    assert [b"swapcontext" in path.read_bytes() for path in paths] == [True, False]


def test_bit_casts_and_math() -> None:
    body = """
    const float v = load(p.x + i);
    const double d = __longlong_as_double(__double_as_longlong(v) ^ (1ll << 63));
    const float f = __uint_as_float(__float_as_uint(v) | 0x80000000u);
    store(p.y + i, fmaf(exp2f(log2f(v + 1.f)), 2.f, f) + static_cast<float>(fma(d, 1.0, fabs(d))));
    """
    np.testing.assert_allclose(emulate(body), np.arange(32) + 2, rtol=1e-6)


@pytest.mark.parametrize("sanitize", [False, True])
def test_params_arrive_intact_aligned_and_private_to_each_thread(sanitize: bool) -> None:
    dtype = np.dtype(
        {
            "names": ["flag", "out", "scale", "many"],
            "formats": [np.int8, np.uint64, np.float64, (np.int32, 5)],
            "offsets": [0, 8, 16, 64],
            "itemsize": 128,
        }
    )
    source = """
    struct alignas(64) Params {
      signed char flag; double* out; double scale; alignas(64) int many[5];
    };
    extern "C" __global__ void copies(Params p) {
      p.scale += threadIdx.x;
      __syncwarp();
      double* out = p.out + 8 * threadIdx.x;
      emu::check_write(out, 64);
      out[0] = p.flag;
      out[1] = p.scale;
      for (int j = 0; j < 5; ++j) out[2 + j] = p.many[j];
      out[7] = reinterpret_cast<unsigned long long>(&p) % 64;
    }
    """
    out = np.full((32, 8), np.nan)
    params = np.array((-3, out.ctypes.data, 0.125, [1, -2, 3, -4, 2**31 - 1]), dtype)[()]
    kernel = EmulatedKernel(build(source, "copies", 128, sanitize=sanitize), "copies", 128)
    kernel.launch(params, 1, 32, 0, [Region.of("out", out, writable=True)])
    np.testing.assert_array_equal(out[:, 1], 0.125 + np.arange(32))
    np.testing.assert_array_equal(
        out[:, [0, 2, 3, 4, 5, 6, 7]], [[-3, 1, -2, 3, -4, 2**31 - 1, 0]] * 32
    )


def test_uninitialised_shared_memory_is_nan_in_every_block() -> None:
    body = """
    store(p.y + blockIdx.x * 32 + i, sm[i]);
    sm[i] = 1.f;
    """
    assert np.isnan(
        emulate(body.replace("sm[i])", "sm[i] * 0.f)"), count=64, grid=2, smem=128)
    ).all()


def test_shared_memory_is_aligned_and_usable_to_its_last_byte() -> None:
    body = """
    unsigned char* bytes = emu::shared_memory();
    for (int b = i; b < p.n; b += 32) bytes[b] = 0;
    store(p.y + i, float(reinterpret_cast<unsigned long long>(bytes) % 128));
    """
    np.testing.assert_array_equal(emulate(body, n=999, smem=999), 0)


# In which order threads run.

LOG_ORDER = """
int* count = reinterpret_cast<int*>(emu::shared_memory());
if (i == 0) *count = 0;
__syncthreads();
for (int turn = 0; turn < 3; ++turn) {
  if (i % 32 == 0) store(p.y + (*count)++, float(i / 32));
  __syncwarp();
}
"""


@pytest.mark.parametrize(
    ("schedule", "order"),
    [
        (0, [0, 1, 2, 3] * 3),
        (1, [3, 2, 1, 0] * 3),
        (3, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]),
        (4, [3, 3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0]),
    ],
)
def test_order_of_warps(schedule: int, order: list[int]) -> None:
    y = emulate(LOG_ORDER, count=12, threads=128, smem=4, schedule=schedule)
    np.testing.assert_array_equal(y, order)


def test_random_order_is_a_permutation_each_round_and_repeats_with_its_seed() -> None:
    def order(seed: int) -> tuple[float, ...]:
        y = emulate(LOG_ORDER, count=12, threads=128, smem=4, schedule=2, seed=seed)
        np.testing.assert_array_equal(np.sort(y.reshape(3, 4), axis=1), [[0, 1, 2, 3]] * 3)
        return tuple(y)

    orders = [order(seed) for seed in range(8)]
    assert len(set(orders)) > 4
    assert orders == [order(seed) for seed in range(8)]


@pytest.mark.parametrize(("schedule", "first"), [(0, 0), (1, 31), (2, 0), (3, 0), (4, 31)])
def test_order_of_lanes(schedule: int, first: int) -> None:
    body = """
    if (!(sm[0] >= 0.f)) sm[0] = i;
    __syncwarp();
    store(p.y + i, sm[0]);
    """
    np.testing.assert_array_equal(emulate(body, smem=4, schedule=schedule), first)


LOG_BLOCKS = """
if (i == 0) {
  int turn = 0;
  while (load(p.y + turn) >= 0.f) ++turn;
  store(p.y + turn, float(blockIdx.x));
}
"""


def logged_blocks(grid: int, block_order: int, seed: int = 0) -> list[float]:
    """Return the blocks of a grid in the order in which they found a place."""
    y = np.full(grid, np.nan, np.float32)
    regions = [Region.of("y", y, writable=True)]
    launch(
        kernel_of(LOG_BLOCKS), y, y, grid=grid, regions=regions, block_order=block_order, seed=seed
    )
    return y.tolist()


def test_order_of_blocks() -> None:
    assert logged_blocks(5, BLOCK_ORDERS["forward"]) == [0, 1, 2, 3, 4]
    assert logged_blocks(5, BLOCK_ORDERS["backward"]) == [4, 3, 2, 1, 0]
    orders = [logged_blocks(7, BLOCK_ORDERS["random"], seed) for seed in range(8)]
    assert all(sorted(order) == [*range(7)] for order in orders)
    assert len({*map(tuple, orders)}) > 4
    assert orders == [logged_blocks(7, BLOCK_ORDERS["random"], seed) for seed in range(8)]


def test_orders_of_blocks_are_named() -> None:
    message = r"block_order=3: allowed are \{'forward': 0, 'backward': 1, 'random': 2\}"
    with pytest.raises(ValueError, match=message):
        emulate("", block_order=3)


@pytest.mark.parametrize("order", BLOCK_ORDERS.values(), ids=BLOCK_ORDERS.keys())
@pytest.mark.parametrize("shared", [False, True], ids=["own places", "one place"])
def test_blocks_that_write_to_one_place_show_in_some_order(shared: bool, order: int) -> None:
    place = "i" if shared else "blockIdx.x * 32 + i"
    body = f"store(p.y + {place}, float(blockIdx.x));"
    y = emulate(body, count=96, grid=3, block_order=order)
    want = np.repeat([0, 1, 2], 32)
    assert np.array_equal(y[:32], np.full(32, 2) if shared else want[:32]) == (
        not shared or order == BLOCK_ORDERS["forward"]
    )


# Races: found as wrong results, under the schedules that expose them.


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""], ids=["barrier", "no barrier"])
def test_missing_barrier_before_an_overwrite_shows_only_under_skew(
    barrier: str, schedule: int
) -> None:
    body = f"""
    sm[i] = 1.f;
    __syncthreads();
    float sum = sm[(i + 32) % 64];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    {barrier}
    sm[i] = 100.f;
    store(p.y + i, sum);
    """
    y = emulate(body, count=64, threads=64, smem=256, schedule=schedule)
    skewed = schedule >= SCHEDULES["greedy"]
    assert (y == 2).all() == (bool(barrier) or not skewed)


@pytest.mark.parametrize("barrier", ["__syncthreads();", ""], ids=["barrier", "no barrier"])
def test_missing_barrier_before_a_read(barrier: str, schedule: int) -> None:
    body = f"""
    sm[i] = load(p.x + i);
    {barrier}
    store(p.y + i, sm[63 - i]);
    """
    y = emulate(body, count=64, threads=64, smem=256, schedule=schedule)
    assert np.array_equal(y, np.arange(64)[::-1]) == bool(barrier)


@pytest.mark.parametrize(("neighbour", "shows"), [(1, {0, 2, 3, 5, 6}), (31, {1, 4, 7})])
@pytest.mark.parametrize("sync", ["__syncwarp();", ""], ids=["syncwarp", "no syncwarp"])
def test_missing_syncwarp_shows_in_one_direction_of_lanes(
    sync: str, neighbour: int, shows: set[int], schedule: int
) -> None:
    # All but the lane that wraps around read from a lane that runs later, or all from an earlier.
    body = f"""
    sm[i] = load(p.x + i);
    {sync}
    if (i != 0 && i != 31) store(p.y + i, sm[(i + {neighbour}) % 32]);
    """
    y = emulate(body, smem=128, schedule=schedule)[1:-1]
    right = np.array_equal(y, (np.arange(1, 31) + neighbour) % 32)
    assert right == (bool(sync) or schedule not in shows)
