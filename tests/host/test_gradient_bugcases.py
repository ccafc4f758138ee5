"""The bugs that other libraries had in gradients, on the NumPy path."""

from __future__ import annotations

import pytest

from gradient_bugs import cases
from numpy_gradients import NUMPY

NUMBERS = (
    *(7, 8, 9, 10, 11, 12, 13, 15, 16, 25, 27, 28, 29, 31, 32, 33, 34, 37, 42, 43, 45, 47, 49, 50),
    *(54, 55, 56, 58, 60, 61, 62, 63, 64, 68, 69, 72, 74, 75, 90, 98, 99, 101, 102, 103, 104),
    *(106, 107, 108, 109, 134),
)


@pytest.mark.parametrize(("case", "arguments"), cases(None, largest="medium"))
def test_bug(case, arguments):
    case(NUMPY, *arguments)


def test_every_number_has_a_case():
    assert {int(case.id.split("-")[0]) for case in cases(None)} == set(NUMBERS)
