"""The emulated tests notice defects of the options: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from emulated_attention import Result, attention
from emulation import run_isolated
from layouts import Strided
from option_arrays import visible
from option_mutants import OPTION_MUTANTS
from probe_tools import assert_same_bits
from problems import Arrays
from test_planted_defects import CAUGHT, HEADS, PLAIN, SCHEDULES
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Two tiles of rows and three of keys, of which the last ones aren't full.
SIXTEEN = replace(PLAIN, m=70, n=150, dtypes=("float16",) * 3)
WINDOW = replace(PLAIN, window=(20, 13), offset=5)
# What the first rows see begins in the middle of a tile.
LATE = replace(PLAIN, m=60, window=(20, 13), offset=75, poison=True)
HIDING = {"mask hides NaN": {"mask": "pairs"}, "bias hides NaN": {"bias": "pairs"}}

CASES = {
    "window": WINDOW,
    "left": replace(PLAIN, window=(30, None)),
    "causal window": replace(PLAIN, causal=True, window=(40, 9)),
    "window after NaN": LATE,
    "mask": replace(PLAIN, mask="pairs"),
    "mask of keys": replace(PLAIN, mask="keys"),
    "mask hides one NaN": replace(PLAIN, mask="pairs"),
    "transposed bias": replace(PLAIN, bias="pairs", option_layout="transposed"),
    "softcap": replace(PLAIN, softcap=1.5),
    "softcap and bias": replace(PLAIN, softcap=1.5, bias="pairs"),
    "alibi": replace(HEADS, alibi="heads", offset=-20),
    "alibi and bias": replace(HEADS, alibi="full", bias="full", offset=-20),
    "sinks": replace(HEADS, sinks="full"),
    "rows without keys beside NaN": replace(PLAIN, sinks="one", window=(20, 13), offset=-70),
    **{name: replace(PLAIN, **options) for name, options in HIDING.items()},
    "float16, window": replace(WINDOW, dtypes=SIXTEEN.dtypes),
    "float16, window after NaN": replace(LATE, dtypes=SIXTEEN.dtypes),
    "float16, mask": replace(SIXTEEN, mask="pairs"),
    "float16, odd mask": replace(SIXTEEN, mask="pairs", n=151),
    "float16, sparse mask": replace(SIXTEEN, mask="pairs"),
    "float16, bias": replace(SIXTEEN, bias="pairs", bias_dtype="float16"),
    "float16, odd address": replace(SIXTEEN, bias="pairs", bias_dtype="float16"),
    "float16, heads": replace(HEADS, dtypes=SIXTEEN.dtypes, mask="full", bias="full"),
    "float16, sliced bias": replace(SIXTEEN, bias="pairs", option_layout="sliced"),
    "float16, alibi": replace(SIXTEEN, alibi="one", offset=-20),
    "float16, sinks": replace(SIXTEEN, sinks="one"),
    **{f"float16, {name}": replace(SIXTEEN, **options) for name, options in HIDING.items()},
}


def build(name: str) -> Arrays:
    arrays = CASES[name].build()
    case = arrays.case
    _, k, v = (x.numpy() for x in arrays.inputs().values())
    for x, first, last in ((arrays.alibi_slopes, 0.4, 0.05), (arrays.sinks, 4, 120)):
        if x is not None:
            # Sinks are above the scores, the last ones by more than float32 has an exponential of.
            x.numpy()[...] = np.linspace(first, last, x.numpy().size).reshape(x.shape)
    hidden = np.array([2, 3, 40, 70, 140])
    if name.endswith("hides NaN"):
        # And a key that only one row of the first block sees, its last.
        alone = np.arange(case.m) == 63
        if arrays.mask is not None:
            arrays.mask.numpy()[:, hidden] = False
            arrays.mask.numpy()[:, 11] = alone
        else:
            arrays.bias.numpy()[:, hidden] = -np.inf
            arrays.bias.numpy()[:, 11] = np.where(alone, 0, -np.inf)
        v[hidden] = np.nan
        k[hidden] = np.nan
    elif name == "mask hides one NaN":
        arrays.mask.numpy()[:, 3] = False
        v[3, 7] = np.nan
    elif name == "rows without keys beside NaN":
        v[:3] = np.nan
    elif name == "float16, sparse mask":
        arrays.mask.numpy()[...] = np.arange(case.n) % 64 >= 32
    elif name == "float16, odd address":
        # Rows of an even length, all of which begin at an odd element.
        places = Strided(
            np.zeros(25 + case.m * 152, np.float16), (case.m, case.n), (152, 1), 25, ""
        )
        places.numpy()[...] = arrays.bias.numpy()
        arrays.bias = places
    return arrays


def check_beside_nan(arrays: Arrays, result: Result) -> None:
    seeing = visible((), 0, arrays.case.m, arrays.case.n, arrays.options()).any(axis=1)
    assert 0 < np.count_nonzero(seeing[:64]) < 64, "the first block has rows of both kinds"
    assert (result.out[~seeing] == 0).all()
    assert (result.lse[~seeing] == arrays.sinks.numpy()).all()


def check_rows_alone(arrays: Arrays, result: Result, run: Callable[[Arrays], Result]) -> None:
    """Compute the last rows, which then stand elsewhere in their blocks: no bit may change."""
    case, first = arrays.case, 7
    assert case.offset is not None
    later = replace(case, m=case.m - first, offset=case.offset + first).build()
    for name, x in later.inputs().items():
        x.numpy()[...] = arrays.inputs()[name].numpy()[-x.shape[0] :]
    alone = run(later)
    assert_same_bits((alone.out, alone.lse), (result.out[first:], result.lse[first:]), "alone")


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        arrays = build(name)
        for schedule in SCHEDULES:
            run = partial(attention, kernel=kernel, schedule=schedule, folder=folder, strict=False)
            result = run(arrays)
            if name == "rows without keys beside NaN":
                check_beside_nan(arrays, result)
            else:
                check(arrays, result.out, result.lse, kernel)
            if arrays.case == WINDOW:
                check_rows_alone(arrays, result, run)


SIXTEEN_BITS = [name for name in CASES if name.startswith("float16")]


@pytest.mark.parametrize("case", SIXTEEN_BITS)
def test_tensor_cores_without_a_defect_pass(case: str) -> None:
    assert run_isolated(battery, "sm80", [case], None) == "passed"


@pytest.mark.parametrize("kernel", ["naive", "simt"])
@pytest.mark.parametrize("case", [name for name in CASES if name not in SIXTEEN_BITS])
def test_kernels_without_a_defect_pass(case: str, kernel: str) -> None:
    assert run_isolated(battery, kernel, [case], None) == "passed"


@pytest.mark.parametrize("name", OPTION_MUTANTS)
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = OPTION_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
