"""What the probes are made of: their problems, places in memory, and comparisons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from cupy_flash import accuracy, reference
from cupy_flash.products import loosest
from layouts import LAYOUTS, strided
from probe_options import BATCH, HEADS, M, N
from problems import DTYPES

Array = np.ndarray[Any, Any]
Result = tuple[Array, Array]


def draw(dtype: str, d: int, p: int, kv_heads: int = HEADS, group: int = 1) -> list[Array]:
    rng = np.random.default_rng(d * 1000 + p)
    shapes = (kv_heads * group, M, d), (kv_heads, N, d), (kv_heads, N, p)
    return [rng.standard_normal((BATCH, *shape)).astype(DTYPES[dtype]) for shape in shapes]


def ulp(x: Array, dtype: str) -> Array:
    """Return the distance between the numbers of a dtype around x."""
    return np.ldexp(2 * accuracy.ROUNDING[dtype], np.frexp(x)[1] - 1)


def assert_same_bits(got: Result, want: Result, what: str) -> None:
    for name, a, b in zip(("out", "lse"), got, want, strict=True):
        assert a.shape == b.shape, (what, name, a.shape, b.shape)
        assert a.dtype == b.dtype, (what, name, a.dtype, b.dtype)
        unsigned = f"u{a.itemsize}"
        differ = np.ascontiguousarray(a).view(unsigned) != np.ascontiguousarray(b).view(unsigned)
        where = tuple(map(int, np.argwhere(differ)[0])) if differ.any() else ()
        assert not differ.any(), (
            f"{what}: {differ.sum()} of {differ.size} elements of {name} have other bits, "
            f"at {where} {a[where]!r} instead of {b[where]!r}"
        )


def assert_same(
    got: Result,
    want: Result,
    arrays: list[Array],
    options: dict[str, Any],
    family: str | None,
    what: str,
) -> None:
    """Compare bits, or on the NumPy path, whose bits are BLAS's, the numbers."""
    if family is None:
        assert_close(got, want, arrays, options, family, what)
    else:
        assert_same_bits(got, want, what)


def assert_close(
    got: Result,
    want: Result,
    arrays: list[Array],
    options: dict[str, Any],
    family: str | None,
    what: str,
) -> None:
    """Compare numbers with twice the error bounds: both results may be off."""
    for a, b, bound in zip(got, want, bounds(arrays, options, family), strict=True):
        compared = accuracy.compare(a, b, 2 * bound)
        assert compared.ok, f"{what}: {compared}"


def bounds(arrays: list[Array], options: dict[str, Any], family: str | None) -> Result:
    q, k, v = arrays
    dtype = np.result_type(q, k, v).name
    exact = reference.attention(q, k, v, **options, products=loosest(family, dtype))
    scale = options.get("scale", reference.default_scale(q.shape[-1]))
    return (
        accuracy.out_bound(exact, dtype, q, k, v, scale, family),
        accuracy.lse_bound(exact, dtype, q, k, scale),
    )


def edges(size: int, step: int = 32) -> Array:
    """Return the places within one of a multiple of `step`, and the last one."""
    near = {at + by for at in range(0, size + 1, step) for by in (-1, 0, 1)}
    return np.array(sorted(i for i in near | {size - 1} if 0 <= i < size))


def placed(arrays: list[Array]) -> Iterator[tuple[str, list[Array]]]:
    """Yield the arrays in every pair of layouts, then from every alignment of their elements."""
    for (a, first), (b, second) in itertools.product(enumerate(LAYOUTS), enumerate(LAYOUTS)):
        # A Latin square: every two of the three arrays see every pair.
        layouts = first, second, LAYOUTS[(a + b) % len(LAYOUTS)]
        views = []
        for x, layout in zip(arrays, layouts, strict=True):
            view = strided(x.shape, x.dtype, layout).numpy()
            view[...] = x
            views.append(view)
        yield f"layouts {layouts}", views
    itemsize = arrays[0].itemsize
    for shift in range(16 // itemsize):
        views = []
        for which, x in enumerate(arrays):
            buffer = np.full(x.size + 32, np.nan, x.dtype)
            start = -buffer.ctypes.data % 16 // itemsize + (shift * (2 * which + 1)) % 16
            views.append(buffer[start : start + x.size].reshape(x.shape))
            views[-1][...] = x
        yield f"shift {shift}", views
