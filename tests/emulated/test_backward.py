"""Gradients of every option together, of arrays that broadcast, and what may not matter to them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backward_problems import Backward, names_of
from emulated_backward import attention_backward
from layouts import strided
from problems import Case

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

KERNELS = ("naive", "simt")
Array = np.ndarray[Any, Any]
# Of two blocks and two tiles on each side the last ones aren't full.
PLAIN = Case((2,), 4, 2, 75, 70, 20, 24, ("float32",) * 3, seed=1)
ALL: dict[str, Any] = {
    "window": (60, 20),
    "softcap": 1.5,
    "mask": "full",
    "bias": "pairs of a head",
    "alibi": "full",
    "sinks": "heads",
    "lengths": "both",
    "poison": True,
}


def run(call: Backward, kernel: str, arch: int = 86, **how: Any) -> dict[str, Array]:
    """Run a call, float32 by FMA: `test_backward_split` has it by warpgroups."""
    return attention_backward(call, kernel, arch=arch, **how).found


def assert_same_bits(got: dict[str, Array], want: dict[str, Array], what: str) -> None:
    for name, x in want.items():
        assert got[name].tobytes() == x.tobytes(), f"{what}: other bits of d{name}"


# By FMA, on float64's tensor cores, by warpgroups.
ALL_BY = [
    ("naive", 90, "float32", 20),
    ("simt", 86, "float32", 20),
    ("simt", 80, "float32", 60),
    ("simt", 90, "float64", 20),
    ("simt", 90, "float32", 60),
]


@pytest.mark.parametrize(("kernel", "arch", "dtype", "d"), ALL_BY)
def test_schedules_and_grids_give_the_same_bits_with_all_options(
    kernel: str, arch: int, dtype: str, d: int
) -> None:
    case = replace(PLAIN, **ALL, dtypes=(dtype,) * 3, d=d)
    call = Backward.of(case, names_of(case))
    want = run(call, kernel, arch=arch)
    call.check(want)
    for schedule, grid in ((0, 1), (1, 3), (2, None), (3, 3), (4, 1)):
        got = run(call, kernel, schedule=schedule, grid=grid, arch=arch)
        assert_same_bits(got, want, f"schedule {schedule}, {grid} blocks")


# Batch axes and heads of an array; 1 where it has one for all, None for no such axis.
SHARED = {
    "keys of all entries and heads": {"k": (1, 1), "v": (1, 1)},
    "keys without leading axes": {"k": (), "v": ()},
    "keys of all entries, values of each": {"k": (1, 2), "v": (3, 2)},
    "one key head, values of each": {"k": (3, 1), "v": (3, 2)},
    "rows of all entries": {"q": (1, 4)},
    "one query head": {"q": (3, 1)},
}


@pytest.mark.parametrize(
    ("name", "kernel"), list(zip(SHARED, itertools.cycle(KERNELS), strict=False))
)
def test_an_array_that_broadcasts_has_the_sum_of_its_copies(kernel: str, name: str) -> None:
    call = Backward.of(replace(PLAIN, batch=(3,), m=19, n=37), ("q", "k", "v"))
    rng = np.random.default_rng(4)
    for argument, leading in SHARED[name].items():
        x = getattr(call.arrays, argument)
        shared = strided((*leading, *x.shape[-2:]), x.buffer.dtype, "contiguous")
        shared.numpy()[...] = rng.standard_normal(shared.shape)
        setattr(call.arrays, argument, shared)
    if name == "one query head":
        shape = (3, 2, *call.do.shape[-2:])
        call.do, call.dlse = strided(shape, call.do.buffer.dtype, "contiguous"), None
        call.do.numpy()[...] = rng.standard_normal(shape)
    for grid in (None, 2):
        call.check(run(call, kernel, grid=grid))


@pytest.mark.parametrize(
    ("bias", "kernel"),
    list(
        zip(
            ["one", "keys", "rows", "pairs", "pairs of a head", "full"],
            itertools.cycle(("simt", "naive")),
            strict=False,
        )
    ),
)
def test_the_gradient_of_a_bias_has_its_shape_and_dtype(kernel: str, bias: str) -> None:
    # Of the keys that a block takes of a shared bias the last ones aren't full.
    n = 530 if bias == "pairs" else 70
    case = replace(PLAIN, m=37, n=n, d=3, p=5, bias=bias, bias_dtype="bfloat16", causal=True)
    for wrt in (("bias",), ("q", "bias")):
        call = Backward.of(case, wrt)
        call.check(run(call, kernel, schedule=3))


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_hidden_pairs_hold_changes_no_bit(kernel: str) -> None:
    """Hidden by the mask, by the bias, or here by the one and there by the other."""
    call = Backward.of(replace(PLAIN, mask="pairs", bias="pairs"), ("q", "k", "v", "bias"))
    arrays, do = call.arrays, call.do.numpy()
    mask, bias = arrays.mask.numpy(), arrays.bias.numpy()
    mask[...], bias[...] = True, np.random.default_rng(2).normal(size=bias.shape)
    do[...] = np.random.default_rng(3).normal(size=do.shape)
    rows, keys = np.ogrid[: mask.shape[0], : mask.shape[1]]
    mask[:, [3, 40]], mask[[6, 50], :] = False, False
    bias[:, [4, 69]], bias[[7, 74], :] = -np.inf, -np.inf
    hidden_keys, hidden_rows = [3, 4, 5, 40, 69], [6, 7, 8, 50, 74]
    for where, turn in (((slice(None), 5), rows[:, 0]), ((8, slice(None)), keys[0])):
        mask[where] = turn % 3 > 0
        bias[where] = np.where(turn % 3 > 0, -np.inf, bias[where])
    want = run(call, kernel)
    call.check(want)
    q, k, v = (x.numpy() for x in arrays.inputs().values())
    for number, schedule in ((np.nan, 3), (np.inf, 4), (-np.inf, 0)):
        for changed, hidden in (((k, v), hidden_keys), ((q,), hidden_rows), ((do,), hidden_rows)):
            before = [x.copy() for x in changed]
            for x in changed:
                x[..., hidden, :] = number
            assert_same_bits(run(call, kernel, schedule=schedule), want, f"{number}")
            for x, old in zip(changed, before, strict=True):
                x[...] = old


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_nan_reaches_those_who_see_it(kernel: str) -> None:
    call = Backward.of(replace(PLAIN, causal=True, offset=0), ("q", "k", "v"))
    want = run(call, kernel)
    call.do.numpy()[..., 33, 2] = np.nan
    got = run(call, kernel)
    rows, keys = np.arange(PLAIN.m), np.arange(PLAIN.n)
    assert np.isnan(got["q"][..., 33, :]).all()
    assert np.isnan(got["k"][..., :34, :]).all()
    assert np.isnan(got["v"][..., :34, 2]).all()
    untouched = {
        "q": lambda x: x[..., rows != 33, :],
        "k": lambda x: x[..., keys >= 64, :],
        "v": lambda x: x[..., keys >= 64, :],
    }
    same = [{name: of(x[name]) for name, of in untouched.items()} for x in (got, want)]
    assert_same_bits(*same, "those who don't see it")


# The last one sees more than a span of keys, from other tiles on than the rows beside it.
ROWS_ALONE: tuple[dict[str, Any], ...] = (
    {},
    {"window": (9, 30), "offset": 5},
    {"window": (400, 30), "offset": 520, "n": 600},
)


@pytest.mark.parametrize("options", ROWS_ALONE, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_alone_has_its_bits(kernel: str, options: dict[str, Any]) -> None:
    call = Backward.of(replace(PLAIN, batch=(1,), **{"offset": -5, **options}), ("q",))
    call.dlse = None
    want = run(call, kernel)["q"]
    for row in (0, 7, 63, 64, 74):
        offset = call.arrays.case.offset + row
        alone = Backward.of(replace(call.arrays.case, m=1, offset=offset), ("q",))
        for name in ("k", "v"):
            getattr(alone.arrays, name).numpy()[...] = getattr(call.arrays, name).numpy()
        alone.dlse = None
        alone.arrays.q.numpy()[...] = call.arrays.q.numpy()[..., [row], :]
        alone.do.numpy()[...] = call.do.numpy()[..., [row], :]
        got = run(alone, kernel)["q"]
        assert_same_bits({"q": got}, {"q": want[..., [row], :]}, f"row {row} alone")
