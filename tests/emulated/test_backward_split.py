"""float32 gradients in parts on emulated warpgroups: options, layouts, special numbers, order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backward_problems import Backward
from backward_split_cases import FLOAT, PLAIN, PROBLEMS, QKV, SplitProblem
from cupy_flash import reference
from cupy_flash.backward.passes import Passes
from emulated_backward import attention_backward
from layouts import strided
from sampled_params import some

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]
Found = dict[str, Array]
# Thread schedule, blocks of the grid, their order.
WAYS = ((0, None, 0), (5, 1, 0), (4, 2, 1), (3, None, 2))
LARGEST = float(np.finfo(np.float32).max)
TINY = 2e-38
FMA_ARCH = 86
# What the three products of two terms of bfloat16 may lose of a factor's product.
LOST = {None: 0.0, "tf32": 2.0**-15}


def run(call: Backward, **how: Any) -> Found:
    result = attention_backward(call, "simt", **how)
    assert_by_groups(result.passes, how.get("precision"), how.get("arch", 90))
    return result.found


def assert_by_groups(passes: Passes, precision: str | None, arch: int) -> None:
    """All passes with a gradient in registers are by warpgroups, on the architecture with them."""
    for one in passes.gradients:
        variant = one.variant
        grouped = arch == 90 and (variant.first or variant.second)
        assert variant.tile.groups == grouped, str(variant)
        assert not grouped or variant.forward.tf32 == (precision == "tf32")


def run_in_many_ways(call: Backward, ways: Iterable[Any] = WAYS, **how: Any) -> Found:
    """Run a call under thread schedules and grids, which change no bit."""
    results = {
        way: run(call, schedule=way[0], grid=way[1], block_order=way[2], **how) for way in ways
    }
    first = next(iter(results.values()))
    for way, found in results.items():
        assert_same_bits(found, first, str(way))
    return first


def oracle(call: Backward) -> Found:
    arguments = (x.numpy() for x in call.arrays.inputs().values())
    dlse = None if call.dlse is None else call.dlse.numpy()
    with np.errstate(all="ignore"):
        exact = reference.attention_backward(
            call.do.numpy(), *arguments, dlse=dlse, wrt=QKV, **call.arrays.options()
        )
    return {name: getattr(exact, name) for name in QKV}


def assert_same_bits(got: Found, want: Found, what: str) -> None:
    for name, x in want.items():
        assert got[name].tobytes() == x.tobytes(), f"{what}: other bits of d{name}"


@pytest.mark.parametrize("problem", some(PROBLEMS, 4))
def test_gradients_are_within_their_bounds(problem: SplitProblem) -> None:
    call, precision = problem.call(), problem.row["precision"]
    found = run_in_many_ways(call, WAYS[1:3], precision=precision)
    call.check(found, "simt", LOST[precision])


def test_blocks_and_schedules_give_the_same_bits() -> None:
    call = Backward.of(replace(PLAIN, m=260, n=200, causal=True, offset=3), QKV)
    ways = [(i, grid, i % 3) for i, grid in zip(range(6), (1, 2, None, 3, 2, 2), strict=True)]
    call.check(run_in_many_ways(call, ways), "simt")


@pytest.mark.parametrize("n", [1, 31, 63, 64, 65, 127, 128, 129])
def test_rows_and_keys_around_the_edges_of_tiles(n: int) -> None:
    call = Backward.of(replace(PLAIN, m=n, n=193 - n), QKV)
    call.check(run(call, schedule=4), "simt")


@pytest.mark.parametrize("options", [{}, {"causal": True, "offset": 100}], ids=str)
def test_gradients_of_many_rows_and_keys(options: dict[str, Any]) -> None:
    """More than two spans of either, the last one not full."""
    for m, n in ((20, 600), (600, 20)):
        call = Backward.of(replace(PLAIN, m=m, n=n, **options), QKV)
        call.check(run_in_many_ways(call, WAYS[1:3]), "simt")


# Batch axes and heads of an array; 1 where it has one for all, None for no such axis.
SHARED: dict[str, dict[str, tuple[int, ...]]] = {
    "keys of all entries and heads": {"k": (1, 1), "v": (1, 1)},
    "keys without leading axes": {"k": (), "v": ()},
    "keys of all entries, values of each": {"k": (1, 2), "v": (3, 2)},
    "rows of all entries": {"q": (1, 4)},
}


@pytest.mark.parametrize("name", SHARED)
def test_an_array_that_broadcasts_has_the_sum_of_its_copies(name: str) -> None:
    case = replace(PLAIN, batch=(3,), heads=4, kv_heads=2, m=19, n=70)
    call = Backward.of(case, QKV)
    for argument, leading in SHARED[name].items():
        x = getattr(call.arrays, argument)
        shared = strided((*leading, *x.shape[-2:]), x.buffer.dtype, "contiguous")
        shared.numpy()[...] = np.random.default_rng(4).standard_normal(shared.shape)
        setattr(call.arrays, argument, shared)
    call.check(run_in_many_ways(call, WAYS[1:3]), "simt")


@pytest.mark.parametrize("layout", ["swapped", "transposed", "sliced", "negative", "unaligned"])
def test_layouts_of_gradients_and_of_inputs_change_no_bit(layout: str) -> None:
    call = Backward.of(replace(PLAIN, d=48, p=64), QKV)
    want = run(call)
    for name in ("q", "k", "v"):
        x = getattr(call.arrays, name)
        moved = strided(x.shape, x.buffer.dtype, layout, np.nan)
        moved.numpy()[...] = x.numpy()
        setattr(call.arrays, name, moved)
    got = run(call, schedule=3, layouts=dict.fromkeys("qkv", layout))
    assert_same_bits(got, want, layout)


def test_fewer_terms_are_less_accurate_and_enough() -> None:
    call = Backward.of(replace(PLAIN, n=70), QKV)
    six, three = run(call), run(call, precision="tf32")
    call.check(six, "simt")
    call.check(three, "simt", LOST["tf32"])
    exact = oracle(call)
    for name in QKV:
        want = exact[name]
        errors = [float(np.abs(found[name] - want).max()) for found in (six, three)]
        assert 8 * errors[0] < errors[1] < 2.0**-13 * np.abs(want).max()


@pytest.mark.parametrize("arch", [80, 86])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_architectures_without_warpgroups_compute_the_same(arch: int, dtype: str) -> None:
    case = replace(PLAIN, m=70, n=75, mask="pairs", causal=True, offset=9, dtypes=(dtype,) * 3)
    call = Backward.of(case, (*QKV, "scale"))
    call.check(attention_backward(call, "simt", arch=arch, schedule=3).found, "simt")


# Special numbers.


def plain_call(**options: Any) -> Backward:
    """Return a call with small numbers in the first columns, beside which large ones have room."""
    call = Backward.of(replace(PLAIN, scale=1.0, **options), QKV)
    call.dlse = None
    rng = np.random.default_rng(3)
    # Small enough that gradients that have the largest numbers as factors are finite.
    call.do.numpy()[...] = rng.standard_normal(call.do.shape) / 64
    return call


def operand(call: Backward, name: str) -> Array:
    return call.do.numpy() if name == "do" else call.arrays.inputs()[name].numpy()


# What the large number is multiplied with, and the gradient that has rows of its own for it.
BESIDE = {"q": ("k", "q"), "k": ("q", "k"), "do": ("v", "q"), "v": ("do", "k")}


@pytest.mark.parametrize("number", [LARGEST, -LARGEST])
@pytest.mark.parametrize("name", BESIDE)
def test_the_largest_numbers_are_multiplied_without_a_split(name: str, number: float) -> None:
    """Beyond what bfloat16 rounds to its largest number, beside others below 2^-125."""
    call, (other, own) = plain_call(), BESIDE[name]
    operand(call, other)[:, 0] = np.linspace(TINY, 2 * TINY, len(operand(call, other)))
    operand(call, name)[:, 0] = 0
    want = run(call)
    operand(call, name)[77, 0] = number
    got = run(call, schedule=3, grid=1)
    call.check(got, "simt")
    others = np.arange(len(got[own])) != 77
    if name in ("q", "do"):
        # What a row has alone; other rows don't know of it.
        assert_same_bits({own: got[own][others]}, {own: want[own][others]}, "other rows")


# Of the oracle, which makes o and lse of infinities.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("number", some([np.nan, np.inf, -np.inf], 2))
def test_what_is_not_finite_reaches_those_who_see_it(name: str, number: float) -> None:
    """Only rows from 60 on see key 70, and row 77 only keys up to 99."""
    call = plain_call(mask="pairs")
    seen = np.ones((PLAIN.m, PLAIN.n), bool)
    seen[:60, 70], seen[77, 100:] = False, False
    call.arrays.mask.numpy()[...] = seen
    operand(call, name)[77 if name in ("q", "do") else 70, 3] = number
    got, exact = run_in_many_ways(call, WAYS[1:3]), oracle(call)
    fma = run(call, arch=FMA_ARCH)
    for gradient, x in got.items():
        expected = np.isfinite(exact[gradient])
        if (name, gradient) == ("q", "v"):
            # The oracle's row has NaN for its hidden keys too.
            expected[100:] = True
        np.testing.assert_array_equal(np.isfinite(x), expected, err_msg=gradient)
        # FMA's blocks share what isn't finite.
        assert (np.isfinite(fma[gradient]) <= expected).all()
        known = np.isfinite(exact[gradient])
        np.testing.assert_allclose(x[known], exact[gradient][known], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", ["mask", "bias", "offset", "lengths"])
@pytest.mark.parametrize("number", some([np.nan, LARGEST, np.inf, -np.inf], 2))
def test_what_hidden_rows_and_keys_hold_changes_no_bit(by: str, number: float) -> None:
    options: dict[str, dict[str, Any]] = {
        "mask": {"mask": "pairs"},
        "bias": {"bias": "pairs"},
        "offset": {"causal": True, "offset": -40},
        "lengths": {"batch": (1,), "lengths": "both", "seed": 2},
    }
    call = plain_call(**options[by])
    arrays = call.arrays
    rows, keys = np.zeros(PLAIN.m, bool), np.zeros(PLAIN.n, bool)
    if by == "offset":
        rows[:40], keys[101:] = True, True
    elif by == "lengths":
        arrays.q_lengths[...], arrays.k_lengths[...] = 100, 70
        rows[100:], keys[70:] = True, True
    else:
        rows[[3, 64, 140]], keys[[0, 5, 70, 149]] = True, True
        hidden = rows[:, None] | keys
        if by == "mask":
            arrays.mask.numpy()[...] = ~hidden
        else:
            arrays.bias.numpy()[...] = np.where(hidden, -np.inf, 0.5)
    want = run(call)
    call.check(want, "simt")
    for name, hidden in (("q", rows), ("do", rows), ("k", keys), ("v", keys)):
        operand(call, name)[..., hidden, :] = number
    assert_same_bits(run_in_many_ways(call, WAYS[1:3]), want, f"{by} {number}")


def test_sums_and_pairs_of_rows_that_are_computed_again() -> None:
    case = replace(PLAIN, scale=1.0, bias="full", alibi="one", softcap=30.0)
    wrt = ("q", "bias", "scale", "alibi_slopes")
    call = Backward.of(case, wrt)
    call.dlse = None
    operand(call, "k")[:, 0] = np.linspace(TINY, 2 * TINY, PLAIN.n)
    operand(call, "q")[[5, 77], 0] = LARGEST
    call.check(run_in_many_ways(call, WAYS[1:3]), "simt")


def test_a_bias_of_keys_whose_gradients_are_computed_again() -> None:
    call = Backward.of(replace(PLAIN, scale=1.0, bias="keys"), ("k", "bias"))
    call.dlse = None
    operand(call, "q")[:, 0] = np.linspace(TINY, 2 * TINY, PLAIN.m)
    operand(call, "k")[[5, 140], 0] = -LARGEST
    call.check(run_in_many_ways(call, WAYS[1:3]), "simt")


def test_entries_that_share_gradients_that_are_computed_again() -> None:
    case = replace(PLAIN, batch=(2,), heads=4, kv_heads=2, m=70, n=75, dtypes=FLOAT, scale=1.0)
    call = Backward.of(case, QKV)
    call.dlse = None
    operand(call, "q")[..., 0] = TINY
    operand(call, "k")[1, 1, 40, 0] = LARGEST
    call.do.numpy()[...] /= 64
    call.check(run_in_many_ways(call, WAYS[1:3]), "simt")


def test_rows_and_keys_that_nobody_sees_have_zeros() -> None:
    call = Backward.of(replace(PLAIN, causal=True, offset=-150, poison=True), QKV)
    found = run_in_many_ways(call)
    assert not any(x.any() for x in found.values())
    call = Backward.of(replace(PLAIN, batch=(0,), squeeze=True), QKV)
    found = run_in_many_ways(call)
    assert found["k"].shape == (150, 50)
    assert not found["k"].any()
    assert not found["v"].any()
