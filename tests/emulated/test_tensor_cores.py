"""The sm80 kernel on the emulated tensor cores: schedules, landings, head dims, strides, scales."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emulated_attention import attention
from layouts import ODD_LAYOUTS, OUT_LAYOUTS, PITCHES
from probe_tools import assert_same_bits
from problems import Case
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

SM80 = "sm80"


PLAIN = Case((2,), 3, 1, 150, 170, 32, 32, ("float16",) * 3, causal=True, lengths="both")


def test_schedules_landings_and_grids_give_the_same_bits() -> None:
    arrays = PLAIN.build()
    want = attention(arrays, SM80)
    check(arrays, want.out, want.lse, SM80)
    for schedule, grid in itertools.product((0, 1, 2, 3, 4), (None, 1, 5)):
        got = attention(arrays, SM80, schedule=schedule, grid=grid)
        what = f"schedule {schedule}, {grid} blocks"
        assert_same_bits((got.out, got.lse), (want.out, want.lse), what)


@pytest.mark.parametrize(("d", "p"), [(32, 200), (200, 32), (96, 192), (256, 96), (7, 0), (0, 9)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pair_of_head_dims(dtype: str, d: int, p: int) -> None:
    arrays = replace(PLAIN, m=40, n=70, d=d, p=p, dtypes=(dtype,) * 3, lengths=None).build()
    result = attention(arrays, SM80, schedule=3)
    check(arrays, result.out, result.lse, SM80)


@pytest.mark.parametrize(
    ("layout", "d", "unit"),
    [
        ("contiguous", 40, 16),
        ("contiguous", 38, 4),
        ("contiguous", 37, 2),
        ("transposed", 40, 2),
        ("pitch 8", 38, 4),
        ("pitch 8", 37, 2),
    ],
)
def test_rows_are_copied_in_the_largest_aligned_units(layout: str, d: int, unit: int) -> None:
    case = replace(PLAIN, d=d, p=d, layouts=(layout,) * 3, lengths=None)
    arrays = case.build()
    result = attention(arrays, SM80, schedule=4)
    # A buffer of NumPy's begins at a multiple of 16 bytes.
    assert result.variant.unit == unit
    check(arrays, result.out, result.lse, SM80)


@pytest.mark.parametrize("widest", [32, 64, 96, 128, 192])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_units_and_rows_of_a_block_change_no_bit(dtype: str, widest: int) -> None:
    case = replace(PLAIN, d=widest, p=widest, dtypes=(dtype,) * 3)
    aligned = case.build()
    want = attention(aligned, SM80)
    byelement = replace(case, layouts=("unaligned",) * 3).build()
    for one, other in zip(aligned.inputs().values(), byelement.inputs().values(), strict=True):
        other.numpy()[...] = one.numpy()
    others = {
        "by element": attention(byelement, SM80),
        "of sm_120": attention(aligned, SM80, arch=120),
    }
    for what, got in others.items():
        assert_same_bits((got.out, got.lse), (want.out, want.lse), what)
    assert others["by element"].variant.unit == 2
    assert others["of sm_120"].variant.tile.block_m == 64


@pytest.mark.parametrize("p", [32, 24, 21, 100, 1])
@pytest.mark.parametrize("layout", [*OUT_LAYOUTS[1:], *PITCHES, *ODD_LAYOUTS])
def test_the_layout_of_the_result_changes_no_bit(layout: str, p: int) -> None:
    """Rows of O are stored in pieces of 16 bytes where they consist of them, or by element."""
    case = replace(PLAIN, p=p, lengths=None)
    want, got = (
        attention(replace(case, out_layout=where).build(), SM80, schedule=schedule)
        for where, schedule in ((None, 0), (layout, 4))
    )
    assert_same_bits((got.out, got.lse), (want.out, want.lse), layout)
    check(case.build(), want.out, want.lse, SM80)


@pytest.mark.parametrize("scale", [-0.4, 0.0, 2.0**-99, 2.0**40])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales(dtype: str, scale: float) -> None:
    arrays = replace(PLAIN, dtypes=(dtype,) * 3, scale=scale).build()
    result = attention(arrays, SM80)
    check(arrays, result.out, result.lse, SM80)


def test_a_mean_of_the_largest_number_stays_finite() -> None:
    arrays = PLAIN.build()
    arrays.v.numpy()[...] = np.finfo(np.float16).max
    result = attention(arrays, SM80)
    seen: Any = result.lse > -np.inf
    assert (result.out[seen] == np.finfo(np.float16).max).all()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtypes": ("float32",) * 3}, "computes float16 and bfloat16"),
        ({"scale": 2.0**101}, "scale"),
        ({"d": 257}, "d is 257, above 256"),
    ],
)
def test_what_it_cannot_compute_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        attention(replace(PLAIN, **options).build(), SM80)
