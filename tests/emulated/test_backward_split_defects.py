"""Tests of float32 gradients by warpgroups notice defects: each is planted and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backward_problems import Backward
from backward_split_cases import PLAIN
from backward_split_mutants import BACKWARD_SPLIT_MUTANTS
from emulated_backward import attention_backward
from emulation import run_isolated
from problems import Case
from sampled_params import some
from test_planted_defects import CAUGHT

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

HEADS = replace(PLAIN, batch=(2,), heads=4, kv_heads=2, m=70, n=75)
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "rows": (PLAIN, ("q",)),
    "keys": (PLAIN, ("k", "v")),
    "k": (PLAIN, ("k",)),
    "v": (replace(PLAIN, d=100, p=120), ("v",)),
    "few keys": (replace(PLAIN, m=70, n=19), ("q",)),
    "heads": (HEADS, ("k", "v")),
    "many keys": (replace(PLAIN, m=20, n=600), ("q",)),
    "hidden NaN": (replace(PLAIN, m=70, n=75, mask="pairs"), ("q",)),
    "hidden NaN of dO": (replace(PLAIN, m=70, n=75, mask="pairs"), ("v",)),
    "hidden NaN of many keys": (replace(PLAIN, m=20, n=600, mask="pairs"), ("q",)),
    "NaN to the left": (replace(PLAIN, window=(20, 20), offset=30, poison=True), ("q",)),
    "NaN above": (replace(PLAIN, causal=True, offset=-30, poison=True), ("k",)),
    "slopes of heads": (replace(HEADS, alibi="heads", squeeze=True), ("q", "alibi_slopes")),
    "a large row": (replace(PLAIN, scale=1.0), ("q",)),
}
# Thread schedule, blocks of the grid, their order.
WAYS = ((0, None, 0), (3, 1, 0), (4, 2, 1), (5, 2, 2))


def build(name: str) -> Backward:
    case, wrt = CASES[name]
    call = Backward.of(case, wrt)
    q, k, v = (x.numpy() for x in call.arrays.inputs().values())
    do = call.do.numpy()
    if name.startswith("hidden NaN"):
        # A row and a key that nobody looks at, in the first span.
        mask = call.arrays.mask.numpy()
        mask[...] = True
        mask[7], mask[:, 9] = False, False
        do[...] = np.random.default_rng(5).normal(size=do.shape)
        do[7] = np.nan
        if call.dlse is not None:
            call.dlse.numpy()[...] = 1
        if call.wrt != ("v",):
            q[7], k[9], v[9] = np.nan, np.nan, np.nan
    if name == "a large row":
        # Beyond what bfloat16 rounds to its largest number; the scores stay as they are.
        q[77, 0], k[:, 0] = np.finfo(np.float32).max, 0
    return call


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        call = build(name)
        clean = attention_backward(call, kernel).found
        for schedule, grid, order in WAYS:
            result = attention_backward(
                call,
                kernel,
                schedule=schedule,
                grid=grid,
                block_order=order,
                folder=folder,
                strict=False,
            )
            call.check(result.found, kernel)
            # What isn't finite is computed again, which mends defects that make it so.
            for gradient, x in clean.items():
                assert result.found[gradient].tobytes() == x.tobytes(), f"{name}: d{gradient}"


@pytest.mark.parametrize("name", CASES)
def test_kernels_without_a_defect_pass(name: str) -> None:
    assert run_isolated(battery, "simt", [name], None) == "passed"


@pytest.mark.parametrize("name", some(BACKWARD_SPLIT_MUTANTS, 3))
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = BACKWARD_SPLIT_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
