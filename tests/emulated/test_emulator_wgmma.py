"""wgmma in the emulator: layouts of its operands, what it computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from emulation import LANDINGS, SCHEDULES
from record_primitives import A_COLUMNS, A_ROWS, C_COLUMNS, C_ROWS, DTYPES, pairs
from tiny_kernels import kernel_of, launch, primitives

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]

GROUP = 128
LATE, EARLY = LANDINGS["late"], LANDINGS["early"]
TYPES = {"float16": "Float16", "bfloat16": "BFloat16"}
# A's rows, and what is summed over: two panels of columns.
M, K = 64, 128
# The fragments of A and of D of the four warps, 16 rows below each other.
WARP_ROWS = np.arange(4)[:, None, None] * 16


def panels(matrix: Array) -> Array:
    """Return the words of a matrix as wgmma's descriptors take them.

    Panels of 64 columns one after the other, rows of 128 bytes whose pieces of 16 lie at their
    number xor the low three bits of the row.
    """
    rows, columns = matrix.shape
    pieces = matrix.reshape(rows, columns // 64, 8, 8).swapaxes(0, 1)
    turned = np.empty_like(pieces)
    places = np.arange(8) ^ np.arange(rows)[:, None] % 8
    turned[:, np.arange(rows)[:, None], places] = pieces
    return turned.reshape(-1).view(np.uint32)


# x has the words of shared memory, then those of A's fragments: step, thread, register.
MULTIPLY = """
const unsigned shared = shared_address(sm);
for (int word = 4 * i; word < WORDS; word += 512) {
  Words4 words;
  for (int e = 0; e < 4; ++e) words.word[e] = load_global(p.x + word + e);
  store_shared(shared + 4 * word, words);
}
show_products();
__syncthreads();
float d[N / 8][4];
for (int j = 0; j < N / 8; ++j) {
  for (int c = 0; c < 4; ++c) d[j][c] = 100.f * (j % 4) + 10.f * c + i;
}
const MatrixDescriptor a = MatrixDescriptor::of(shared, 16); (void)a;
const MatrixDescriptor b = MatrixDescriptor::of(shared + B_FROM, LEADING);
begin_products();
for (int step = 0; step < STEPS; ++step) {
  PRODUCT
}
commit_products();
wait_products<0>();
settle(d);
for (int j = 0; j < N / 8; ++j) {
  for (int c = 0; c < 4; ++c) store_global(p.y + 4 * (128 * j + i) + c, __float_as_uint(d[j][c]));
}
"""
# Along columns a step is 32 bytes of the same panel, and every fourth one the next panel.
ALONG = "further(step / 4 * {panel} + step % 4 * 32)"
FRAGMENT = """
unsigned fragment[4];
for (int r = 0; r < 4; ++r) fragment[r] = load_global(p.x + WORDS + 4 * (128 * step + i) + r);
"""
# How A and B are given: A in shared memory or registers, B as its transpose or as it is.
FORMS = {
    "A in shared memory": (
        f"multiply_group<TYPE>(d, a.{ALONG.format(panel=M * 128)}, "
        f"b.{ALONG.format(panel='N * 128')}, step > 0 || p.n > 0);"
    ),
    "A in registers": (
        f"{FRAGMENT}multiply_group<TYPE, false>(d, fragment, b.{ALONG.format(panel='N * 128')}, "
        "step > 0 || p.n > 0);"
    ),
    "A in registers, B as it is": (
        f"{FRAGMENT}multiply_group<TYPE, true>(d, fragment, b.further(step * 16 * 128), "
        "step > 0 || p.n > 0);"
    ),
}


def multiply(form: str, a: Array, b: Array, **options: int) -> Array:
    """Return D of A, M x K, and B, K x N, by the emulated wgmma."""
    n = b.shape[1]
    dtype = "float16" if a.dtype == np.float16 else "bfloat16"
    in_shared, transposed = form == "A in shared memory", form.endswith("as it is")
    images = [panels(a)] * in_shared + [panels(b if transposed else np.ascontiguousarray(b.T))]
    fragments = [
        pairs(a[None, :, 16 * step : 16 * step + 16], WARP_ROWS[..., None] + A_ROWS, A_COLUMNS)
        for step in range(K // 16)
    ]
    words = sum(x.size for x in images)
    x = np.concatenate([*images, *(fragment.reshape(-1) for fragment in fragments)])
    body = MULTIPLY.replace("PRODUCT", FORMS[form])
    for name, value in {
        "WORDS": words,
        "B_FROM": M * K * 2 if in_shared else 0,
        # Between panels, of columns of B that are not summed over.
        "LEADING": K * 128 if transposed else 16,
        "STEPS": K // 16,
        "TYPE": TYPES[dtype],
        "N ": f"{n} ",
    }.items():
        body = body.replace(name, str(value))
    kernel = kernel_of(body, np.uint32, primitives())
    y = np.zeros(4 * GROUP * n // 8, np.uint32)
    launch(kernel, x, y, threads=GROUP, smem=4 * words, **options)
    d = np.empty((M, n), np.float32)
    of_lane = y.view(np.float32).reshape(n // 8, 4, 32, 4)
    for j, tile in enumerate(of_lane):
        d[WARP_ROWS + C_ROWS, 8 * j + C_COLUMNS] = tile
    return d


def integers(dtype: str, n: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(n)
    return tuple(rng.integers(-9, 10, shape).astype(DTYPES[dtype]) for shape in ((M, K), (K, n)))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_small_integers_are_multiplied_exactly(form: str, n: int, dtype: str) -> None:
    a, b = integers(dtype, n)
    want = a.astype(float) @ b.astype(float)
    for landing, schedule in ((LATE, 0), (EARLY, 4)):
        got = multiply(form, a, b, landing=landing, schedule=schedule)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("landing", LANDINGS.values(), ids=LANDINGS.keys())
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_sums_add_to_what_was_there_in_every_order(schedule: int, landing: int) -> None:
    a, b = integers("float16", 64)
    got = multiply("A in shared memory", a, b, n=1, schedule=schedule, landing=landing)
    added = np.empty((M, 64))
    thread = np.arange(4)[:, None, None] * 32 + np.arange(32)[:, None]
    for j in range(8):
        added[WARP_ROWS + C_ROWS, 8 * j + C_COLUMNS] = 100 * (j % 4) + 10 * np.arange(4) + thread
    np.testing.assert_array_equal(got, a.astype(float) @ b.astype(float) + added)


def test_sums_are_rounded_as_those_of_mma() -> None:
    """Cut off toward zero, unlike float32's own sums."""
    a, b = np.zeros((M, K), np.float16), np.zeros((K, 64), np.float16)
    a[:, :3], b[0], b[1], b[2] = 1, 2048, 2.0**-14, 2.0**-14
    a[0, 0] = 2048
    got = multiply("A in shared memory", a, b)
    assert (got[0] == 2048 * 2048).all()
    assert (got[1:] == np.float32(2048 + 2.0**-13)).all()
