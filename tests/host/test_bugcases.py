"""The bugs that other libraries had, on the NumPy path."""

from __future__ import annotations

from functools import partial

import pytest

from bugcases import Path, cases
from cupy_flash import attention

# BLAS chooses another order of sums for other strides and sizes.
NUMPY = Path(partial(attention, return_lse=True), family=None)

NUMBERS = (
    *(1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 20, 25, 27, 28, 29, 31),
    *(32, 33, 34, 35, 37, 39, 41, 42, 43, 45, 49, 50),
    *(54, 55, 58, 60, 61, 62, 63, 66, 68, 69, 70, 74, 75, 89, 91),
    *(98, 99, 102, 103, 104, 106, 131, 134),
)


@pytest.mark.parametrize(("case", "arguments"), cases(None))
def test_bug(case, arguments):
    case(NUMPY, *arguments)


def test_every_number_has_a_case():
    assert {int(case.id.split("-")[0]) for case in cases(None)} == set(NUMBERS)
