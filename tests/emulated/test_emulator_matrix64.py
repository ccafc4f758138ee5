"""mma of float64 and cp.async of 8 bytes in the emulator: layouts, rounding, misuse."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from emulation import LANDINGS, SCHEDULES, EmulationError, Region
from tiny_kernels import kernel_of, launch, primitives

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

every_landing = pytest.mark.parametrize("landing", LANDINGS.values(), ids=LANDINGS.keys())

Array = np.ndarray[Any, Any]

# The rows and columns of a lane's registers, as kernels_cu/ptx/matrix64.cuh gives them.
_lane, _register = np.ogrid[:32, :8]
ROW, PLACE = _lane // 4, _lane % 4
A_ROWS, A_COLUMNS = np.broadcast_arrays(ROW + _register % 2 * 8, _register // 2 * 4 + PLACE)
B_ROWS, B_COLUMNS = np.broadcast_arrays(_register[:, :4] * 4 + PLACE, ROW)
C_ROWS, C_COLUMNS = np.broadcast_arrays(
    ROW + _register[:, :4] // 2 * 8, PLACE * 2 + _register[:, :4] % 2
)

MULTIPLY = """
const double* x = p.x + 16 * i;
double a[8], b[4], c[4];
for (int j = 0; j < 8; ++j) a[j] = load_global(x + j);
for (int j = 0; j < 4; ++j) b[j] = load_global(x + 8 + j);
for (int j = 0; j < 4; ++j) c[j] = load_global(x + 12 + j);
multiply_accumulate(c, a, b);
for (int j = 0; j < 4; ++j) store_global(p.y + 4 * i + j, c[j]);
"""


def products(a: Array, b: Array, c: Array, **options: int) -> Array:
    """Return c + a b of one matrix a warp, by the emulated mma."""
    fragments = (a[:, A_ROWS, A_COLUMNS], b[:, B_ROWS, B_COLUMNS], c[:, C_ROWS, C_COLUMNS])
    x = np.concatenate(fragments, axis=-1).astype(np.float64).reshape(-1)
    y = np.full((len(a), 32, 4), np.nan)
    kernel = kernel_of(MULTIPLY, np.float64, primitives())
    launch(kernel, x, y, threads=32 * len(a), **options)
    d = np.empty_like(c, np.float64)
    d[:, C_ROWS, C_COLUMNS] = y
    return d


# Products.


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_small_integers_are_multiplied_exactly(schedule: int) -> None:
    rng = np.random.default_rng(schedule)
    a, b, c = (rng.integers(-9, 10, (3, *shape)) for shape in ((16, 16), (16, 8), (16, 8)))
    np.testing.assert_array_equal(products(a, b, c, schedule=schedule), a @ b + c)


def chained(c: float, row: Array, column: Array) -> float:
    """Return the sum that fused multiply-adds make in the order of the columns of a."""
    for x, y in zip(row.tolist(), column.tolist(), strict=True):
        c = float(Fraction(x) * Fraction(y) + Fraction(c))
    return c


def test_sums_are_chains_of_fused_multiply_adds_along_k() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((2, *shape)) for shape in ((16, 16), (16, 8), (16, 8)))
    a *= 2.0 ** rng.integers(-30, 30, a.shape)
    chains, backward = [
        [chained(c[w, m, n], a[w, m, ::step], b[w, ::step, n]) for w, m, n in np.ndindex(c.shape)]
        for step in (1, -1)
    ]
    got = products(a, b, c).reshape(-1)
    np.testing.assert_array_equal(got, chains)
    # Another order, or products that are rounded before they are added, would show.
    assert (got != backward).mean() > 0.3
    rounded = c.copy()
    for k in range(16):
        rounded += a[:, :, k, None] * b[:, None, k]
    assert (got != rounded.reshape(-1)).mean() > 0.3


def test_what_is_not_finite_reaches_its_row_and_column() -> None:
    a, b, c = (np.ones((1, *shape)) for shape in ((16, 16), (16, 8), (16, 8)))
    a[0, 11, 6], b[0, 13, 5], c[0, 2, 7] = np.nan, np.inf, -np.inf
    d = products(a, b, c)[0]
    want = np.full((16, 8), 17.0)
    want[:, 5], want[2, 7], want[11] = np.inf, -np.inf, np.nan
    np.testing.assert_array_equal(d, want)


DIVERGENT = {
    "two calls": (
        "if (i < 8) multiply_accumulate(c, a, b);\nelse multiply_accumulate(c, a, b);",
        r"lanes 0x000000ff wait at mma of float64 \(body\.cuh:2\), "
        r"lanes 0xffffff00 wait at mma of float64 \(body\.cuh:3\)",
    ),
    "some lanes": (
        "if (i < 8) multiply_accumulate(c, a, b);",
        r"lanes 0x000000ff wait at mma of float64 \(body\.cuh:2\), lanes 0xffffff00 exited",
    ),
}


@pytest.mark.parametrize("name", DIVERGENT)
def test_divergence_is_noticed(name: str) -> None:
    body, message = DIVERGENT[name]
    kernel = kernel_of(
        f"double a[8] = {{}}, b[4] = {{}}, c[4] = {{}};\n{body}", np.float64, primitives()
    )
    x = np.zeros(32)
    with pytest.raises(EmulationError, match=message):
        launch(kernel, x, x.copy())


# Copies of 8 bytes. x holds a number for each of a block's shared ones.

COPIES = """
const unsigned shared = shared_address(sm);
sm[i] = -1.0;
__syncthreads();
copy_async<8>(shared + 8 * ((i + 5) % 32), p.x + i, i % 3 > 0);
commit_async();
__syncthreads();
store_global(p.y + i, sm[i]);
__syncthreads();
wait_async<0>();
__syncthreads();
store_global(p.y + 32 + i, sm[i]);
"""


@every_landing
def test_copies_of_one_number_arrive_and_absent_ones_are_zero(landing: int) -> None:
    kernel = kernel_of(COPIES, np.float64, primitives())
    x = np.arange(1.0, 33.0)
    before, after = launch(kernel, x, np.zeros(64), smem=256, landing=landing).reshape(2, 32)
    want = np.roll(np.where(np.arange(32) % 3 > 0, x, 0), 5)
    np.testing.assert_array_equal(after, want)
    expected = want if landing == LANDINGS["early"] else np.full(32, np.nan)
    np.testing.assert_array_equal(before, expected)


# Destination and source in bytes, and whether it is present.
COPY = """
if (i == 3) {
  const char* source = reinterpret_cast<const char*>(p.y) + load_global(p.x + 1);
  copy_async<8>(load_global(p.x), source, load_global(p.x + 2) != 0);
  commit_async();
}
wait_async<0>();
"""
BAD_COPY = {
    "misaligned destination": (
        (4, 0, 1),
        r"cp\.async of 8 bytes at byte 4 of 64 bytes of shared memory: not aligned to its size",
    ),
    "misaligned destination of zeros": (
        (12, 0, 0),
        r"cp\.async of 8 bytes at byte 12 of 64 bytes of shared memory: not aligned to its size",
    ),
    "destination past the end": (
        (64, 0, 1),
        r"cp\.async of 8 bytes at byte 64 of 64 bytes of shared memory: outside",
    ),
    "misaligned source": (
        (0, 4, 1),
        r"cp\.async of 8 bytes at y\+4 \(0x[0-9a-f]+\) is not 8-byte aligned; y has 40 bytes",
    ),
    "source past the end": ((0, 40, 1), r"cp\.async of 8 bytes at y\+40 .* is outside every"),
}
GOOD_COPY = {
    "the last number": (56, 32, 1),
    "an odd number": (8, 8, 1),
    "nothing from beyond": (0, 4096, 0),
    "nothing from a misaligned address": (0, 4, 0),
}


def copy(arguments: tuple[int, int, int], landing: int) -> None:
    kernel = kernel_of(COPY, np.int32, primitives())
    x, y = np.array(arguments, np.int32), np.zeros(5)
    regions = [Region.of("y", y), Region("x", x.ctypes.data, x.nbytes, False)]
    launch(kernel, x, y, smem=64, regions=regions, landing=landing)


@every_landing
@pytest.mark.parametrize("name", BAD_COPY)
def test_bad_copy_is_noticed(name: str, landing: int) -> None:
    arguments, message = BAD_COPY[name]
    with pytest.raises(EmulationError, match=rf"block 0, thread 3: {message}"):
        copy(arguments, landing)


@every_landing
@pytest.mark.parametrize("name", GOOD_COPY)
def test_good_copy_is_not(name: str, landing: int) -> None:
    copy(GOOD_COPY[name], landing)
