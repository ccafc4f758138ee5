"""Gradients of random problems on the GPU, against their formulas in float64."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cupy_flash
from backward_problems import Backward
from cover import cover
from differences import COMBINED, call_of, combined, excess, names_of, of_results
from drawn import Coverage
from gpu_gradients import attention_backward
from layouts import OUT_LAYOUTS
from problems import KERNEL_DTYPES, KERNELS, Case
from strategies import cases, few_kinds, own_draws
from test_backward_problems import of_one_dtype

pytestmark = pytest.mark.gpu

EXAMPLES = 150
DIMS = {"naive": (32, 300), "simt": (32, 64, 128, 256), "sm80": (64, 128, 256)}
KERNELS_AND_DTYPES = [(kernel, dtype) for kernel in KERNELS for dtype in KERNEL_DTYPES[kernel]]


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_gradients_of_random_problems_are_within_their_bounds(
    kernel: str, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    coverage = Coverage()
    wanted: Counter[str] = Counter()
    worst = 0.0

    @own_draws(f"gradients on a GPU {kernel} {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(
        cases(
            dtype,
            rows=100 if dtype == "float64" else 200,
            dims=DIMS[kernel],
            mixed=kernel != "sm80",
            # Kinds, as each option makes kernels of its own: compiling takes most of the time.
            options=few_kinds(),
        )
    )
    def one(case: Case) -> None:
        nonlocal worst
        if case.values == "large" and not of_one_dtype(case):
            # What rounding leaves of such numbers is infinite in a narrower dtype.
            case = replace(case, values="normal")
        coverage.add(case)
        pick = random.Random(case.seed + 1)
        call = Backward.of(case)
        wanted.update(call.wrt)
        layouts = None
        if pick.random() < 0.7:
            layouts = {name: pick.choice(OUT_LAYOUTS) for name in (*"qkv", "bias")}
        worst = max(worst, call.check(attention_backward(call, kernel, layouts), kernel))

    one()
    listing = ", ".join(f"{name} {count}" for name, count in sorted(wanted.items()))
    report = coverage.report(f"worst error / bound {worst:.3f}")
    record_property("drawn", f"{report}\n  gradients: {listing}")
    assert coverage.total >= EXAMPLES * 9 // 10
    missing = {*"qkv", "bias", "sinks", "alibi_slopes", "scale"} - {*wanted}
    assert not missing, f"no problem wanted {missing}"


def results_of(kernel: str) -> Any:
    import cupy

    def results(call: dict[str, Any]) -> tuple[Any, Any]:
        moved = {
            name: cupy.asarray(x) if isinstance(x, np.ndarray) and name != "scale" else x
            for name, x in call.items()
        }
        if "scale" in moved:
            moved["scale"] = float(moved["scale"])
        matrices = [moved.pop(name) for name in "qkv"]
        out, lse = cupy_flash.attention(*matrices, **moved, return_lse=True, kernel=kernel)
        return out.get(), lse.get()

    return results


def gradients_of(
    kernel: str, call: dict[str, Any], do: Any, dlse: Any, wrt: tuple[str, ...]
) -> list[Any]:
    import cupy

    moved = {name: cupy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in call.items()}
    matrices = [moved.pop(name) for name in "qkv"]
    out, lse = cupy_flash.attention(*matrices, **moved, return_lse=True, kernel=kernel)
    found = cupy_flash.attention_backward(
        *(cupy.asarray(do), *matrices, out, lse),
        dlse=cupy.asarray(dlse),
        wrt=wrt,
        kernel=kernel,
        **moved,
    )
    return [x.get() for x in found]


@pytest.mark.parametrize("kernel", ["naive", "simt"])
def test_pairs_of_options_by_differences_of_the_kernels_themselves(kernel: str) -> None:
    moved = dict.fromkeys(("q", "k", "v", "bias", "sinks", "alibi_slopes", "scale"), 0)
    results = results_of(kernel)
    for row in cover(COMBINED):
        case = combined(row, 0)
        call = call_of(case)
        rng = np.random.default_rng(case.seed)
        do, dlse = of_results(rng, call)
        names = names_of(call)
        for name, gradient in zip(names, gradients_of(kernel, call, do, dlse, names), strict=True):
            assert np.isfinite(gradient).all(), case
            directions = rng.choice((-1.0, 0.5, 1.0), (2, *gradient.shape))
            off = excess(call, do, dlse, name, gradient, directions, results)
            assert off <= 0, (name, off, case)
            moved[name] += np.abs(gradient).max(initial=0) > 1e-3
    # The others have no visible key, or a sink beyond all scores.
    assert min(moved.values()) >= 3, moved
