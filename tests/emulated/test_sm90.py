"""The sm90 kernel, emulated: schedules, places in turns, edges of tiles, units, options, scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cupy_flash.select import SM90_TILES
from drawn import Coverage
from emulated_attention import Result, attention, some_schedule
from layouts import ODD_LAYOUTS, OUT_LAYOUTS, PITCHES
from probe_options import HIDING, hiding
from probe_tools import assert_same_bits
from probes import KERNEL_PROBES, check_visible_keys
from problems import Arrays, Case
from strategies import cases, few_kinds, own_draws
from test_probes import emulated
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

SM90 = "sm90"
# Two tiles of rows and three of keys, the last ones not full.
PLAIN = Case((2,), 3, 1, 200, 300, 64, 64, ("float16",) * 3, seed=1)
CAUSAL = replace(PLAIN, causal=True, lengths="both")
OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": (20, 13), "offset": 40},
    "left bound": {"window": (150, None)},
    "right bound": {"window": (None, 13), "offset": -10},
    "softcap": {"softcap": 1.5},
    "tiny softcap": {"softcap": 1e-3},
    "huge softcap": {"softcap": 1e6},
    "ALiBi": {"alibi": "heads", "offset": 30},
    "sinks": {"sinks": "full"},
    "sinks without keys": {"sinks": "heads", "causal": True, "offset": -70},
    "everything": {
        "window": (90, 20),
        "softcap": 1.5,
        "alibi": "full",
        "sinks": "heads",
        "lengths": "both",
        "poison": True,
    },
}


def right(arrays: Arrays, **how: Any) -> Result:
    """Compute a problem and hold it to its bounds."""
    result = attention(arrays, SM90, **how)
    check(arrays, result.out, result.lse, SM90)
    return result


def both(result: Result) -> tuple[Any, Any]:
    return result.out, result.lse


@pytest.mark.parametrize("case", [PLAIN, CAUSAL], ids=["plain", "causal"])
def test_schedules_landings_and_grids_give_the_same_bits(case: Case) -> None:
    arrays = case.build()
    want = right(arrays)
    for schedule, grid in itertools.product(range(8), (None, 1, 5)):
        got = attention(arrays, SM90, schedule=schedule, grid=grid)
        assert_same_bits(both(got), both(want), f"schedule {schedule}, {grid} blocks")


@pytest.mark.parametrize("grid", [1, 2, 3])
@pytest.mark.parametrize("schedule", [3, 4, 5, 6, 7])
def test_tiles_of_no_one_and_many_keys_follow_each_other(schedule: int, grid: int) -> None:
    """The next tile's rows and first keys come before this one is done, if it has any."""
    case = replace(PLAIN, batch=(12,), heads=1, kv_heads=1, m=130, n=400, lengths="k")
    for seed in range(3):
        arrays = replace(case, seed=seed).build()
        lengths = np.random.default_rng(seed).choice([0, 0, 1, 128, 129, 256, 400], 12)
        arrays.k_lengths = lengths.astype(np.int32)
        right(arrays, schedule=schedule, grid=grid)


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 385])
@pytest.mark.parametrize("m", [1, 64, 65, 129])
def test_rows_and_keys_around_the_edges_of_tiles(m: int, n: int) -> None:
    right(replace(PLAIN, m=m, n=n, causal=n % 2 == 1).build(), schedule=3)


OF_PLACES = [name for name in HIDING if not {"mask", "bias", "everything"} & {*name.split()}]


@pytest.mark.parametrize("mask", OF_PLACES)
def test_visible_keys_of_small_sizes(mask: str) -> None:
    sizes = (0, 1, 2, 33, 64, 127, 128, 129)
    for m, n in itertools.product(sizes, sizes):
        check_visible_keys(emulated(SM90), m, n, "float16", width=32, **hiding(mask, m, n))


@pytest.mark.parametrize(("d", "p"), [(64, 128), (128, 64), (70, 100), (7, 0), (0, 9), (33, 33)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_pair_of_head_dims(dtype: str, d: int, p: int) -> None:
    right(replace(PLAIN, m=70, d=d, p=p, dtypes=(dtype,) * 3).build(), schedule=3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("widest", [64, 128])
def test_units_and_rows_of_a_block_change_no_bit(dtype: str, widest: int) -> None:
    case = replace(CAUSAL, d=widest, p=widest, dtypes=(dtype,) * 3)
    aligned = case.build()
    want = right(aligned)
    assert want.variant.unit == 16
    others = {"128 rows": attention(aligned, SM90, tile=SM90_TILES[widest])}
    for layout, unit in (("unaligned", 2), ("odd pitch", 4)):
        moved = replace(case, layouts=(layout,) * 3).build()
        for one, other in zip(aligned.inputs().values(), moved.inputs().values(), strict=True):
            other.numpy()[...] = one.numpy()
        others[layout] = attention(moved, SM90, schedule=4)
        assert others[layout].variant.unit <= unit
    for what, got in others.items():
        assert_same_bits(both(got), both(want), what)


@pytest.mark.parametrize("p", [64, 56, 53])
@pytest.mark.parametrize("layout", [*OUT_LAYOUTS[1:], *PITCHES, *ODD_LAYOUTS])
def test_the_layout_of_the_result_changes_no_bit(layout: str, p: int) -> None:
    case = replace(PLAIN, m=70, n=140, p=p)
    want, got = (
        attention(replace(case, out_layout=where).build(), SM90, schedule=schedule)
        for where, schedule in ((None, 0), (layout, 4))
    )
    assert_same_bits(both(got), both(want), layout)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, dtype: str) -> None:
    arrays = replace(PLAIN, dtypes=(dtype,) * 3, **OPTIONS[option]).build()
    want = right(arrays)
    for schedule, grid in ((3, None), (4, 1), (5, 2)):
        got = attention(arrays, SM90, schedule=schedule, grid=grid)
        assert_same_bits(both(got), both(want), f"schedule {schedule}, {grid} blocks")


@pytest.mark.parametrize("scale", [-0.4, 0.0, 2.0**-99, 2.0**40])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales(dtype: str, scale: float) -> None:
    right(replace(CAUSAL, dtypes=(dtype,) * 3, scale=scale).build())


@pytest.mark.parametrize("factor", [1.0, 2.0**10, 2.0**14, 2.0**20, 2.0**40, 2.0**60])
def test_large_scores_leave_other_rows_alone(factor: float) -> None:
    """Of those whose weights can't be made in one step, neighbours of every thread among them."""
    arrays = replace(PLAIN, dtypes=("bfloat16",) * 3).build()
    want = right(arrays)
    large = np.isin(np.arange(PLAIN.m), (3, 11, 40, 77, 130))
    arrays.q.numpy()[..., large, :] *= factor
    got = right(arrays, schedule=3)
    same = [(x.out[..., ~large, :], x.lse[..., ~large]) for x in (got, want)]
    assert_same_bits(*same, "another row")


def test_rows_that_grow_from_tile_to_tile() -> None:
    """Maxima go from weights that are made in one step to those that aren't."""
    arrays = replace(PLAIN, dtypes=("bfloat16",) * 3, n=600).build()
    k = arrays.k.numpy()
    for tile, size in enumerate((1.0, 2.0**8, 2.0**16, 2.0**24, 2.0**30)):
        k[..., 128 * tile : 128 * tile + 128, :] *= size
    right(arrays)
    arrays.k.numpy()[...] = k[..., ::-1, :].copy()
    right(arrays)


def test_a_mean_of_the_largest_number_stays_finite() -> None:
    arrays = CAUSAL.build()
    arrays.v.numpy()[...] = np.finfo(np.float16).max
    result = attention(arrays, SM90)
    assert (result.out[result.lse > -np.inf] == np.finfo(np.float16).max).all()


def test_a_row_of_nan_is_nan_and_the_others_are_what_they_were() -> None:
    arrays = CAUSAL.build()
    want = attention(arrays, SM90)
    arrays.q.numpy()[..., 33, 2] = np.nan
    got = attention(arrays, SM90, schedule=3)
    seen = want.lse[..., 33] > -np.inf
    assert np.isnan(got.out[..., 33, :][seen].astype(np.float64)).all()
    assert np.isnan(got.lse[..., 33][seen]).all()
    others = np.arange(CAUSAL.m) != 33
    same = [(x.out[..., others, :], x.lse[..., others]) for x in (got, want)]
    assert_same_bits(*same, "another row")


# Those that need a mask or a bias, too.
OF_ARRAYS = (
    "P2 non-interference",
    "P2 other heads",
    "P3 needles of options",
    "P4 grouped heads with options",
    "P4 order of options",
    "P5 ones",
    "P6 linearity",
    "P7 split and merge",
    "P8 layouts of options",
    "P11 equivalences",
    "P11 limits",
    "P12 shifts",
    "repeatable",
    "row alone",
)
PROBES = [name for name in KERNEL_PROBES if name not in OF_ARRAYS]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str, dtype: str) -> None:
    KERNEL_PROBES[probe](emulated(SM90), dtype, d=40, p=44, family=SM90)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_problems_are_within_their_bounds(
    dtype: str, record_property: Callable[[str, object], None]
) -> None:
    options = few_kinds(mask=("none",), bias=("none",))
    coverage, worst = Coverage(), [0.0]

    @own_draws(f"sm90 {dtype}")
    @settings(max_examples=50)
    @given(cases(dtype, rows=150, dims=(64, 128), options=options, mixed=False))
    def one(case: Case) -> None:
        coverage.add(case)
        arrays = case.build()
        result = attention(arrays, SM90, schedule=some_schedule(case.seed))
        worst[0] = max(worst[0], check(arrays, result.out, result.lse, SM90))

    one()
    record_property("drawn", coverage.report(f"worst error / bound: {worst[0]:.3f}"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dtypes": ("float32",) * 3}, "computes float16 and bfloat16"),
        ({"d": 129}, "d is 129, above 128"),
        ({"mask": "pairs"}, "takes no mask"),
        ({"bias": "keys"}, "takes no bias"),
        ({"scale": 2.0**101}, "scale"),
    ],
)
def test_what_it_cannot_compute_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        attention(replace(PLAIN, **options).build(), SM90)


def test_other_gpus_have_none() -> None:
    with pytest.raises(ValueError, match=r"needs compute capability 9\.0"):
        attention(PLAIN.build(), SM90, arch=80)
