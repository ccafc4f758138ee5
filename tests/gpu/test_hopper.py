"""The sm90 kernel on a GPU: bounds, edges, tiles in rounds, invariance, the same bits always."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash.device import actual
from gpu_attention import attention, options_on_gpu
from probe_tools import assert_same_bits
from problems import Case
from test_sm90 import CAUSAL, OPTIONS, PLAIN
from tolerance import check

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

SM90 = "sm90"
DTYPES = ("float16", "bfloat16")
RUNS = 1000


@pytest.fixture(autouse=True)
def hopper() -> None:
    if not actual(0).warpgroups:
        pytest.skip("needs compute capability 9.0, and a CuPy that compiles for sm_90a")


def right(case: Case) -> tuple[Any, Any]:
    """Compute a problem and hold it to its bounds."""
    arrays = case.build()
    found = attention(arrays, SM90)
    check(arrays, *found, SM90)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("d", "p"), [(64, 64), (128, 128), (100, 37)])
def test_options(d: int, p: int, option: str, dtype: str) -> None:
    right(replace(PLAIN, d=d, p=p, dtypes=(dtype,) * 3, **OPTIONS[option]))


@pytest.mark.parametrize("d", [64, 128])
def test_rows_and_keys_around_the_edges_of_tiles(d: int) -> None:
    for m, n in itertools.product((1, 63, 64, 65, 191, 193, 385), (0, 1, 127, 128, 129, 600)):
        right(replace(PLAIN, m=m, n=n, d=d, p=d, causal=n % 2 == 1))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_no_one_and_many_keys_in_rounds(causal: bool, d: int) -> None:
    """More tiles than blocks, some of them without keys."""
    case = replace(PLAIN, batch=(150,), heads=2, kv_heads=1, m=300, n=400, d=d, p=d, causal=causal)
    arrays = replace(case, lengths="k").build()
    lengths = np.random.default_rng(1).choice([0, 0, 1, 128, 129, 256, 400], 150)
    arrays.k_lengths = lengths.astype(np.int32)
    found = attention(arrays, SM90)
    check(arrays, *found, SM90)


@pytest.mark.parametrize("causal", [False, True])
def test_many_rows(causal: bool) -> None:
    """A block each where tiles differ, and rounds where they don't."""
    shape = (1, 5, 5000, 128)
    rng = np.random.default_rng(2)
    q, k, v = (cupy.asarray(rng.standard_normal(shape).astype(np.float16)) for _ in range(3))
    ours, lse = cupy_flash.attention(q, k, v, causal=causal, kernel=SM90, return_lse=True)
    want, want_lse = cupy_flash.attention(q, k, v, causal=causal, kernel="naive", return_lse=True)
    np.testing.assert_allclose(ours.get(), want.get(), rtol=2e-2, atol=4e-3)
    np.testing.assert_allclose(lse.get(), want_lse.get(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_company(dtype: str) -> None:
    arrays = replace(CAUSAL, batch=(40,), heads=6, kv_heads=2, dtypes=(dtype,) * 3).build()
    q, k, v = (x.cupy() for x in arrays.inputs().values())
    lengths = {name: options_on_gpu(arrays)[name] for name in ("q_lengths", "k_lengths")}
    whole = cupy_flash.attention(q, k, v, causal=True, kernel=SM90, return_lse=True, **lengths)
    for entry in (0, 17, 39):
        one = slice(entry, entry + 1)
        alone = cupy_flash.attention(
            *(x[one] for x in (q, k, v)),
            causal=True,
            kernel=SM90,
            return_lse=True,
            **{name: x[one] for name, x in lengths.items()},
        )
        got, want = ([x.get() for x in pair] for pair in (alone, [x[one] for x in whole]))
        assert_same_bits(tuple(got), tuple(want), f"entry {entry}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("option", [None, *OPTIONS])
def test_a_thousand_runs_give_the_same_bits(option: str | None, dtype: str) -> None:
    case = replace(PLAIN, batch=(30,), m=300, dtypes=(dtype,) * 3, **OPTIONS.get(option or "", {}))
    arrays = case.build()
    inputs = [x.cupy() for x in arrays.inputs().values()]
    options = options_on_gpu(arrays) | {"return_lse": True, "kernel": SM90}
    first = cupy_flash.attention(*inputs, **options)
    results = tuple(cupy.empty_like(x) for x in first)
    want, got = ([x.view(f"u{x.itemsize}") for x in pair] for pair in (first, results))
    differ = [cupy.zeros_like(x) for x in want]
    for _ in range(RUNS):
        for x in results:
            x.fill(np.nan)
        cupy_flash.attention(*inputs, **options, out=results)
        # On the device, so that nothing waits for a run.
        for bits, ours, theirs in zip(differ, got, want, strict=True):
            bits |= ours ^ theirs
    assert not any(int(cupy.count_nonzero(x)) for x in differ)
