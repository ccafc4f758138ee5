"""The tests of gradients notice defects: each is planted in the kernels and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backward_mutants import BACKWARD_MUTANTS
from backward_problems import Backward
from emulated_backward import attention_backward
from emulated_gradients import emulated_path
from emulation import run_isolated
from gradient_probes import PROBES
from problems import Case
from test_planted_defects import CAUGHT, arch_of

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# More than a tile on each side, and no multiple of anything.
PLAIN = Case((), None, None, 75, 70, 20, 24, ("float32",) * 3, seed=1)
HEADS = Case((2,), 4, 2, 37, 35, 20, 24, ("float32",) * 3, seed=2)
QKV = ("q", "k", "v")
CASES: dict[str, tuple[Case, tuple[str, ...]]] = {
    "plain": (replace(PLAIN, scale=0.3), QKV),
    "heads": (HEADS, QKV),
    "wide": (replace(PLAIN, m=20, d=100, p=120), QKV),
    "softcap": (replace(PLAIN, softcap=1.5), QKV),
    "large": (replace(PLAIN, values="large", n=30, scale=2.0), QKV),
    "mask": (replace(PLAIN, mask="pairs"), QKV),
    "hidden NaN": (replace(PLAIN, mask="pairs"), QKV),
    "hidden NaN of dO": (replace(PLAIN, mask="pairs"), QKV),
    # Of more than two spans the last one isn't full.
    "many rows": (replace(PLAIN, m=600, n=20, scale=0.3), QKV),
    "many keys": (replace(PLAIN, m=20, n=600, scale=0.3), QKV),
    "hidden NaN of many rows": (replace(PLAIN, m=600, n=20, mask="pairs"), QKV),
    "scale": (replace(PLAIN, scale=0.3), ("scale",)),
    "alibi": (replace(HEADS, alibi="heads", offset=9), ("alibi_slopes",)),
    "slopes of heads": (replace(HEADS, alibi="heads", squeeze=True), ("q", "alibi_slopes")),
    "keys of a bias": (replace(PLAIN, bias="keys", softcap=1.5), ("bias",)),
    "shared bias": (replace(HEADS, m=9, n=150, bias="pairs", causal=True, offset=20), ("bias",)),
}


def build(name: str) -> Backward:
    call = Backward.of(*CASES[name])
    if name.startswith("hidden NaN"):
        # A row and a key that nobody looks at, of many in the first span.
        mask = call.arrays.mask.numpy()
        mask[...] = True
        mask[7], mask[:, 9] = False, False
        q, k, v = (x.numpy() for x in call.arrays.inputs().values())
        do = call.do.numpy()
        do[...] = np.random.default_rng(5).normal(size=do.shape)
        do[7] = np.nan
        if name != "hidden NaN of dO":
            q[7], k[9], v[9] = np.nan, np.nan, np.nan
    return call


def battery(kernel: str, cases: Sequence[str], folder: Path | None) -> None:
    for name in cases:
        if name in PROBES:
            path = emulated_path(kernel, folder, strict=False, arch=arch_of(kernel))
            PROBES[name](path, "float32", 20, 24)
            continue
        call = build(name)
        for schedule, grid in ((0, None), (3, 1), (4, 1)):
            result = attention_backward(
                call,
                kernel,
                arch=arch_of(kernel),
                schedule=schedule,
                folder=folder,
                strict=False,
                grid=grid,
            )
            call.check(result.found)


@pytest.mark.parametrize("kernel", ["naive", "simt"])
def test_kernels_without_a_defect_pass(kernel: str) -> None:
    assert run_isolated(battery, kernel, [*CASES, "many equal terms"], None) == "passed"


@pytest.mark.parametrize("name", BACKWARD_MUTANTS)
def test_defect_is_caught(name: str, tmp_path: Path) -> None:
    verdict = BACKWARD_MUTANTS[name].verdict(battery, tmp_path / "kernels_cu")
    print(verdict)
    assert verdict.startswith(CAUGHT), verdict
