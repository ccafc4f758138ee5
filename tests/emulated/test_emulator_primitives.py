"""Each primitive's host twin against its definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from emulation import LANDINGS, SCHEDULES
from primitives import EXP2, EXPONENTIAL, PRIMITIVES, emulated

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]


@pytest.mark.parametrize("name", PRIMITIVES)
def test_primitive_computes_its_definition(name: str) -> None:
    primitive = PRIMITIVES[name]
    expected = primitive.expected()
    for flush in (True, False):
        np.testing.assert_array_equal(emulated(primitive, flush_subnormals=flush), expected)


@pytest.mark.parametrize(
    "name", ["load_matrix", "load_matrix_transposed", "copy_async of 16 bytes"]
)
@pytest.mark.parametrize("landing", LANDINGS.values(), ids=LANDINGS.keys())
def test_result_is_the_same_in_every_order(name: str, landing: int) -> None:
    primitive = PRIMITIVES[name]
    expected = primitive.expected()
    for schedule in SCHEDULES.values():
        y = emulated(primitive, schedule=schedule, landing=landing)
        np.testing.assert_array_equal(y, expected)


def test_exp2_is_the_host_library_s_and_flushes() -> None:
    y, nearest = (words.view(np.float32) for words in (emulated(EXP2), EXP2.expected()))
    np.testing.assert_array_max_ulp(y, nearest, 1)


def test_the_exponential_of_float64_is_off_by_less_than_one_unit() -> None:
    y, nearest = (
        words.view(np.float64) for words in (emulated(EXPONENTIAL), EXPONENTIAL.expected())
    )
    np.testing.assert_array_max_ulp(y, nearest, 1)
    assert (y == nearest).mean() > 0.8
