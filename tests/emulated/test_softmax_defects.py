"""The tests of the softmax kernels notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from emulated_softmax import run
from emulation import run_isolated
from layouts import strided
from softmax_mutants import SOFTMAX_MUTANTS
from softmaxes import METHODS, SENTINEL, check_softmax, drawn
from test_planted_defects import CAUGHT, SCHEDULES
from test_softmax import choice_of, rising

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

LONG = 17_000


def far_above() -> np.ndarray:
    x = drawn((2, LONG), "float32", "normal", 1)
    # exp overflows unless this is subtracted.
    x[:, -1] = 200
    return x


PROBLEMS = {
    "rising in a thread": lambda: rising("float32", 14_000, 4),
    "rising over threads": lambda: rising("float32", 120, 4),
    "rising over parts": lambda: rising("float32", LONG, 4096),
    "rising over many parts": lambda: rising("float32", 300 * 64, 64),
    "falling over many parts": lambda: rising("float32", 300 * 64, 64)[:, ::-1].copy(),
    "far above": far_above,
    "holes": lambda: drawn((3, 90), "float32", "holes", 2),
    "tail": lambda: drawn((4, 90), "float32", "normal", 3),
    "negative": lambda: drawn((3, 90), "float32", "normal", 4) - 100,
    "strided": lambda: drawn((7, 90), "float32", "normal", 5),
    "five rows": lambda: drawn((5, 90), "float32", "normal", 6),
    "block": lambda: drawn((3, 3000), "float32", "x30", 7),
    "one block": lambda: drawn((3, 3000), "float32", "x30", 8),
}
LAYOUTS = {"strided": "sliced", "tail": "pitch 8"}


def battery(method: str, names: Sequence[str], folder: Path | None) -> None:
    for name in names:
        rows = PROBLEMS[name]()
        layout = LAYOUTS.get(name, "contiguous")
        x, out = (
            strided(rows.shape, np.dtype(np.float32), kind, SENTINEL)
            for kind in (layout, "transposed" if layout == "sliced" else layout)
        )
        x.numpy()[...] = rows
        choice = choice_of(x.numpy(), method) if layout == "contiguous" else None
        if name.endswith("many parts"):
            # More parts than threads, so that a thread joins two.
            parts = {"parts": 300, "part_columns": 64}
            choice = type(choice)(variants=choice.variants, **parts)
        for schedule in SCHEDULES:
            grid = 1 if name == "one block" else None
            run(
                x.numpy(),
                method=method,
                out=out.numpy(),
                schedule=schedule,
                folder=folder,
                strict=False,
                grid=grid,
                choice=choice,
            )
            check_softmax(x.numpy(), out.numpy(), -1)
            unsigned = np.array(SENTINEL, np.float32).view("u4")
            assert (out.outside() == unsigned).all(), "something beside out was written"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_kernels_without_a_defect_pass(problem: str, method: str) -> None:
    assert run_isolated(battery, method, [problem], None) == "passed"


@pytest.mark.parametrize("name", SOFTMAX_MUTANTS)
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = SOFTMAX_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
