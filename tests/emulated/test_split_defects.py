"""The tests of float32 by warpgroups notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cupy_flash.products import SIX_BFLOAT16, THREE_BFLOAT16
from emulated_attention import attention
from emulation import run_isolated
from probe_tools import assert_same_bits
from problems import Arrays, Case
from sampled_params import some
from split_mutants import SPLIT_MUTANTS
from test_planted_defects import CAUGHT
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# More than a tile of 128 x 64 on each side, and no multiple of anything.
PLAIN = Case((), None, None, 141, 151, 50, 60, ("float32",) * 3, seed=1)
CASES = {
    "plain": PLAIN,
    "wide": replace(PLAIN, m=70, d=100, p=120),
    "few keys": replace(PLAIN, m=70, n=19),
    "one key": replace(PLAIN, m=70, n=1),
    "two terms": replace(PLAIN, precision="tf32"),
    "mask": replace(PLAIN, m=70, mask="pairs"),
    # Of keys 0 to 9 nobody sees one.
    "NaN to the left": replace(PLAIN, window=(20, 20), offset=30, poison=True),
    "odd columns": replace(PLAIN, m=70, d=45, p=61, layouts=("pitch 8",) * 3),
    "odd pitch": replace(PLAIN, m=70, d=48, p=64, layouts=("odd pitch",) * 3),
    "odd address": replace(PLAIN, m=70, d=48, p=64, layouts=("odd address",) * 3),
    "sliced": replace(PLAIN, m=70, d=48, p=64, layouts=("sliced",) * 3),
    "hidden NaN": replace(PLAIN, m=70, mask="keys", poison=True),
    "largest": replace(PLAIN, m=70, values="large"),
    # With a scale that is a power of two q is multiplied by it.
    "a large row": replace(PLAIN, scale=1.0),
    "one block": replace(PLAIN, m=300, n=70),
}
LARGE_ROW = 77
# In order and the two greedy ones.
SCHEDULES = (0, 3, 4)


def build(name: str) -> Arrays:
    arrays = CASES[name].build()
    if name == "a large row":
        # Beyond what bfloat16 rounds to its largest number; the scores stay as they are.
        arrays.q.numpy()[LARGE_ROW, 0] = np.finfo(np.float32).max
        arrays.k.numpy()[:, 0] = 0
    return arrays


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        arrays = build(name)
        grid = 1 if name == "one block" else None
        clean = attention(arrays, kernel, grid=grid)
        want = THREE_BFLOAT16 if name == "two terms" else SIX_BFLOAT16
        assert clean.variant.products == want
        for schedule in SCHEDULES:
            result = attention(
                arrays, kernel, schedule=schedule, folder=folder, strict=False, grid=grid
            )
            check(arrays, result.out, result.lse, kernel, want)
            # A row that isn't finite is computed again, which mends what makes it so.
            assert_same_bits((result.out, result.lse), (clean.out, clean.lse), name)


@pytest.mark.parametrize("name", CASES)
def test_kernels_without_a_defect_pass(name: str) -> None:
    assert run_isolated(battery, "simt", [name], None) == "passed"


@pytest.mark.parametrize("name", some(SPLIT_MUTANTS, 2))
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = SPLIT_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict


# Those that no comparison of bits, but the bounds must catch.
INACCURATE = (
    "the largest of K times the smallest of Q is lost",
    "the smallest of V times the largest of P is lost",
    "two terms are all",
)


def bounds_alone(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        arrays = build(name)
        result = attention(arrays, kernel, folder=folder, strict=False)
        check(arrays, result.out, result.lse, kernel, SIX_BFLOAT16)


@pytest.mark.parametrize("name", INACCURATE)
def test_lost_terms_are_beyond_the_bounds(name: str, tmp_path: Path) -> None:
    verdict = SPLIT_MUTANTS[name].verdict(bounds_alone, tmp_path / "kernels_cu")
    assert verdict.startswith("AssertionError: "), verdict
