"""float64's kernels beside 50 decimal digits: the tensor cores', FMA's and the naive one."""

from __future__ import annotations

import pytest

from digits import DATA, check, draw
from test_probes import emulated

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize(("kernel", "arch"), [("naive", 90), ("simt", 90), ("simt", 86)])
def test_rows_are_within_their_bounds(kernel: str, arch: int, name: str) -> None:
    check(name, *emulated(kernel, arch)(*draw(name)))
