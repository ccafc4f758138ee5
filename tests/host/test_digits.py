"""The oracle and the NumPy path in float64 beside 50 decimal digits."""

from __future__ import annotations

import numpy as np
import pytest

import cupy_flash as cf
from cupy_flash import reference
from digits import DATA, check, draw


@pytest.mark.parametrize("name", DATA)
def test_the_oracle_has_more_digits_than_it_judges(name: str) -> None:
    exact = reference.attention(*draw(name))
    check(name, exact.out, exact.lse, share=2.0**-9)


@pytest.mark.parametrize("name", DATA)
def test_the_numpy_path_is_within_its_bound(name: str) -> None:
    check(name, *cf.attention(*draw(name), return_lse=True))


@pytest.mark.parametrize("name", DATA)
def test_a_computation_in_float32_is_not(name: str) -> None:
    q, k, v = (x.astype(np.float32) for x in draw(name))
    with pytest.raises(AssertionError, match="is"):
        check(name, *cf.attention(q, k, v, return_lse=True))
