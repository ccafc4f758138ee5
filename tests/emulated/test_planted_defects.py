"""The emulated tests notice defects: each is planted in the kernels' source and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulated_attention import attention
from emulation import run_isolated
from mutants import MUTANTS
from problems import Arrays, Case
from sampled_params import some
from sm80_mutants import SM80_MUTANTS
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# More than a tile of 128 x 128 in both directions, and no multiple of anything.
PLAIN = Case((), None, None, 141, 151, 20, 24, ("float32",) * 3, seed=1)
HEADS = Case((2,), 6, 2, 70, 75, 20, 24, ("float32",) * 3, seed=2)
LENGTHS = Case((5,), 2, 1, 90, 75, 20, 24, ("float32",) * 3, lengths="both", seed=3)

CASES = {
    "plain": PLAIN,
    "few keys": replace(PLAIN, n=50),
    "one tile": replace(PLAIN, m=64, n=50),
    "wide": replace(PLAIN, m=70, d=100, p=120),
    "wider": replace(PLAIN, m=37, n=40, d=150, p=140),
    "scale": replace(PLAIN, scale=-1.7),
    "small scale": replace(PLAIN, scale=0.3),
    "causal": replace(PLAIN, causal=True, m=131, n=141),
    "causal, far left": replace(PLAIN, causal=True, offset=-33),
    "causal, far right": replace(PLAIN, causal=True, offset=70),
    "bfloat16": replace(PLAIN, dtypes=("bfloat16",) * 3),
    "float16": replace(PLAIN, dtypes=("float16",) * 3),
    "float16, causal": replace(PLAIN, dtypes=("float16",) * 3, causal=True, m=131, n=141),
    "float16, aligned": replace(PLAIN, dtypes=("float16",) * 3, m=70, n=300, d=32, p=32),
    "float16, negative scale": replace(PLAIN, dtypes=("float16",) * 3, scale=-1.7),
    **{
        f"float16, {name}": replace(PLAIN, d=24, dtypes=("float16",) * 3, **options)
        for name, options in {
            "causal, far left": {"causal": True, "offset": -33},
            "no keys": {"causal": True, "offset": -PLAIN.m},
            "wide values": {"p": 104},
            "ragged out": {"p": 21, "out_layout": "pitch 8"},
            "sliced out": {"out_layout": "sliced"},
            "out of odd pitch": {"out_layout": "odd pitch"},
            "out at an odd address": {"out_layout": "odd address"},
        }.items()
    },
    "float16, one block": replace(HEADS, dtypes=("float16",) * 3),
    "float64": replace(PLAIN, dtypes=("float64",) * 3),
    "largest": PLAIN,
    "hopeless tile": PLAIN,
    "one block": HEADS,
    "transposed": replace(PLAIN, layouts=("transposed",) * 3, out_layout="transposed"),
    "sliced": replace(HEADS, layouts=("sliced",) * 3, out_layout="sliced"),
    "grouped heads": HEADS,
    "batch axes": replace(HEADS, batch=(2, 3), m=9, n=10, layouts=("swapped",) * 3),
    "lengths": LENGTHS,
    "causal lengths": replace(LENGTHS, causal=True),
    "lengths before NaN": replace(LENGTHS, seed=4),
    "lengths out of range": replace(HEADS, lengths="both"),
}
ALL_MUTANTS = MUTANTS | {f"sm80: {name}": mutant for name, mutant in SM80_MUTANTS.items()}
# In order, and the two greedy ones: warps as far apart as barriers let them be.
SCHEDULES = (0, 3, 4)
# Not a BuildError, nor a mistake of the test itself.
CAUGHT = ("AssertionError: ", "EmulationError: ", "killed by ", "timed out ")


def build(name: str) -> Arrays:
    arrays = CASES[name].build()
    q, k, v = (x.numpy() for x in arrays.inputs().values())
    if name == "lengths out of range":
        arrays.q_lengths = np.array([arrays.case.m + 5, -1], np.int32)
        arrays.k_lengths = np.array([arrays.case.n + 9, arrays.case.n], np.int32)
    elif name == "lengths before NaN":
        for x, lengths in ((q, arrays.q_lengths), (k, arrays.k_lengths), (v, arrays.k_lengths)):
            for entry, length in zip(x, lengths, strict=True):
                entry[:, length:] = np.nan
    elif name == "largest":
        v[...] = np.finfo(v.dtype).max
    elif name == "hopeless tile":
        # The scores of the first tile's keys are -inf in float32.
        q[...] = np.abs(q)
        k[:130] = -np.finfo(k.dtype).max
    return arrays


def arch_of(kernel: str) -> int:
    """Where simt multiplies by FMA; test_matrix_defects and test_split_defects have the others."""
    return 86 if kernel == "simt" else 90


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        arrays = build(name)
        grid = 1 if name.endswith("one block") else None
        for schedule in SCHEDULES:
            result = attention(
                arrays,
                kernel,
                arch=arch_of(kernel),
                schedule=schedule,
                folder=folder,
                strict=False,
                grid=grid,
            )
            check(arrays, result.out, result.lse, kernel)


SIXTEEN_BITS = [name for name, case in CASES.items() if case.dtypes[0].endswith("float16")]


@pytest.mark.parametrize("case", SIXTEEN_BITS)
def test_tensor_cores_without_a_defect_pass(case: str) -> None:
    assert run_isolated(battery, "sm80", [case], None) == "passed"


@pytest.mark.parametrize("kernel", ["naive", "simt"])
@pytest.mark.parametrize("case", CASES)
def test_kernels_without_a_defect_pass(case: str, kernel: str) -> None:
    assert run_isolated(battery, kernel, [case], None) == "passed"


@pytest.mark.parametrize("name", some(ALL_MUTANTS, 2))
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = ALL_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
