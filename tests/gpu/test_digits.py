"""float64's kernels on a GPU beside 50 decimal digits."""

from __future__ import annotations

import pytest

import cupy_flash as cf
from digits import DATA, check, draw

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("kernel", ["naive", "simt"])
def test_rows_are_within_their_bounds(kernel: str, name: str) -> None:
    import cupy

    q, k, v = map(cupy.asarray, draw(name))
    out, lse = cf.attention(q, k, v, kernel=kernel, return_lse=True)
    check(name, out.get(), lse.get())
