"""Gradients of random problems through the emulated kernels, against their formulas."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings

from backward_problems import Backward
from emulated_attention import some_schedule
from emulated_backward import attention_backward
from layouts import OUT_LAYOUTS
from problems import Case
from strategies import cases, few_kinds, own_draws

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

KERNELS = ("naive", "simt")
# How simt multiplies float32 depends on them, and float64.
SIMT_ARCHES = (90, 80, 86)


@dataclass(frozen=True)
class Family:
    """Problems whose kernels take a bounded number of builds: some four each, of 0.3 to 2 s."""

    dtypes: tuple[str, ...]
    dims: tuple[int, ...]
    examples: int
    rows: int = 80
    kernels: tuple[str, ...] = KERNELS


FAMILIES = {
    "every dtype": Family(("float16", "bfloat16", "float32", "float64"), (32,), 2),
    "wide": Family(("float32", "float64"), (64, 128, 256), 1, rows=40),
    "warpgroups": Family(("float32",), (64, 128), 3, rows=150, kernels=("simt",)),
    "tensor cores": Family(("float16", "bfloat16"), (32, 64, 128), 3, rows=150, kernels=("sm80",)),
}


def of_one_dtype(case: Case) -> bool:
    """Whether all gradients have one dtype."""
    options = (
        (case.bias, case.bias_dtype),
        (case.alibi, case.alibi_dtype),
        (case.sinks, case.sinks_dtype),
    )
    return len({*case.dtypes, *(dtype for given, dtype in options if given)}) == 1


@pytest.mark.parametrize(
    ("kernel", "name"),
    [(kernel, name) for name, family in FAMILIES.items() for kernel in family.kernels],
)
def test_gradients_of_random_problems_are_within_their_bounds(
    kernel: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    family = FAMILIES[name]
    worst = dict.fromkeys(family.dtypes, 0.0)
    total = 0

    def draw(dtype: str) -> None:
        @own_draws(f"gradients {kernel} {name} {dtype}")
        @settings(max_examples=family.examples)
        @given(
            cases(
                dtype,
                rows=family.rows,
                dims=family.dims,
                options=few_kinds(),
                mixed=kernel != "sm80",
            )
        )
        def one(case: Case) -> None:
            nonlocal total
            total += 1
            if case.values == "large" and not of_one_dtype(case):
                # What rounding leaves of such numbers is infinite in a narrower dtype.
                case = replace(case, values="normal")
            pick = random.Random(case.seed + 1)
            call = Backward.of(case)
            result = attention_backward(
                call,
                kernel,
                schedule=some_schedule(case.seed),
                grid=pick.choice((None, 1, 2)),
                block_order=pick.choice((0, 1, 2)),
                layouts={argument: pick.choice(OUT_LAYOUTS) for argument in "qkv"},
                arch=90 if kernel != "simt" or name == "warpgroups" else pick.choice(SIMT_ARCHES),
            )
            worst[dtype] = max(worst[dtype], call.check(result.found, kernel))

        one()

    for dtype in family.dtypes:
        draw(dtype)
    assert total >= len(family.dtypes) * family.examples * 8 // 10
    ratios = ", ".join(f"{dtype} {ratio:.3f}" for dtype, ratio in worst.items())
    record_property("drawn", f"{total} problems of gradients, worst error / bound: {ratios}")
