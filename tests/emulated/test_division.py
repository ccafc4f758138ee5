"""Division in 32 bits, and of numbers that don't fit."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_flash.source import flatten
from tiny_kernels import PRELUDE, kernel_of, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

BODY = """
for (int j = i; j < p.n; j += 32) {
  store(p.y + j, quotient(load(p.x + 2 * j), load(p.x + 2 * j + 1)));
}
"""


def test_quotients_in_32_bits_and_beyond() -> None:
    edges = [1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**62, 2**63 - 1]
    pairs = np.array([(number, divisor) for number in (0, *edges) for divisor in edges], np.int64)
    kernel = kernel_of(BODY, np.int64, PRELUDE + flatten("division.cuh"))
    y = np.zeros(len(pairs), np.int64)
    launch(kernel, pairs.reshape(-1), y, n=len(pairs))
    np.testing.assert_array_equal(y, pairs[:, 0] // pairs[:, 1])
