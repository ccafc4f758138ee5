"""The bugs that other libraries had in gradients, on every kernel."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_gradients import gpu_path
from gradient_bugs import cases
from problems import KERNELS

pytestmark = pytest.mark.gpu

EVERY_CASE = [
    pytest.param(kernel, *case.values, id=f"{case.id}-{kernel}")
    for kernel in KERNELS
    for case in cases(kernel)
]


@pytest.mark.parametrize(("kernel", "case", "arguments"), EVERY_CASE)
def test_bug(kernel: str, case: Any, arguments: tuple[Any, ...]) -> None:
    case(gpu_path(kernel), *arguments)
