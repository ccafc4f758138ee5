"""The bugs that other libraries had in gradients, on the emulated kernels."""

from __future__ import annotations

from typing import Any

import pytest

from emulated_gradients import emulated_path
from gradient_bugs import cases
from problems import KERNELS

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Each builds kernels of its own: here the kernels take turns, on a GPU every one has all.
EVERY_CASE = [
    pytest.param(kernel, *case.values, id=f"{case.id}-{kernel}")
    for turn, kernel in enumerate(KERNELS)
    for case in cases(kernel, largest="small")[turn :: len(KERNELS)]
]


@pytest.mark.parametrize(("kernel", "case", "arguments"), EVERY_CASE)
def test_bug(kernel: str, case: Any, arguments: tuple[Any, ...]) -> None:
    case(emulated_path(kernel), *arguments)
