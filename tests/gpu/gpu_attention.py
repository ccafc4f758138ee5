"""`cupy_flash.attention` on a GPU with everything around its arrays watched."""

from __future__ import annotations

from typing import Any

import numpy as np

import cupy_flash
from cupy_flash import accuracy, reference
from cupy_flash.products import loosest
from layouts import Strided, strided
from problems import DTYPES, Arrays, result_dtype

SENTINEL = 7.0


def options_on_gpu(arrays: Arrays) -> dict[str, Any]:
    import cupy

    options = {
        name: cupy.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in arrays.options().items()
        if name not in arrays.small()
    }
    return options | {name: x.cupy() for name, x in arrays.small().items()}


def family(arrays: Arrays, kernel: str | None) -> str:
    """Return the kernel family that computes a case."""
    inputs = (x.cupy() for x in arrays.inputs().values())
    return cupy_flash.explain(*inputs, **options_on_gpu(arrays), kernel=kernel).kernel


def attention(
    arrays: Arrays, kernel: str | None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Compute a case; check that the inputs and the bytes beside the results are untouched."""
    case = arrays.case
    options = options_on_gpu(arrays)
    inputs = [x.cupy() for x in arrays.inputs().values()]
    out: Any = None
    targets: dict[str, Strided] = {}
    if case.out_layout is not None:
        shape = (*case.leading(), case.m, case.p)
        name = result_dtype(case)
        accumulate = "float64" if name == "float64" else "float32"
        targets["out"] = strided(shape, DTYPES[name], case.out_layout, SENTINEL)
        targets["lse"] = strided(shape[:-1], np.dtype(accumulate), "contiguous", SENTINEL)
        out = tuple(target.cupy() for target in targets.values())
    got, lse = cupy_flash.attention(*inputs, **options, return_lse=True, out=out, kernel=kernel)
    for name, x in (arrays.inputs() | arrays.small()).items():
        unsigned = f"u{x.buffer.itemsize}"
        assert (x.fetch().view(unsigned) == x.buffer.view(unsigned)).all(), f"{name} changed"
    for name, target in targets.items():
        after = target.fetch()
        untouched = np.array(SENTINEL, after.dtype).view(f"u{after.itemsize}")
        assert (target.outside(after) == untouched).all(), f"something beside {name} was written"
    return got.get(), lse.get()


def assert_within_bounds(
    q: Any, k: Any, v: Any, out: Any, lse: Any, kernel: str, where: str, **options: Any
) -> None:
    scale, dtype = reference.default_scale(q.shape[-1]), out.dtype.name
    exact = reference.attention(q, k, v, **options, products=loosest(kernel, dtype))
    bound = accuracy.out_bound(exact, dtype, q, k, v, scale, kernel)
    compared = accuracy.compare(out, exact.out, bound)
    assert compared.ok, f"out of {where}: {compared}"
    compared = accuracy.compare(lse, exact.lse, accuracy.lse_bound(exact, dtype, q, k, scale))
    assert compared.ok, f"lse of {where}: {compared}"
