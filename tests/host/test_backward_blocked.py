"""The NumPy path's gradients on random problems of every kind, against the oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from backward_calls import compare
from drawn import Coverage
from problems import DTYPES
from strategies import cases, own_draws

EXAMPLES = 200


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_problems_are_within_their_bounds(dtype, record_property):
    coverage = Coverage()
    ratios = []

    @own_draws(f"backward {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(cases(dtype, rows=50, dims=(24,)))
    def one(case):
        coverage.add(case)
        ratios.append(compare(case))

    one()
    record_property("drawn", coverage.report(f"worst error / bound {max(ratios):.3f}"))
