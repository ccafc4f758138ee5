"""The tests of float64 on the tensor cores notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backward_problems import Backward
from emulated_attention import attention
from emulated_backward import attention_backward
from emulation import run_isolated
from matrix_mutants import BACKWARD_MATRIX_MUTANTS, MATRIX_MUTANTS
from problems import Case
from test_planted_defects import CAUGHT
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# More than a tile on each side, and no multiple of anything.
PLAIN = Case((), None, None, 70, 75, 20, 24, ("float64",) * 3, seed=1)
CASES = {
    "plain": PLAIN,
    "few keys": replace(PLAIN, n=19),
    "mask": replace(PLAIN, mask="pairs"),
    "softcap": replace(PLAIN, softcap=1.5),
    # Of keys 0 to 9 nobody sees one.
    "NaN to the left": replace(PLAIN, window=(20, 20), offset=30, poison=True),
    "odd columns": replace(PLAIN, d=21, p=23, layouts=("pitch 8",) * 3),
    "odd pitch": replace(PLAIN, layouts=("odd pitch",) * 3),
    "odd address": replace(PLAIN, layouts=("odd address",) * 3),
    "transposed": replace(PLAIN, layouts=("transposed",) * 3),
    "sliced": replace(PLAIN, layouts=("sliced",) * 3),
    "hidden NaN": replace(PLAIN, mask="keys", poison=True),
    # More rows than one block's tile has.
    "one block": replace(PLAIN, m=150),
}
QKV = ("q", "k", "v")
BACKWARD_CASES = {
    "plain": (replace(PLAIN, m=140, scale=0.3), QKV),
    "wide": (replace(PLAIN, d=50, p=64), QKV),
    "wider": (replace(PLAIN, m=70, d=100, p=120), QKV),
    "sums": (replace(PLAIN, bias="keys", softcap=1.5), ("bias", "scale")),
}
# In order and copies late, the two greedy ones with copies early and late.
SCHEDULES = (0, 3, 4)


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        arrays = CASES[name].build()
        for schedule in SCHEDULES:
            grid = 1 if name == "one block" else None
            result = attention(
                arrays, kernel, schedule=schedule, folder=folder, strict=False, grid=grid
            )
            assert result.variant.tile.matrix
            check(arrays, result.out, result.lse, kernel)


def backward_battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        call = Backward.of(*BACKWARD_CASES[name])
        for schedule in SCHEDULES:
            result = attention_backward(
                call, kernel, schedule=schedule, folder=folder, strict=False
            )
            call.check(result.found)


@pytest.mark.parametrize("name", CASES)
def test_kernels_without_a_defect_pass(name: str) -> None:
    assert run_isolated(battery, "simt", [name], None) == "passed"


@pytest.mark.parametrize("name", BACKWARD_CASES)
def test_backward_kernels_without_a_defect_pass(name: str) -> None:
    assert run_isolated(backward_battery, "simt", [name], None) == "passed"


@pytest.mark.parametrize("name", MATRIX_MUTANTS)
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = MATRIX_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict


@pytest.mark.parametrize("name", BACKWARD_MATRIX_MUTANTS)
def test_backward_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = BACKWARD_MATRIX_MUTANTS[name].verdict(backward_battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
