"""ldmatrix and mma in the emulator: layouts, rounding, divergence, bad addresses."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from emulation import SCHEDULES, EmulationError
from primitives import emulated_products
from record_primitives import (
    C_COLUMNS,
    C_ROWS,
    DTYPES,
    KINDS,
    LEFT,
    RIGHT,
    K,
    cases,
    registers,
)
from tiny_kernels import kernel_of, launch, primitives

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


# Layout.


@every_dtype
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
def test_small_integers_are_multiplied_exactly(dtype: str, schedule: int) -> None:
    rng = np.random.default_rng(schedule)
    depth = K[dtype]
    a, b, c = (rng.integers(-9, 10, (5, *shape)) for shape in ((16, depth), (depth, 8), (16, 8)))
    fragments = {
        "a": registers(a.astype(DTYPES[dtype]), LEFT[dtype]),
        "b": registers(b.astype(DTYPES[dtype]), RIGHT[dtype]),
        "c": c[:, C_ROWS, C_COLUMNS].astype(np.float32),
    }
    d = emulated_products(dtype, fragments, schedule=schedule)
    np.testing.assert_array_equal(d, (a @ b + c)[:, C_ROWS, C_COLUMNS])


# Rounding: accumulate() of tensor_core.hpp against the same rule in rational numbers.


def exact(bits: int, exponent_bits: int, fraction_bits: int) -> tuple[Fraction, int]:
    """Return a finite number and the exponent that its format gives it."""
    field = bits >> fraction_bits & (1 << exponent_bits) - 1
    exponent = max(field, 1) - (1 << exponent_bits - 1) + 1
    fraction = Fraction(bits & (1 << fraction_bits) - 1, 1 << fraction_bits)
    value = (fraction + (field > 0)) * Fraction(2) ** exponent
    return (-value if bits >> exponent_bits + fraction_bits else value), exponent


def float32_toward_zero(value: Fraction) -> float:
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    if exponent > 127:
        return float("inf") if value > 0 else float("-inf")
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    truncated = float(size // unit * unit)
    return truncated if value > 0 else -truncated


# Bits of the exponent and of the fraction.
WIDTHS = {"float16": (5, 10), "bfloat16": (8, 7), "tf32": (8, 10)}
# Bits at the end of an element that mma doesn't look at.
UNREAD = {"float16": 0, "bfloat16": 0, "tf32": 13}


def accumulated(
    c: np.float32, a: list[int], b: list[int], dtype: str, steps: int = 1, extra_bits: int = 2
) -> float:
    """Return c + a . b as the tensor cores sum it, of bit patterns a and b."""
    widths, unsigned = WIDTHS[dtype], f"u{DTYPES[dtype].itemsize}"
    a, b = ([x >> UNREAD[dtype] for x in bits] for bits in (a, b))
    x, y = (
        (np.array(bits, unsigned) << np.array(UNREAD[dtype], unsigned))
        .view(DTYPES[dtype])
        .astype(float)
        for bits in (a, b)
    )
    block = len(a) // steps
    with np.errstate(invalid="ignore"):
        terms = [float(c), *(x * y)]
        if not np.isfinite(terms).all():
            return float(np.sum(terms))
    total = c
    for start in range(0, len(a), block):
        value, exponent = exact(int(total.view(np.uint32)), 8, 23)
        aligned = [(value, exponent)] * (value != 0)
        for i in range(start, start + block):
            (p, ep), (q, eq) = exact(a[i], *widths), exact(b[i], *widths)
            aligned += [(p * q, ep + eq)] * (p * q != 0)
        grid = Fraction(2) ** (max((e for _, e in aligned), default=0) - 23 - extra_bits)
        total = np.float32(float32_toward_zero(sum(int(v / grid) for v, _ in aligned) * grid))
        if np.isinf(total):
            break
    return float(total)


@functools.cache
def dot_products(dtype: str) -> list[tuple[np.float32, list[int], list[int], np.float32]]:
    """Return c, a row, a column and the emulator's d, from each of the recorded cases' kinds."""
    fragments = cases(dtype, 10 * len(KINDS))
    c, d = fragments["c"], emulated_products(dtype, fragments)
    unsigned = f"u{DTYPES[dtype].itemsize}"
    a = np.empty((len(c), 16, K[dtype]), unsigned)
    b = np.empty((len(c), K[dtype], 8), unsigned)
    for matrix, name, (rows, columns) in ((a, "a", LEFT[dtype]), (b, "b", RIGHT[dtype])):
        matrix[:, rows, columns] = fragments[name].view(unsigned).reshape(-1, *rows.shape)
    chosen = np.random.default_rng(1).integers(0, (32, 4), (len(c), 16, 2))
    return [
        (
            c[case, lane, i],
            a[case, C_ROWS[lane, i]].tolist(),
            b[case, :, C_COLUMNS[lane, i]].tolist(),
            d[case, lane, i],
        )
        for case in range(len(c))
        for lane, i in chosen[case]
    ]


def bits_of(x: Any) -> int:
    bits = int(np.float32(x).view(np.uint32))
    return 0x7FFFFFFF if np.isnan(x) else bits


@every_dtype
def test_sums_are_cut_like_rational_numbers(dtype: str) -> None:
    for c, a, b, d in dot_products(dtype):
        expected = accumulated(c, a, b, dtype)
        assert int(d.view(np.uint32)) == bits_of(expected), (c, a, b, d, expected)


@every_dtype
@pytest.mark.parametrize("rule", [{"steps": 2}, {"extra_bits": 1}, {"extra_bits": 3}], ids=str)
def test_the_cases_tell_rules_apart(dtype: str, rule: dict[str, int]) -> None:
    some = dot_products(dtype)[::5]
    others = sum(d != accumulated(c, a, b, dtype, **rule) for c, a, b, d in some)
    assert others > len(some) / 20


def test_of_a_float32_tf32_takes_the_first_19_bits() -> None:
    fragments = cases("tf32", 5 * len(KINDS))
    cut = {name: fragments[name] & np.uint32(0xFFFFE000) for name in "ab"}
    assert (cut["a"] != fragments["a"]).any()
    assert (cut["b"] != fragments["b"]).any()
    d, of_cut = (emulated_products("tf32", fragments | x) for x in ({}, cut))
    np.testing.assert_array_equal(d.view(np.uint32), of_cut.view(np.uint32))
    seen = {name: cut[name] ^ np.uint32(0x2000) for name in "ab"}
    assert (d != emulated_products("tf32", fragments | seen)).mean() > 0.5


@pytest.mark.parametrize("size", [2.0**-127, 2.0**-136])
def test_subnormal_numbers_of_tf32_count(size: float) -> None:
    a, b = np.zeros((1, 16, 8), np.float32), np.ones((1, 8, 8), np.float32)
    a[0, :, 3], b[0, 3] = size, 2.0**40
    fragments = {
        "a": registers(a, LEFT["tf32"]),
        "b": registers(b, RIGHT["tf32"]),
        "c": np.zeros((1, 32, 4), np.float32),
    }
    assert (emulated_products("tf32", fragments) == np.float32(size * 2.0**40)).all()


# Addresses of rows.

LOAD = """
unsigned word[4];
load_matrix(shared_address(sm) + load_global(p.x + i), word);
for (int j = 0; j < 4; ++j) store_global(p.y + 4 * i + j, word[j]);
"""


def load(rows: np.ndarray[Any, Any], threads: int = 32) -> np.ndarray[Any, Any]:
    kernel = kernel_of(LOAD, np.uint32, primitives())
    x = rows.astype(np.uint32)
    return launch(kernel, x, np.zeros(4 * threads, np.uint32), threads=threads, smem=512)


def test_rows_that_nobody_wrote_are_nan() -> None:
    y = load(np.arange(32) * 16)
    assert np.isnan(y.view(np.float16)).all()
    assert np.isnan(y.view(DTYPES["bfloat16"])).all()


@pytest.mark.parametrize(
    ("lane", "offset", "problem"),
    [(5, 24, "not 16-byte aligned"), (31, 512, "outside"), (0, 2**32 - 16, "outside")],
)
def test_bad_row_is_noticed(lane: int, offset: int, problem: str) -> None:
    rows = np.arange(64) % 32 * 16
    rows[32 + lane] = offset
    with pytest.raises(
        EmulationError,
        match=rf"block 0: ldmatrix \(body\.cuh:2\): row of lane {lane} of warp 1 at byte {offset} "
        rf"of 512 bytes of shared memory: {problem}$",
    ):
        load(rows, 64)


# Divergence.

SETUP = "unsigned a[4] = {};\nfloat c[4] = {}; (void)c;\n"
DIVERGENT = {
    "two calls": (
        "if (i < 8) load_matrix(0, a);\nelse load_matrix(0, a);",
        r"lanes 0x000000ff wait at ldmatrix \(body\.cuh:3\), "
        r"lanes 0xffffff00 wait at ldmatrix \(body\.cuh:4\)",
    ),
    "two forms on one line": (
        "if (i < 8) load_matrix(0, a); else load_matrix_transposed(0, a);",
        r"lanes 0x000000ff wait at ldmatrix \(body\.cuh:3\), "
        r"lanes 0xffffff00 wait at ldmatrix\.trans \(body\.cuh:3\)",
    ),
    "two types on one line": (
        "if (i < 8) multiply_accumulate<Float16>(c, a, 0, 0); "
        "else multiply_accumulate<BFloat16>(c, a, 0, 0);",
        r"lanes 0x000000ff wait at mma of float16 .*, lanes 0xffffff00 wait at mma of bfloat16",
    ),
    "TF32 and bfloat16": (
        "if (i < 8) multiply_accumulate(c, 0u, 0u, 0u, 0u, 0u, 0u); "
        "else multiply_accumulate<BFloat16>(c, a, 0, 0);",
        r"lanes 0x000000ff wait at mma of TF32 .*, lanes 0xffffff00 wait at mma of bfloat16",
    ),
    "some lanes": (
        "if (i < 8) multiply_accumulate<Float16>(c, a, 0, 0);",
        r"lanes 0x000000ff wait at mma of float16 \(body\.cuh:3\), lanes 0xffffff00 exited",
    ),
}


@pytest.mark.parametrize("name", DIVERGENT)
def test_divergence_is_noticed(name: str) -> None:
    body, message = DIVERGENT[name]
    x = np.zeros(32, np.uint32)
    kernel = kernel_of(SETUP + body, np.uint32, primitives())
    with pytest.raises(EmulationError, match=message):
        launch(kernel, x, x.copy(), smem=512)
