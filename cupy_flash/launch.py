"""The last stage on a GPU: outputs, pointers, grid, launch on the current stream."""

from __future__ import annotations

from typing import Any

from cupy_flash import device as devices
from cupy_flash.compile import kernel
from cupy_flash.params import launches
from cupy_flash.problem import Problem, allocate
from cupy_flash.select import choose


def forward(problem: Problem, arrays: dict[str, Any], out: Any, lse: Any) -> tuple[Any, Any]:
    """Compute a problem of CuPy arrays; `out` and `lse` are allocated where they are None."""
    cupy = devices.import_cupy()
    index = problem.device or 0
    with cupy.cuda.Device(index):
        variant = choose(problem, devices.actual(index)).variant
        if out is None:
            out = allocate(cupy.empty, problem)
        if lse is None and problem.lse is not None:
            lse = cupy.empty(problem.lse_shape, dtype=problem.accumulate)
        outputs = {"o": out} if lse is None else {"o": out, "lse": lse}
        pointers = {name: array.data.ptr for name, array in (arrays | outputs).items()}
        for launch in launches(problem, variant, pointers):
            kernel(variant, index)(
                (launch.grid,),
                (variant.tile.threads,),
                (launch.params,),
                shared_mem=variant.shared_memory,
            )
    return out, lse
