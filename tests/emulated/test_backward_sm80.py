"""Gradients on emulated tensor cores: every tile, options, careful passes, and shared biases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backward_problems import Backward
from backward_sm80_cases import BRAIN, DIRECTED, HALF, HEADS, PLAIN, QKV, Directed
from cupy_flash.backward import params, passes
from cupy_flash.backward.select import keys_in_one_pass, with_tile
from cupy_flash.backward.variant import BackwardVariant
from cupy_flash.device import assumed
from emulated_backward import attention_backward
from problems import Case
from sampled_params import some

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]
ARCHES = (80, 86, 90, 100)
# Thread schedule, blocks of the grid, their order.
WAYS = ((0, None, 0), (3, 1, 0), (4, 2, 1))
# For problems whose gradients several blocks write.
MORE_WAYS = (*WAYS, (1, None, 2), (2, None, 1))


def run(call: Backward, **how: Any) -> dict[str, Array]:
    return attention_backward(call, "sm80", **how).found


def run_in_many_ways(call: Backward, ways: Any = WAYS, **how: Any) -> dict[str, Array]:
    """Run a call under thread schedules and grids, which change no bit."""
    results = [
        run(call, schedule=schedule, grid=grid, block_order=order, **how)
        for schedule, grid, order in ways
    ]
    for way, other in zip(ways, results, strict=True):
        for name, x in other.items():
            assert x.tobytes() == results[0][name].tobytes(), f"{way}: other bits of d{name}"
    return results[0]


def kind_of(variant: BackwardVariant) -> tuple[Any, ...]:
    """Return what tells tiles apart: what a pass computes, and the tile."""
    tile = replace(variant.tile, blocks=0)
    return variant.keys, variant.first, variant.second, tile


@pytest.mark.parametrize("directed", some(DIRECTED, 3))
def test_gradients_of_every_tile_are_within_their_bounds(directed: Directed) -> None:
    call = Backward.of(directed.case(), directed.wrt)
    call.check(run_in_many_ways(call, WAYS[1:], arch=directed.arch), "sm80")


def reachable() -> Iterator[tuple[Any, ...]]:
    """Yield the tiles of all passes on GPUs of every size of shared memory."""
    empty = attention_passes(Directed(90, 32, 32)).forward
    arrays = itertools.product((None, "pairs"), (None, "float16", "float32"))
    for arch, (mask, bias), width in itertools.product(
        ARCHES, list(arrays), (32, 64, 96, 128, 256)
    ):
        forward = replace(
            empty,
            arch=arch,
            mask=mask,
            bias=bias,
            bias_along=bias and "pairs",
            head_dim=width,
            head_dim_v=width,
        )
        for keys, first, second in itertools.product((False, True), repeat=3):
            both = first and second
            if (second and not keys) or (both and not keys_in_one_pass(forward, assumed(arch))):
                continue
            sums = not first and not second
            if sums and keys and not bias:
                # Keys leave sums of a bias alone.
                continue
            variant = BackwardVariant(forward, keys, first, second, bias_sums=sums)
            yield kind_of(with_tile(variant, assumed(arch)))
            if sums and not keys and bias:
                pairs = replace(variant, bias_sums=False, pairs="float32")
                yield kind_of(with_tile(pairs, assumed(arch)))


def attention_passes(directed: Directed) -> passes.Passes:
    """Return the passes of a problem of a few rows and keys."""
    case = replace(directed.case(), m=2, n=2)
    return attention_backward(
        Backward.of(case, directed.wrt), "sm80", arch=directed.arch, launches=False
    ).passes


def test_every_tile_has_a_problem() -> None:
    tried = {
        kind_of(one.variant)
        for directed in DIRECTED
        for one in attention_passes(directed).gradients
    }
    assert tried == set(reachable())


CAREFUL = replace(PLAIN, mask="pairs", bias="pairs", bias_dtype="float16", softcap=1.5)


def hide(call: Backward, rows: list[int], keys: list[int]) -> None:
    """Hide rows and keys from everybody: by the mask, by the bias, or in turns by either."""
    mask, bias = call.arrays.mask.numpy(), call.arrays.bias.numpy()
    rng = np.random.default_rng(2)
    mask[...], bias[...] = True, rng.normal(size=bias.shape)
    for axis, hidden in ((0, rows), (1, keys)):
        for number, index in enumerate(hidden):
            masks, biases = (np.moveaxis(x, axis, 0)[index] for x in (mask, bias))
            turn = np.arange(masks.size) % 3 > 0
            by_mask = (True, False, turn)[number % 3]
            masks[...] = np.where(by_mask, False, masks)
            biases[...] = np.where(by_mask, biases, -np.inf)
    do = call.do.numpy()
    do[...] = rng.normal(size=do.shape)
    if call.dlse is not None:
        call.dlse.numpy()[...] = rng.normal(size=call.dlse.shape)


@pytest.mark.parametrize(
    ("arch", "d", "dtypes", "wrt"),
    [
        (90, 20, HALF, (*QKV, "bias", "scale")),
        (90, 128, BRAIN, QKV),
        (90, 256, HALF, ("q", "k")),
        (80, 64, HALF, ("k", "v")),
        (80, 192, HALF, ("k",)),
        (86, 20, BRAIN, ("v",)),
        (86, 256, HALF, ("q",)),
    ],
    ids=str,
)
def test_what_hidden_pairs_hold_changes_no_bit(
    arch: int, d: int, dtypes: tuple[str, str, str], wrt: tuple[str, ...]
) -> None:
    rows, keys = [3, 40, 41, 133], [2, 66, 67, 149]
    call = Backward.of(replace(CAREFUL, d=d, p=d, dtypes=dtypes), wrt)
    hide(call, rows, keys)
    want = run(call, arch=arch)
    call.check(want, "sm80")
    q, k, v = (x.numpy() for x in call.arrays.inputs().values())
    for x, hidden in ((q, rows), (call.do.numpy(), rows), (k, keys), (v, keys)):
        x[hidden] = np.nan
    got = run_in_many_ways(call, ((3, 1, 0), (4, None, 1), (0, 2, 2)), arch=arch)
    for name, x in want.items():
        # A pair's zero may have either sign.
        same = (
            np.array_equal(got[name], x) if name == "bias" else got[name].tobytes() == x.tobytes()
        )
        assert same, f"other bits of d{name}"


@pytest.mark.parametrize(("d", "by"), [(20, "mask"), (20, "bias"), (128, "mask")])
def test_nan_reaches_those_who_see_it_and_no_tile_else(d: int, by: str) -> None:
    """A key that only the rows from 128 on see, and a row that only sees the keys before 128."""
    call = Backward.of(replace(CAREFUL, d=d, p=d), QKV)
    hide(call, [], [])
    seen = np.ones(call.arrays.mask.shape, bool)
    seen[:128, 5] = False
    seen[7, 128:] = False
    if by == "mask":
        call.arrays.mask.numpy()[...] = seen
    else:
        bias = call.arrays.bias.numpy()
        bias[...] = np.where(seen, bias, -np.inf)
    want = run(call)
    call.check(want, "sm80")
    call.arrays.inputs()["k"].numpy()[5] = np.nan
    got = run(call, schedule=3, grid=1)
    # Whoever sees the key has NaN, and the rows that don't have what they had.
    assert np.isnan(got["q"][128:]).all()
    assert got["q"][:128].tobytes() == want["q"][:128].tobytes()
    call.arrays.inputs()["k"].numpy()[5] = 0
    want = run(call)
    call.do.numpy()[7] = np.nan
    got = run(call, schedule=4, grid=2)
    for name in ("k", "v"):
        assert np.isnan(got[name][[*range(5), *range(6, 128)]]).all()
        assert got[name][128:].tobytes() == want[name][128:].tobytes()


@pytest.mark.parametrize(("together", "causal"), [(1, True), (3, True), (3, False)])
def test_entries_that_take_turns_have_their_own_gradients(
    together: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(PLAIN, **HEADS, causal=causal, window=None if causal else (None, 20))
    monkeypatch.setattr(params, "L2_BYTES", together * 150 * 2 * (case.d + case.p))
    call = Backward.of(replace(case, m=150, n=150), QKV)
    call.check(run_in_many_ways(call, MORE_WAYS), "sm80")


SHARED_BIAS = {
    "of all": ("pairs", {}),
    "of a head": ("pairs of a head", {}),
    "of a batch entry": ("pairs", {"batch": (), "kv_heads": 4}),
    "left": ("pairs", {"window": (60, None), "offset": 130}),
    "causal": ("pairs", {"causal": True, "offset": -30}),
    "lengths": ("pairs of a head", {"lengths": "both", "causal": True}),
}


@pytest.mark.parametrize(
    ("name", "d", "dtype"),
    [*((name, 20, "float32") for name in SHARED_BIAS), ("lengths", 128, "float16")],
)
def test_chunks_of_a_shared_bias(
    name: str, d: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "CHUNK_KEYS", 128)
    bias, options = SHARED_BIAS[name]
    case = replace(PLAIN, **{**HEADS, "m": 141, "n": 300, "d": d, "p": d, "bias": bias, **options})
    call = Backward.of(replace(case, bias_dtype=dtype), ("bias",))
    call.check(run_in_many_ways(call, MORE_WAYS), "sm80")


def test_gradients_without_entries_are_zero() -> None:
    call = Backward.of(replace(PLAIN, batch=(0,), squeeze=True), QKV)
    found = run_in_many_ways(call)
    assert found["k"].shape == (150, 20)
    assert not found["k"].any()
    assert not found["v"].any()


@pytest.mark.parametrize("options", [{"offset": -150}, {"offset": -150, "window": (None, 20)}])
@pytest.mark.parametrize("d", [20, 256])
def test_rows_and_keys_that_nobody_sees_have_zeros(d: int, options: dict[str, Any]) -> None:
    options = {"causal": "window" not in options, **options}
    case: Case = replace(PLAIN, d=d, p=d, poison=True, **options)
    call = Backward.of(case, QKV)
    found = run_in_many_ways(call)
    call.check(found, "sm80")
    assert any((x == 0).all(axis=1).any() for x in found.values())
