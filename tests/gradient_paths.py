"""Ways to compute gradients, and what tests of all of them compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from backward_bounds import bounds
from bugcases import OfFamily
from cupy_flash import accuracy, reference
from problems import DTYPES

Array = np.ndarray[Any, Any]
Found = dict[str, Array]

QKV = ("q", "k", "v")


@dataclass(frozen=True)
class GradientPath(OfFamily):
    """A way to compute gradients.

    `gradients(do, q, k, v, dlse=None, wrt=QKV, out=None, **options)` takes NumPy arrays and returns
    them by the names of `wrt`; it computes o and lse itself, and keeps every stride and what shares
    memory with what. `family`: of the kernels, None for the NumPy path. Emulated kernels take no
    `out`.
    """

    gradients: Callable[..., Found]
    family: str | None

    def right(
        self, do: Array, q: Array, k: Array, v: Array, wrt: tuple[str, ...] = QKV, **options: Any
    ) -> Found:
        """Compute, compare with the oracle within the bounds, and return the gradients."""
        found = self.gradients(do, q, k, v, wrt=wrt, **options)
        assert_right(found, (do, q, k, v), options, self.family)
        return found

    def same(self, got: Found, want: Found, what: str = "") -> None:
        """Demand equal bits, or what another order of sums allows where BLAS decides on it."""
        if self.family is not None:
            assert_same_bits(got, want, what)
            return
        assert got.keys() == want.keys()
        for name, a in got.items():
            b = want[name]
            largest = np.abs(b.astype(float)).max(initial=0)
            few = 64 * max(accuracy.ROUNDING[b.dtype.name], accuracy.ROUNDING["float32"])
            if b.dtype == np.float64:
                few = 64 * accuracy.ROUNDING["float64"]
            message = f"{what}: d{name}"
            assert (a.shape, a.dtype) == (b.shape, b.dtype), message
            a, b = a.astype(float), b.astype(float)
            np.testing.assert_allclose(a, b, few, few * largest, equal_nan=False, err_msg=message)

    def alike(
        self, got: Found, want: Found, arrays: list[Array], options: dict[str, Any], what: str
    ) -> None:
        """Demand what may follow from other places of do and o.

        The order in which do * o is summed along a row is a matter of their alignment, and all but
        dv have a part in that sum: those may differ by their bounds.
        """
        exact = reference.attention_backward(*arrays, wrt=tuple(got), **options)
        dtypes = {name: x.dtype for name, x in got.items()}
        limits = allowed(tuple(arrays), options, exact, dtypes, self.family)
        for name in got:
            if name == "v":
                self.same({name: got[name]}, {name: want[name]}, what)
                continue
            compared = accuracy.compare(
                got[name].astype(float), want[name].astype(float), 2 * limits[name]
            )
            assert compared.ok, f"{what}: d{name}: {compared}"


def allowed(
    arrays: tuple[Array, ...],
    options: dict[str, Any],
    exact: Any,
    dtypes: dict[str, Any],
    family: str | None,
) -> Found:
    """Return the bounds of gradients; `arrays` are do, q, k and v, `exact` is the oracle's."""
    do, q, k, v = arrays
    call = dict(zip(QKV, (q, k, v), strict=True)) | options
    dlse = call.pop("dlse", None)
    dlse = np.zeros(do.shape[:-1]) if dlse is None else dlse
    dtype = np.result_type(q, k, v).name
    return bounds(call, do, dlse, exact, dtype, dtypes, family)


def assert_right(
    found: Found, arrays: tuple[Array, ...], options: dict[str, Any], family: str | None
) -> float:
    """Compare with the oracle; return the worst error / bound."""
    exact = reference.attention_backward(*arrays, wrt=tuple(found), **options)
    dtypes = {name: x.dtype for name, x in found.items()}
    limits = allowed(arrays, options, exact, dtypes, family)
    worst = 0.0
    for name, x in found.items():
        want = getattr(exact, name)
        assert x.shape == want.shape, (name, x.shape, want.shape)
        compared = accuracy.compare(x.astype(want.dtype), want, limits[name])
        assert compared.ok, f"d{name}: {compared}"
        worst = max(worst, compared.ratio)
    return worst


def assert_same_bits(got: Found, want: Found, what: str) -> None:
    assert got.keys() == want.keys(), (what, [*got], [*want])
    for name, a in got.items():
        b = want[name]
        assert (a.shape, a.dtype) == (b.shape, b.dtype), (what, name, a.shape, b.shape)
        unsigned = f"u{a.itemsize}"
        differ = np.ascontiguousarray(a).view(unsigned) != np.ascontiguousarray(b).view(unsigned)
        differ = differ.reshape(a.shape)
        where = tuple(map(int, np.argwhere(differ)[0])) if differ.any() else ()
        assert not differ.any(), (
            f"{what}: {differ.sum()} of {differ.size} elements of d{name} have other bits, "
            f"at {where} {a[where]!r} instead of {b[where]!r}"
        )


def result_shape(q: Array, k: Array, v: Array) -> tuple[int, ...]:
    """Return out's shape; heads of q are a multiple of those of k and v."""
    if q.ndim < 4:
        return (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], v.shape[-1])
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (q, k, v)))
    return (*batch, max(x.shape[-3] for x in (q, k, v)), q.shape[-2], v.shape[-1])


def draw_like(shape: tuple[int, ...], dtype: Any, seed: int = 99) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES.get(dtype, dtype))
