"""float32 in parts on the emulated tensor cores: special rows, layouts, edges, blocks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cupy_flash.products import SIX_BFLOAT16, THREE_BFLOAT16, Products
from emulated_attention import Result, attention
from layouts import strided
from probe_tools import assert_same_bits
from problems import Arrays, Case
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

PLAIN = Case((), None, None, 141, 151, 50, 60, ("float32",) * 3, seed=1)
LARGEST = float(np.finfo(np.float32).max)
FMA_ARCH = 86
# Each way, and the GPU that has it for these head dims.
WAYS: dict[str, tuple[int, str | None, Products]] = {
    "six bfloat16": (90, None, SIX_BFLOAT16),
    "three bfloat16": (90, "tf32", THREE_BFLOAT16),
}
HIGHEST = ("six bfloat16",)
each_way = pytest.mark.parametrize("way", WAYS)
each_highest = pytest.mark.parametrize("way", HIGHEST)


def run(arrays: Arrays, way: str, **how: Any) -> Result:
    arch, precision, products = WAYS[way]
    arrays = replace(arrays, case=replace(arrays.case, precision=precision))
    result = attention(arrays, "simt", arch=arch, **how)
    assert result.variant.products == products
    return result


def bits(result: Result, rows: Any = slice(None)) -> tuple[Any, Any]:
    return result.out[..., rows, :], result.lse[..., rows]


def right(arrays: Arrays, result: Result) -> None:
    case = replace(arrays.case, precision="tf32" if result.variant.tf32 else None)
    check(replace(arrays, case=case), result.out, result.lse, "simt", result.variant.products)


@each_way
@pytest.mark.parametrize(("d", "p"), [(33, 128), (128, 33), (64, 65), (65, 64), (1, 64), (40, 0)])
def test_mixtures_of_head_dims(way: str, d: int, p: int) -> None:
    arrays = replace(PLAIN, m=70, n=75, d=d, p=p).build()
    right(arrays, run(arrays, way, schedule=3))


@each_way
@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129])
def test_keys_around_the_edges_of_steps_and_tiles(way: str, n: int) -> None:
    arrays = replace(PLAIN, m=20, n=n).build()
    right(arrays, run(arrays, way, schedule=4))


@each_way
def test_blocks_and_schedules_give_the_same_bits(way: str) -> None:
    arrays = replace(PLAIN, m=300, causal=True).build()
    want = run(arrays, way)
    right(arrays, want)
    for grid, schedule in itertools.product((1, 2, None), (0, 1, 2, 3, 4)):
        got = run(arrays, way, grid=grid, schedule=schedule)
        assert_same_bits(bits(got), bits(want), f"{grid} blocks, schedule {schedule}")


LAYOUTS = ("odd pitch", "odd address", "sliced", "transposed", "negative", "unaligned")


@each_way
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_of_units_and_of_elements_give_the_same_bits(way: str, layout: str) -> None:
    arrays = replace(PLAIN, d=48, p=64).build()
    want = run(arrays, way)
    moved = {}
    for name, x in arrays.inputs().items():
        moved[name] = strided(x.shape, x.buffer.dtype, layout, np.nan)
        moved[name].numpy()[...] = x.numpy()
    got = run(replace(arrays, **moved), way, schedule=3)
    assert_same_bits(bits(got), bits(want), layout)


@each_highest
@pytest.mark.parametrize("number", [LARGEST, -LARGEST, np.inf, -np.inf, np.nan])
def test_a_row_of_q_changes_no_bit_of_others(way: str, number: float) -> None:
    arrays = replace(PLAIN, scale=1.0).build()
    arrays.k.numpy()[:, 0] = 0
    want = run(arrays, way)
    arrays.q.numpy()[77, 0] = number
    got = run(arrays, way, schedule=3)
    others = np.arange(PLAIN.m) != 77
    assert_same_bits(bits(got, others), bits(want, others), "another row")
    if np.isfinite(number):
        right(arrays, got)
    else:
        assert np.isnan(got.out[77]).all()
        assert np.isnan(got.lse[77])


# Keys that rows from 60 on see, and where in K or V what lies.
FROM_ROW, KEYS = 60, [3, 70]


def some_see(**options: Any) -> Arrays:
    arrays = replace(PLAIN, mask="pairs", **options).build()
    mask = arrays.mask.numpy()
    mask[...] = True
    mask[:FROM_ROW, KEYS] = False
    return arrays


@each_highest
@pytest.mark.parametrize("number", [LARGEST, -LARGEST])
def test_largest_numbers_of_k_are_those_of_fma(way: str, number: float) -> None:
    """They leave scores that are far above or below all others, or nearly so."""
    arrays = some_see()
    q, k = arrays.q.numpy(), arrays.k.numpy()
    q[:, 0] = np.linspace(2e-37, 4e-37, PLAIN.m)
    k[KEYS, 0] = number
    want = run(some_see(), way)
    got = run(arrays, way, schedule=3)
    right(arrays, got)
    assert np.isfinite(want.out).all()


@each_highest
def test_minus_infinity_in_k_hides_a_key(way: str) -> None:
    arrays = some_see()
    arrays.q.numpy()[:, 0] = 1
    hidden = some_see()
    hidden.q.numpy()[:, 0] = 1
    hidden.mask.numpy()[:, KEYS] = False
    arrays.k.numpy()[KEYS, 0] = -np.inf
    got = run(arrays, way, schedule=3)
    right(hidden, got)
    unseen = np.arange(PLAIN.m) < FROM_ROW
    assert_same_bits(bits(got, unseen), bits(run(hidden, way), unseen), "rows that don't see it")


@each_highest
@pytest.mark.parametrize("number", [np.inf, np.nan])
@pytest.mark.parametrize("name", ["k", "v"])
def test_what_is_not_finite_reaches_the_rows_that_fma_s_reaches(
    way: str, name: str, number: float
) -> None:
    arrays = some_see()
    getattr(arrays, name).numpy()[KEYS, 0] = number
    got = run(arrays, way, schedule=4)
    fma = attention(arrays, "simt", arch=FMA_ARCH)
    seeing = np.arange(PLAIN.m) >= FROM_ROW
    for one, other in zip(bits(got, seeing), bits(fma, seeing), strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    # Computed again by itself, a row has only the keys that it sees; FMA's rows share tiles.
    clean = some_see()
    clean.k.numpy()[...], clean.v.numpy()[...] = arrays.k.numpy(), arrays.v.numpy()
    getattr(clean, name).numpy()[KEYS, 0] = 0
    want = run(clean, way)
    np.testing.assert_allclose(got.lse[~seeing], want.lse[~seeing], rtol=0, atol=1e-5)
    np.testing.assert_allclose(got.out[~seeing], want.out[~seeing], rtol=0, atol=1e-5)


@each_way
def test_largest_numbers_of_v_are_averaged(way: str) -> None:
    arrays = some_see()
    arrays.v.numpy()[KEYS] = LARGEST
    right(arrays, run(arrays, way, schedule=3))
    arrays.v.numpy()[...] = LARGEST
    result = run(arrays, way)
    right(arrays, result)
    assert np.isfinite(result.out).all()


@each_way
def test_hidden_keys_may_hold_anything(way: str) -> None:
    arrays = replace(PLAIN, mask="keys").build()
    arrays.mask.numpy()[...] = np.arange(PLAIN.n) % 7 > 0
    want = run(arrays, way)
    for number in (np.nan, np.inf, LARGEST):
        for x in (arrays.k, arrays.v):
            x.numpy()[~arrays.mask.numpy().reshape(-1)] = number
        got = run(arrays, way, schedule=3)
        assert_same_bits(bits(got), bits(want), str(number))


@each_way
@pytest.mark.parametrize("offset", [-100, -1, 0, 7, 60, 149])
def test_offsets_of_rows(way: str, offset: int) -> None:
    arrays = replace(PLAIN, window=(40, 9), offset=offset, poison=True).build()
    right(arrays, run(arrays, way, schedule=4))
