"""Random problems through the sm80 kernel on the GPU against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings

from gpu_attention import attention
from strategies import Case, Coverage, cases, own_draws
from tolerance import check

pytestmark = pytest.mark.gpu

SM80 = "sm80"
EXAMPLES = 300


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_problems_are_within_their_bounds(
    dtype: str, record_property: Callable[[str, object], None]
) -> None:
    coverage = Coverage()
    worst = 0.0

    @own_draws(f"{SM80} {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(cases(dtype, rows=300, dims=(32, 64, 96, 128, 192, 256), mixed=False, batch_axes=6))
    def one(case: Case) -> None:
        nonlocal worst
        coverage.add(case)
        arrays = case.build()
        worst = max(worst, check(arrays, *attention(arrays, SM80), SM80))

    one()
    record_property("drawn", coverage.report(f"worst error / bound: {worst:.3f}"))
    coverage.check(EXAMPLES * 9 // 10)
