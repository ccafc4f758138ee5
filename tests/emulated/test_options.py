"""Each option alone and all at once on every kernel, and what keys that no row sees may hold."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupy_flash.source import root
from emulated_attention import Result, attention
from layouts import LAYOUTS, ODD_LAYOUTS, strided
from mutants import BLOCK_SM80, Mutant
from option_arrays import FLOATS, INTEGERS
from probe_tools import assert_same_bits
from problems import ONE_DTYPE, Arrays, Case
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Of two blocks and three tiles of keys the last ones aren't full. sm80 has the largest ones,
# where rows consist of whole pieces of 16 bytes.
PLAIN = Case((2,), 4, 2, 75, 150, 20, 24, ("float32",) * 3, seed=1)
SIZES = {"sm80": {"m": 135, "n": 272, "d": 24}}
OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": (20, 13), "offset": 40},
    "left bound": {"window": (20, None)},
    "right bound": {"window": (None, 13), "offset": -10},
    "causal window": {"causal": True, "window": (20, 13)},
    "softcap": {"softcap": 1.5},
    "tiny softcap": {"softcap": 1e-3},
    "huge softcap": {"softcap": 1e6},
    "mask of keys": {"mask": "keys of a batch entry"},
    "mask of rows": {"mask": "rows"},
    "mask of heads": {"mask": "pairs of a head"},
    "mask": {"mask": "full"},
    "bias of keys": {"bias": "keys of a head"},
    "bias of rows": {"bias": "rows of a batch entry"},
    "bias": {"bias": "full"},
    "ALiBi": {"alibi": "heads", "offset": 30},
    "sinks": {"sinks": "full"},
}
ALL: dict[str, Any] = {
    "window": (90, 20),
    "softcap": 1.5,
    "mask": "full",
    "bias": "pairs of a head",
    "alibi": "full",
    "sinks": "heads",
    "lengths": "both",
    "poison": True,
}
KERNELS = tuple(ONE_DTYPE)
# Where simt multiplies float32 by FMA, and where by warpgroups.
FMA_ARCH, GROUPS_ARCH = 86, 90
WAYS = [*((kernel, FMA_ARCH) for kernel in KERNELS), ("simt", GROUPS_ARCH)]
SELDOM = "Score<Config>::kMore || Config::kMask || Config::kHeadDimV > 64"


def case_of(kernel: str, **options: Any) -> Case:
    return replace(PLAIN, dtypes=(ONE_DTYPE[kernel],) * 3, **SIZES.get(kernel, {}) | options)


def run(arrays: Arrays, kernel: str, arch: int = FMA_ARCH, **how: Any) -> Result:
    return attention(arrays, kernel, arch=arch, **how)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("kernel", "arch"), WAYS)
def test_option_alone(kernel: str, arch: int, option: str) -> None:
    arrays = case_of(kernel, **OPTIONS[option]).build()
    for schedule in (3, 4):
        result = run(arrays, kernel, arch, schedule=schedule)
        check(arrays, result.out, result.lse, kernel)


@pytest.mark.parametrize(("kernel", "arch"), WAYS)
def test_schedules_and_grids_give_the_same_bits_with_all_options(kernel: str, arch: int) -> None:
    arrays = case_of(kernel, **ALL).build()
    want = run(arrays, kernel, arch)
    check(arrays, want.out, want.lse, kernel)
    for schedule, grid in ((0, 1), (1, 3), (2, None), (3, 3), (4, 1), (5, None)):
        got = run(arrays, kernel, arch, schedule=schedule, grid=grid)
        what = f"schedule {schedule}, {grid} blocks"
        assert_same_bits((got.out, got.lse), (want.out, want.lse), what)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_hidden_keys_hold_changes_no_bit(kernel: str) -> None:
    """Hidden by the mask, by the bias, or some rows by the one and the others by the other."""
    arrays = case_of(kernel, mask="pairs", bias="pairs").build()
    mask, bias = arrays.mask.numpy(), arrays.bias.numpy()
    mask[...], bias[...] = True, np.random.default_rng(2).normal(size=bias.shape)
    rows = np.arange(arrays.case.m)[:, None]
    mask[:, [3, 40, 100]] = False
    bias[:, [4, 70, 149]] = -np.inf
    both = [5, 127]
    mask[:, both] = rows % 3 > 0
    bias[:, both] = np.where(rows % 3 > 0, -np.inf, bias[:, both])
    want = run(arrays, kernel)
    check(arrays, want.out, want.lse, kernel)
    k, v = arrays.k.numpy(), arrays.v.numpy()
    hidden = [3, 4, 5, 40, 70, 100, 127, 149]
    for number, schedule in ((np.nan, 3), (np.inf, 4), (-np.inf, 0)):
        for changed in ((k,), (v,), (k, v)):
            before = [x.copy() for x in changed]
            for x in changed:
                x[..., hidden, :] = number
            got = run(arrays, kernel, schedule=schedule)
            what = f"{number} in {len(changed)} of K and V"
            assert_same_bits((got.out, got.lse), (want.out, want.lse), what)
            for x, old in zip(changed, before, strict=True):
                x[...] = old


@pytest.mark.parametrize("hides", ["mask", "bias"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_that_some_rows_see_leave_rows_of_other_blocks_alone(kernel: str, hides: str) -> None:
    arrays = case_of(kernel, **{hides: "pairs"}, m=135).build()
    table = arrays.small()[hides].numpy()
    table[...], hidden = (True, False) if hides == "mask" else (0, -np.inf)
    # Only rows 2 and 3 see these keys, and every kernel's block of row 128 begins behind them.
    seeing = np.isin(np.arange(arrays.case.m), (2, 3))
    for key in (0, 9, 100):
        table[~seeing, key] = hidden
    want = run(arrays, kernel)
    assert 128 % want.variant.tile.block_m == 0
    for x in (arrays.k, arrays.v):
        x.numpy()[..., [0, 9, 100], :] = np.nan
    got = run(arrays, kernel)
    assert np.isnan(got.out[..., seeing, :].astype(np.float64)).all()
    assert np.isnan(got.lse[..., seeing]).all()
    below = [(x.out[..., 128:, :], x.lse[..., 128:]) for x in (got, want)]
    assert_same_bits(*below, "another block")


@pytest.mark.parametrize("option", ["window", "mask", "bias", "sinks"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_of_nan_is_nan_and_the_others_are_what_they_were(kernel: str, option: str) -> None:
    arrays = case_of(kernel, **OPTIONS[option]).build()
    for small in (arrays.mask, arrays.bias, arrays.sinks):
        if small is not None:
            small.numpy()[...] = 1
    want = run(arrays, kernel)
    arrays.q.numpy()[..., 33, 2] = np.nan
    got = run(arrays, kernel)
    assert np.isnan(got.out[..., 33, :].astype(np.float64)).all()
    assert np.isnan(got.lse[..., 33]).all()
    others = np.arange(arrays.case.m) != 33
    same = [(x.out[..., others, :], x.lse[..., others]) for x in (got, want)]
    assert_same_bits(*same, "another row")


@pytest.mark.parametrize("kernel", KERNELS)
def test_any_byte_but_zero_is_true(kernel: str) -> None:
    arrays = case_of(kernel, mask="full").build()
    want = run(arrays, kernel)
    arrays.mask.numpy().view(np.uint8)[...] *= 6
    got = run(arrays, kernel)
    assert_same_bits((got.out, got.lse), (want.out, want.lse), "True as 6")


def sm80_in_layout(arrays: Arrays, name: str, layout: str) -> Result:
    x = getattr(arrays, name)
    moved = strided(x.shape, x.buffer.dtype, layout, 1)
    moved.numpy()[...] = x.numpy()
    return attention(replace(arrays, **{name: moved}), "sm80", schedule=3)


# Of 304 elements in rows that lie so, all pieces are whole; of others none may be taken for it.
WHOLE, BY_ELEMENT = 304, 299
ALONG = {"pairs": LAYOUTS[2:-1] + ODD_LAYOUTS, "keys": ("unaligned", "negative", "odd address")}


@pytest.mark.parametrize("n", [WHOLE, BY_ELEMENT])
@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "bool"])
def test_copies_of_pieces_and_of_elements_give_the_same_bits(
    dtype: str, along: str, n: int
) -> None:
    """Rows of aligned pieces of 16 bytes are copied piece by piece, others by element."""
    name = "mask" if dtype == "bool" else "bias"
    dtypes = {} if dtype == "bool" else {"bias_dtype": dtype}
    arrays = case_of("sm80", **{name: along}, **dtypes, n=n, m=141, batch=(), heads=1).build()
    want = sm80_in_layout(arrays, name, "contiguous")
    check(arrays, want.out, want.lse, "sm80")
    for layout in ALONG[along]:
        got = sm80_in_layout(arrays, name, layout)
        assert_same_bits((got.out, got.lse), (want.out, want.lse), layout)


@pytest.mark.parametrize("along", ALONG)
@pytest.mark.parametrize("dtype", [*FLOATS, "uint8", "bool"])
def test_keys_beyond_a_length_are_not_seen_in_whole_pieces(dtype: str, along: str) -> None:
    """A length may end inside a piece, whose other elements then come as well."""
    name = "mask" if dtype == "bool" else "bias"
    dtypes = {} if dtype == "bool" else {"bias_dtype": dtype}
    arrays = case_of("sm80", **{name: along}, **dtypes, n=WHOLE, lengths="k").build()
    arrays.k_lengths = np.array([131, 5], np.int32)
    want = sm80_in_layout(arrays, name, "odd address")
    check(arrays, want.out, want.lse, "sm80")
    table = arrays.small()[name].numpy()
    table[..., 131:] = True if dtype == "bool" else 9 if dtype == "uint8" else np.nan
    got = sm80_in_layout(arrays, name, "contiguous")
    assert_same_bits((got.out, got.lse), (want.out, want.lse), "beyond the longer length")


@pytest.mark.parametrize("options", [{}, {"softcap": 1.5}, {"mask": "pairs"}], ids=str)
def test_rescaling_only_where_a_maximum_rose_changes_no_bit(
    options: dict[str, Any], tmp_path: Path
) -> None:
    arrays = case_of("sm80", n=WHOLE, **options).build()
    # No maximum of the second warp's rows rises after the first tile, those of the others do.
    falling = np.arange(arrays.case.m) // 32 == 1
    arrays.q.numpy()[..., 0] = np.where(falling, -8, 8)
    arrays.k.numpy()[..., 0] = np.linspace(-4, 4, WHOLE)
    results = []
    for value in ("true", "false"):
        folder = tmp_path / value
        shutil.copytree(root(), folder)
        forced = f"kRescaleSeldom = {value};"
        Mutant(BLOCK_SM80, f"kRescaleSeldom =\n      {SELDOM};", forced).plant(folder)
        result = attention(arrays, "sm80", schedule=3, folder=folder)
        results.append((result.out, result.lse))
    assert_same_bits(*results, "rescaled seldom")


def test_a_row_alone_has_its_bits_where_masks_and_biases_leave_room_for_fewer_keys() -> None:
    case = Case((), 1, 1, 7, 272, 64, 64, ("float16",) * 3, seed=4)
    arrays = replace(case, mask="pairs", bias="pairs", bias_dtype="float32").build()
    among = attention(arrays, "sm80")
    assert among.variant.tile.block_n < attention(case.build(), "sm80").variant.tile.block_n
    alone = replace(arrays.case, m=1).build()
    for row in range(case.m):
        for one, every in (
            *zip(alone.inputs().values(), arrays.inputs().values(), strict=True),
            (alone.mask, arrays.mask),
            (alone.bias, arrays.bias),
        ):
            rows = every.numpy()
            one.numpy()[...] = rows[..., [row], :] if rows.shape[-2] == case.m else rows
        got = attention(alone, "sm80")
        assert got.variant.mask == "keys"
        want = (among.out[..., [row], :], among.lse[..., [row]])
        assert_same_bits((got.out, got.lse), want, f"row {row} alone")
