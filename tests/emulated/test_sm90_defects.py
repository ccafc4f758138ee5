"""The tests of the sm90 kernel notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulated_attention import attention
from emulation import run_isolated
from probe_tools import assert_same_bits
from problems import Arrays, Case
from sm90_mutants import SM90_MUTANTS
from test_planted_defects import CAUGHT
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Two tiles of rows, the second one not full, and three of keys.
PLAIN = Case((), None, None, 200, 300, 64, 56, ("float16",) * 3, seed=1)
CASES = {
    "plain": PLAIN,
    "causal": replace(PLAIN, causal=True),
    "wide": replace(PLAIN, m=70, d=128, p=104, dtypes=("bfloat16",) * 3),
    "scale": replace(PLAIN, m=70, scale=-0.3, dtypes=("bfloat16",) * 3),
    "large": replace(PLAIN, m=70, values="x30"),
    "rising": replace(PLAIN, m=70, n=500),
    "one block": replace(PLAIN, batch=(3,), m=300),
    "two blocks": replace(PLAIN, batch=(3,), m=300, n=70),
    "no keys": replace(PLAIN, batch=(12,), m=70, n=140, lengths="k"),
}
GRIDS = {"one block": 1, "two blocks": 2, "no keys": 1}
# In order, the two greedy ones, and those who wait or who are waited for first.
SCHEDULES = (0, 3, 4, 6, 7)


def build(name: str) -> Arrays:
    arrays = CASES[name].build()
    if name == "rising":
        arrays.k.numpy()[...] *= np.linspace(0.1, 3, PLAIN.n + 200)[:, None].astype(np.float16)
    elif name == "no keys":
        arrays.k_lengths = np.array([0, 140, 128, 0, 0, 1, 140, 0, 129, 5, 128, 0], np.int32)
    return arrays


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        arrays = build(name)
        clean = attention(arrays, kernel)
        for schedule in SCHEDULES:
            result = attention(
                arrays,
                kernel,
                schedule=schedule,
                folder=folder,
                strict=False,
                grid=GRIDS.get(name),
            )
            check(arrays, result.out, result.lse, kernel)
            assert_same_bits((result.out, result.lse), (clean.out, clean.lse), name)


@pytest.mark.parametrize("name", CASES)
def test_kernels_without_a_defect_pass(name: str) -> None:
    assert run_isolated(battery, "sm90", [name], None) == "passed"


@pytest.mark.parametrize("name", SM90_MUTANTS)
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = SM90_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
