"""Random problems of every shape, layout, dtype, option and value on the GPU against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from drawn import Coverage
from gpu_attention import attention, family
from problems import DTYPES, KERNELS, Case
from strategies import FOUND, cases, own_draws
from tolerance import check

pytestmark = pytest.mark.gpu


# Together 2,400 problems through naive and simt, and 300 through sm80, on each run.
EXAMPLES = 300


@pytest.mark.parametrize("case", FOUND, ids=lambda case: f"{case.dtypes[0]} {case.values}")
@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_what_random_draws_found_stays_right(kernel: str | None, case: Case) -> None:
    arrays = case.build()
    kernel = kernel if kernel and case.suits(kernel) else None
    check(arrays, *attention(arrays, kernel), family(arrays, kernel))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["naive", "simt"])
def test_random_problems_are_within_their_bounds(
    kernel: str, dtype: str, record_property: Callable[[str, object], None]
) -> None:
    coverage = Coverage()
    worst = 0.0

    @own_draws(f"{kernel} {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(
        cases(
            dtype,
            # The reference of float64 is long double, without BLAS: it takes most of the time.
            rows=160 if dtype == "float64" else 300,
            dims=(32, 64, 128, 256) if kernel == "simt" else (32, 128, 300),
            batch_axes=6,
        )
    )
    def one(case: Case) -> None:
        nonlocal worst
        coverage.add(case)
        arrays = case.build()
        worst = max(worst, check(arrays, *attention(arrays, kernel)))

    one()
    record_property("drawn", coverage.report(f"worst error / bound {worst:.3f}"))
    coverage.check(EXAMPLES * 9 // 10, lengths=("None", "both", "q", "k"))


# Buckets of head dims, options and alignment make so many kernels that compiling them, more than a
# second each, is most of the time.
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_problems_on_tensor_cores_are_within_their_bounds(
    dtype: str, record_property: Callable[[str, object], None]
) -> None:
    coverage = Coverage()
    worst = 0.0

    @own_draws(f"sm80 {dtype}")
    @settings(max_examples=EXAMPLES // 2)
    @given(
        cases(
            dtype,
            rows=300,
            dims=(64, 128, 256),
            lengths=(None, "both"),
            length_dtypes=("int32",),
            mixed=False,
            batch_axes=6,
        )
    )
    def one(case: Case) -> None:
        nonlocal worst
        coverage.add(case)
        arrays = case.build()
        worst = max(worst, check(arrays, *attention(arrays, "sm80"), "sm80"))

    one()
    record_property("drawn", coverage.report(f"worst error / bound {worst:.3f}"))
    coverage.check(EXAMPLES // 2 * 9 // 10, lengths=("None", "both"))
