"""The tests of sm80's gradients notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from backward_group_mutants import BACKWARD_GROUP_MUTANTS
from backward_problems import Backward
from backward_shared_mutants import BACKWARD_SHARED_MUTANTS
from backward_sm80_cases import PLAIN
from backward_sm80_memory_mutants import BACKWARD_SM80_MEMORY_MUTANTS
from backward_sm80_mutants import BACKWARD_SM80_MUTANTS
from cupy_flash.backward import params, passes
from emulated_backward import attention_backward
from emulation import run_isolated
from layouts import strided
from option_arrays import placed
from problems import Case
from sampled_params import some
from test_planted_defects import CAUGHT

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

ROWS = replace(PLAIN, n=300)
KEYS = replace(PLAIN, m=300, n=141)
SMALL = replace(PLAIN, m=70, n=75)
HEADS = replace(SMALL, batch=(2,), heads=4, kv_heads=2)
SPLIT = replace(PLAIN, m=200, n=70, d=128, p=128)
SHARED = replace(HEADS, n=300, bias="pairs", causal=True, offset=20)
TURNS = replace(HEADS, batch=(2, 3), m=140, causal=True)
Q, KV, BIAS = ("q",), ("k", "v"), ("bias",)

# The problem, what is asked for, and the GPU that decides on the tiles.
CASES: dict[str, tuple[Case, tuple[str, ...], int]] = {
    "rows": (ROWS, Q, 100),
    "negative scale": (replace(SMALL, scale=-0.4), Q, 100),
    "keys": (KEYS, KV, 100),
    "NaN above": (replace(PLAIN, n=70, causal=True, offset=-70, poison=True), KV, 100),
    "rows in one step": (replace(SMALL, n=140, d=128, p=128), Q, 86),
    "keys in one stage": (
        replace(PLAIN, n=70, d=64, p=64, bias="pairs", bias_dtype="float16"),
        KV,
        80,
    ),
    "split": (SPLIT, KV, 100),
    "split, causal": (replace(SPLIT, causal=True), KV, 100),
    "split in one stage": (replace(SPLIT, mask="pairs"), KV, 100),
    "sums in a split": (replace(SPLIT, m=100, bias="keys"), (*KV, "bias"), 100),
    "mask of keys": (replace(KEYS, m=200, mask="pairs"), KV, 100),
    "bias of rows": (replace(PLAIN, n=304, bias="pairs", bias_dtype="float16"), Q, 100),
    "heads": (HEADS, ("k",), 100),
    "rows of heads": (HEADS, Q, 100),
    "batch shares": (replace(TURNS, squeeze=True), ("k",), 100),
    "entries in turns": (TURNS, Q, 100),
    "no keys": (replace(SMALL, causal=True, offset=-200), Q, 100),
    "no entries": (replace(SMALL, batch=(0,), squeeze=True), KV, 100),
    "hidden NaN": (replace(PLAIN, mask="pairs"), Q, 100),
    "hidden NaN of dO": (replace(PLAIN, mask="pairs"), ("v",), 100),
    "hidden NaN in one step": (replace(PLAIN, d=96, p=96, mask="pairs"), Q, 86),
    "bias hides NaN": (replace(PLAIN, bias="pairs"), Q, 100),
    "scale of hidden NaN": (replace(SMALL, mask="pairs"), ("scale",), 100),
    "shared bias hides NaN": (replace(HEADS, bias="pairs"), BIAS, 100),
    "shared bias": (SHARED, BIAS, 100),
    "shared bias of a window": (
        replace(SHARED, causal=False, window=(20, 20), offset=230),
        BIAS,
        100,
    ),
    "own pairs": (
        replace(SMALL, m=140, n=300, bias="pairs", causal=True, offset=20),
        ("q", "bias"),
        100,
    ),
    "own pairs of a window": (
        replace(SMALL, n=300, bias="pairs", window=(20, 20), offset=230),
        ("q", "bias"),
        100,
    ),
    "scale": (replace(PLAIN, n=75, scale=-0.4), ("scale",), 100),
    "causal": (replace(PLAIN, causal=True), Q, 100),
    "causal keys": (replace(KEYS, causal=True, offset=0), KV, 100),
    "window": (replace(KEYS, window=(60, 20), offset=0), KV, 100),
    "window of keys": (replace(KEYS, batch=(2,), window=(60, 20), lengths="q"), KV, 100),
    "softcap": (replace(SMALL, softcap=1.5), Q, 100),
    "keys of a bias": (replace(SMALL, bias="keys", softcap=1.5), BIAS, 100),
    "pairs under a cap": (replace(SMALL, bias="pairs", softcap=1.5), ("q", "bias"), 100),
    "alibi": (replace(HEADS, n=200, alibi="heads", offset=9), ("alibi_slopes",), 100),
    "alibi of keys": (replace(KEYS, alibi="one", offset=9), KV, 100),
    "slopes": (replace(HEADS, alibi="full", offset=9), ("alibi_slopes",), 100),
    "dlse": (SMALL, Q, 100),
    "wide dO": (SMALL, Q, 100),
    "groups of rows": (replace(PLAIN, n=300, d=64, p=64), Q, 90),
    "groups of keys": (replace(PLAIN, m=300, d=64, p=64), KV, 90),
    "groups at 128": (replace(SMALL, n=140, d=128, p=128), ("q", "k", "v"), 90),
    "two groups": (replace(PLAIN, m=70, d=128, p=128, bias="pairs"), KV, 90),
    "groups, NaN above": (replace(PLAIN, d=64, p=64, causal=True, poison=True), ("q", "k"), 90),
    "groups, causal": (replace(PLAIN, d=64, p=64, causal=True, offset=9), ("q", "k", "v"), 90),
    "groups, hidden NaN": (replace(PLAIN, d=64, p=64, mask="pairs"), Q, 90),
    "groups of a shared bias": (replace(SHARED, d=64, p=64), BIAS, 90),
    "sinks": (replace(HEADS, sinks="heads", causal=True, offset=-30), ("sinks",), 100),
}
# Thread schedule, blocks of the grid, their order.
WAYS = ((0, None, 0), (3, 1, 0), (4, 2, 1))


def build(name: str) -> Backward:
    case, wrt, _ = CASES[name]
    call = Backward.of(case, wrt)
    arrays = call.arrays
    rng = np.random.default_rng(5)
    if name in ("entries in turns", "batch shares"):
        # Batch axes that don't merge.
        shared = "k" if name == "entries in turns" else "v"
        x = getattr(arrays, shared)
        mixed = strided((1, 3, *x.shape[-3:]), x.buffer.dtype, "contiguous")
        mixed.numpy()[...] = rng.normal(size=mixed.shape)
        setattr(arrays, shared, mixed)
    if name == "dlse":
        call.dlse = placed(rng.normal(size=case.m).astype(np.float32), "contiguous")
    if arrays.alibi_slopes is not None:
        slopes = arrays.alibi_slopes.numpy()
        slopes[...] = np.linspace(0.5, 0.05, slopes.size).reshape(slopes.shape)
    if arrays.sinks is not None:
        arrays.sinks.numpy()[...] = np.linspace(-1, 2, 4)
    if "hide" in name or "hidden" in name:
        hide(call, rng)
    return call


def hide(call: Backward, rng: np.random.Generator) -> None:
    """Put NaN into a row and a key that nobody looks at, or into dO's row alone."""
    arrays, row, key = call.arrays, 7, 9
    if arrays.mask is not None:
        mask = arrays.mask.numpy()
        mask[...] = rng.random(mask.shape) < 0.5
        # Some keys only the last row sees.
        mask[:, 20:40] = np.arange(mask.shape[0])[:, None] == mask.shape[0] - 1
        mask[row], mask[:, key] = False, False
    if arrays.bias is not None:
        bias = arrays.bias.numpy()
        bias[...] = rng.normal(size=bias.shape)
        bias[row], bias[:, key] = -np.inf, -np.inf
    do = call.do.numpy()
    do[...] = rng.normal(size=do.shape)
    if call.dlse is not None:
        call.dlse.numpy()[...] = rng.normal(size=call.dlse.shape)
    do[..., row, :] = np.nan
    if call.wrt != ("v",):
        q, k, v = (x.numpy() for x in arrays.inputs().values())
        q[..., row, :], k[..., key, :], v[..., key, :] = np.nan, np.nan, np.nan


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        call, arch = build(name), CASES[name][2]
        case = call.arrays.case
        # Five entries take turns, and a block has few keys of a shared bias.
        l2 = 5 * case.n * 2 * (case.d + case.p)
        with (
            mock.patch.object(params, "L2_BYTES", l2),
            mock.patch.object(passes, "CHUNK_KEYS", 128),
        ):
            for schedule, grid, order in WAYS:
                result = attention_backward(
                    call,
                    kernel,
                    schedule=schedule,
                    grid=grid,
                    block_order=order,
                    folder=folder,
                    strict=False,
                    arch=arch,
                )
                call.check(result.found, kernel)


@pytest.mark.parametrize("name", some(CASES, 3))
def test_kernels_without_a_defect_pass(name: str) -> None:
    assert run_isolated(battery, "sm80", [name], None) == "passed"


MUTANTS = (
    BACKWARD_SM80_MUTANTS
    | BACKWARD_SM80_MEMORY_MUTANTS
    | BACKWARD_GROUP_MUTANTS
    | {f"shared: {name}": mutant for name, mutant in BACKWARD_SHARED_MUTANTS.items()}
)


@pytest.mark.parametrize("name", some(MUTANTS, 3))
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
