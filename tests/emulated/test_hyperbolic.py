"""tanh of a softcap against NumPy in float64: errors in units of the last place, both its ways."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from cupy_flash.source import flatten
from tiny_kernels import PRELUDE, kernel_of, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

Array = np.ndarray[Any, Any]
# Up to here the polynomial is tanh.
BOUND = np.float32(0.35)
BODY = """
for (int j = i; j < p.n; j += 32) {
  store(p.y + 2 * j, hyperbolic_tangent(load(p.x + j)));
  store(p.y + 2 * j + 1, small_hyperbolic_tangent(load(p.x + j)));
}
"""


@functools.cache
def both(flush_subnormals: bool = True) -> tuple[Array, Array, Array]:
    """Return x in order, all of it >= 0, its tanh, and what the polynomial has for it."""
    small = np.linspace(0, BOUND, 20_001, dtype=np.float32)
    large = np.geomspace(BOUND, 120, 20_001, dtype=np.float32)
    around = np.arange(-50, 51) + BOUND.view(np.int32)
    tiny = np.geomspace(1e-37, 1e-3, 2_001, dtype=np.float32)
    x = np.unique(np.concatenate([small, large, tiny, around.astype(np.int32).view(np.float32)]))
    return (x, *computed(x, flush_subnormals))


def computed(x: Array, flush_subnormals: bool = True) -> tuple[Array, Array]:
    kernel = kernel_of(BODY, prelude=PRELUDE + flatten("hyperbolic.cuh"))
    y = np.full(2 * x.size, np.nan, np.float32)
    launch(kernel, x, y, n=x.size, flush_subnormals=flush_subnormals)
    return y[::2], y[1::2]


def ulps(y: Array, x: Array) -> Array:
    """Return the error of tanh(x) in units of the last place of the exact result."""
    exact = np.tanh(x.astype(np.float64))
    return np.abs(y - exact) / np.spacing(exact.astype(np.float32)).astype(np.float64)


@pytest.mark.parametrize("flush_subnormals", [True, False])
def test_errors_are_a_few_units(flush_subnormals: bool) -> None:
    x, y, _ = both(flush_subnormals)
    errors = ulps(y, x)
    assert errors[x <= BOUND].max() <= 2
    assert errors[x > BOUND].max() <= 8


def test_up_to_the_bound_both_ways_have_the_same_bits() -> None:
    x, y, polynomial = both()
    near = x <= BOUND
    np.testing.assert_array_equal(y[near].view(np.int32), polynomial[near].view(np.int32))
    beyond = x > 2 * BOUND
    assert (ulps(polynomial, x)[beyond] > 8).all(), "beyond it the polynomial is no tanh"


def test_it_is_odd() -> None:
    x, *y = both()
    for way, mirrored in zip(y, computed(-x), strict=True):
        np.testing.assert_array_equal(mirrored, -way)


def test_it_hardly_ever_falls_and_stays_within_one() -> None:
    x, y, _ = both()
    falls = np.maximum(y[:-1] - y[1:], 0) / np.spacing(y[1:])
    assert falls.max() <= 8
    assert (falls > 0).mean() < 0.25
    steps = x[1:] > x[:-1] * np.float32(1 + 2.0**-18)
    assert (falls[steps] == 0).all() or falls[steps].max() <= 2
    assert y.max() == 1


def test_numbers_at_the_ends() -> None:
    x = np.array([np.inf, -np.inf, 1e30, -1e30, 44.5, 0.0, np.nan], np.float32)
    y, _ = computed(x)
    want = np.array([1, -1, 1, -1, 1, 0.0], np.float32)
    np.testing.assert_array_equal(y[:-1], want)
    assert np.isnan(y[-1])
