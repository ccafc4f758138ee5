"""The tests of the softmax kernels notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    "weights": lambda: rising("float64", 4000, 4),
    "tiles of a part": lambda: drawn((2, LONG), "float32", "x30", 9),
}
# All others are float32.
FLOAT64 = ("weights",)
# Parts, and columns of each: more parts than threads, so that a thread joins two; several tiles.
PARTS = {
    "rising over many parts": (300, 64),
    "falling over many parts": (300, 64),
    "tiles of a part": (2, 12_288),
}
LAYOUTS = {"strided": "sliced", "tail": "pitch 8"}


def battery(method: str, names: Sequence[str], folder: Path | None) -> None:
    for name in names:
        rows = PROBLEMS[name]()
        layout = LAYOUTS.get(name, "contiguous")
        dtype = np.dtype(np.float64 if name in FLOAT64 else np.float32)
        x, out = (
            strided(rows.shape, dtype, kind, SENTINEL)
            for kind in (layout, "transposed" if layout == "sliced" else layout)
        )
        x.numpy()[...] = rows
        choice = choice_of(x.numpy(), method) if layout == "contiguous" else None
        if choice and name in PARTS:
            parts, part_columns = PARTS[name]
            choice = replace(choice, parts=parts, part_columns=part_columns)
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
            unsigned = np.array(SENTINEL, dtype).view(f"u{dtype.itemsize}")
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
