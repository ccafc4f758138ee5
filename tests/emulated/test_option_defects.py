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
from option_arrays import visible
from option_mutants import OPTION_MUTANTS
from probe_tools import assert_same_bits
from problems import Arrays
from sampled_params import some
from score_mutants import SCORE_MUTANTS
from score_tile_mutants import SCORE_TILE_MUTANTS
from test_planted_defects import CAUGHT, HEADS, PLAIN, SCHEDULES, arch_of
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Two tiles of rows and three of keys, of which the last ones aren't full; all rows consist of whole
# pieces of 16 bytes, those of q, k and v too, so that blocks have as many rows as they may.
SIXTEEN = replace(PLAIN, m=141, n=304, d=24, dtypes=("float16",) * 3)
BIAS = replace(SIXTEEN, bias="pairs", bias_dtype="float16")
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
    "float16, sparse mask": replace(SIXTEEN, mask="pairs"),
    "float16, mask of late keys": replace(SIXTEEN, mask="pairs"),
    "float16, mask of odd pitch": replace(SIXTEEN, mask="pairs", option_layout="odd pitch"),
    "float16, mask at an odd address": replace(SIXTEEN, mask="pairs", option_layout="odd address"),
    "float16, mask of ragged rows": replace(SIXTEEN, mask="pairs", n=296),
    "float16, bias": BIAS,
    "float16, bias of keys": replace(BIAS, bias="keys"),
    "float16, sliced bias": replace(BIAS, option_layout="sliced"),
    "float16, bias of odd pitch": replace(BIAS, option_layout="odd pitch"),
    "float16, bias at an odd address": replace(BIAS, option_layout="odd address"),
    "float16, float32 bias of odd pitch": replace(
        BIAS, bias_dtype="float32", option_layout="odd pitch"
    ),
    "float16, ragged bias": replace(BIAS, n=300, option_layout="pitch 8"),
    **{
        f"float16, transposed {dtype} bias": replace(
            BIAS, bias_dtype=dtype, option_layout="transposed"
        )
        for dtype in ("float16", "float32")
    },
    # A negative scale goes to q.
    "float16, transposed q": replace(
        SIXTEEN, scale=-0.4, layouts=("transposed", "contiguous", "contiguous")
    ),
    **{
        f"float16, {dtype} bias": replace(BIAS, bias_dtype=dtype)
        for dtype in ("bfloat16", "float64", "uint8", "int16")
    },
    "float16, heads": replace(HEADS, dtypes=SIXTEEN.dtypes, mask="full", bias="full"),
    "float16, alibi": replace(SIXTEEN, alibi="one", offset=-20),
    "float16, softcap": replace(SIXTEEN, softcap=1.5),
    "float16, softcap below zero": replace(SIXTEEN, softcap=1.5),
    "float16, softcap of one": replace(SIXTEEN, softcap=1.5),
    "float16, rising maxima": replace(SIXTEEN, mask="pairs"),
    "float16, largest": replace(SIXTEEN, bias="keys"),
    "float16, sinks": replace(SIXTEEN, sinks="one"),
    "float16, rows without keys beside NaN": replace(
        SIXTEEN, sinks="one", window=(20, 13), offset=-70
    ),
    **{f"float16, {name}": replace(SIXTEEN, **options) for name, options in HIDING.items()},
}


def build(name: str) -> Arrays:
    arrays = CASES[name].build()
    case = arrays.case
    q, k, v = (x.numpy() for x in arrays.inputs().values())
    for x, first, last in ((arrays.alibi_slopes, 0.4, 0.05), (arrays.sinks, 4, 120)):
        if x is not None:
            # Sinks are above the scores, the last ones by more than float32 has an exponential of.
            x.numpy()[...] = np.linspace(first, last, x.numpy().size).reshape(x.shape)
    hidden = np.array([2, 3, 40, 70, 140])
    if name.endswith("hides NaN"):
        # And a key that only one row of the first block sees, its last.
        alone = np.arange(case.m) == (127 if name.startswith("float16") else 63)
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
    elif name.endswith("rows without keys beside NaN"):
        v[:3] = np.nan
    elif name == "float16, sparse mask":
        # A pair a row in two rows of each warp but the first one, neither in a warp's first rows
        # nor at a piece's start.
        rows = np.arange(case.m)[:, None]
        arrays.mask.numpy()[...] = (
            (rows >= 32) & (rows % 16 == 7) & (np.arange(case.n) % 128 == 100)
        )
    elif name == "float16, mask of late keys":
        # Of the third tile, in rows that the last warp's threads copy.
        arrays.mask.numpy()[...] = (np.arange(case.m)[:, None] % 16 == 15) & (
            np.arange(case.n) >= 256
        )
    elif name == "float16, softcap below zero":
        q[...], k[...] = -np.abs(q), np.abs(k)
    elif name == "float16, softcap of one":
        # One key has large scores, the others small ones.
        q[...], k[...] = np.abs(q), k * k.dtype.type(0.01)
        k[2] = 3
    elif name == "float16, rising maxima":
        # From tile to tile they rise in all rows but each warp's first ones.
        arrays.mask.numpy()[...] = True
        falling = np.arange(case.m) % 32 < 8
        q[:, 0], k[:, 0] = np.where(falling, -8, 8), np.linspace(-4, 4, case.n)
    elif name == "float16, largest":
        # All weights but the largest round up by nearly half a unit.
        q[...] = 0
        v[...] = np.finfo(v.dtype).max
        arrays.bias.numpy()[...] = np.log(0.5 * (1 + 1.1 * 2.0**-11))
        arrays.bias.numpy()[0] = 0
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
            run = partial(
                attention,
                kernel=kernel,
                arch=arch_of(kernel),
                schedule=schedule,
                folder=folder,
                strict=False,
            )
            result = run(arrays)
            if name.endswith("rows without keys beside NaN"):
                check_beside_nan(arrays, result)
            elif name == "float16, largest":
                assert (result.out == np.finfo(result.out.dtype).max).all()
            else:
                check(arrays, result.out, result.lse, kernel)
            if arrays.case == WINDOW:
                check_rows_alone(arrays, result, run)


ALL_MUTANTS = OPTION_MUTANTS | {
    f"sm80: {name}": mutant for name, mutant in (SCORE_MUTANTS | SCORE_TILE_MUTANTS).items()
}
SIXTEEN_BITS = [name for name in CASES if name.startswith("float16")]


@pytest.mark.parametrize("case", SIXTEEN_BITS)
def test_tensor_cores_without_a_defect_pass(case: str) -> None:
    assert run_isolated(battery, "sm80", [case], None) == "passed"


@pytest.mark.parametrize("kernel", ["naive", "simt"])
@pytest.mark.parametrize("case", [name for name in CASES if name not in SIXTEEN_BITS])
def test_kernels_without_a_defect_pass(case: str, kernel: str) -> None:
    assert run_isolated(battery, kernel, [case], None) == "passed"


@pytest.mark.parametrize("name", some(ALL_MUTANTS, 2))
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = ALL_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
