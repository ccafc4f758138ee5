"""The bugs that other libraries had, on every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupy_flash
from bugcases import Path, cases
from problems import KERNELS

pytestmark = pytest.mark.gpu


EVERY_CASE = [
    pytest.param(kernel, *case.values, id=f"{case.id}-{kernel}")
    for kernel in KERNELS
    for case in cases(kernel)
]


class Memory:
    """The arrays of one call on the GPU: every stride kept, and what shares memory still does."""

    def __init__(self) -> None:
        self.buffers: dict[int, tuple[Any, Any]] = {}

    def move(self, x: Any) -> Any:
        import cupy

        if not isinstance(x, np.ndarray):
            return x
        base = x
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert base.flags.forc
        if id(base) not in self.buffers:
            raw = cupy.empty(max(base.nbytes, 1), np.uint8)
            raw[: base.nbytes].set(base.ravel("K").view(np.uint8))
            self.buffers[id(base)] = base, raw
        raw = self.buffers[id(base)][1]
        shift = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return cupy.ndarray(x.shape, x.dtype, raw.data + shift, x.strides)

    def fetch(self) -> None:
        """Copy everything back into the NumPy arrays."""
        for base, raw in self.buffers.values():
            if base.flags.writeable:
                base.ravel("K").view(np.uint8)[...] = raw[: base.nbytes].get()


def attend(kernel: str) -> Any:
    def call(q: Any, k: Any, v: Any, out: Any = None, **options: Any) -> Any:
        memory = Memory()
        moved = {name: memory.move(x) for name, x in options.items() if name != "scale"}
        if "scale" in options:
            moved["scale"] = options["scale"]
        targets = None if out is None else tuple(memory.move(x) for x in out)
        try:
            got = cupy_flash.attention(
                *map(memory.move, (q, k, v)), **moved, out=targets, return_lse=True, kernel=kernel
            )
        finally:
            memory.fetch()
        return tuple(x.get() for x in got)

    return call


@pytest.mark.parametrize(("kernel", "case", "arguments"), EVERY_CASE)
def test_bug(kernel: str, case: Any, arguments: tuple[Any, ...]) -> None:
    case(Path(attend(kernel), kernel), *arguments)
