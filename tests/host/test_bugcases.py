"""The bugs that other libraries had, on the NumPy path."""

from __future__ import annotations

from functools import partial

import pytest

from bugcases import Path, cases
from cupy_flash import attention

# BLAS chooses another order of sums for other strides and sizes.
NUMPY = Path(partial(attention, return_lse=True), family=None)

NUMBERS = (
    *(1, 3, 11, 12, 25, 32, 33, 54, 55, 61, 62, 63, 66, 68, 69, 70, 74, 75, 89, 91),
    *(98, 99, 103, 104, 106, 131, 134),
)


@pytest.mark.parametrize(("case", "arguments"), cases(None))
def test_bug(case, arguments):
    case(NUMPY, *arguments)


def test_every_number_has_a_case():
    assert {int(case.id.split("-")[0]) for case in cases(None)} == set(NUMBERS)
