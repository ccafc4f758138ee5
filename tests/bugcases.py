"""Bugs that users of attention libraries have reported, as inputs whose right result is known.

Each case is a function of a `Path`: the NumPy path or one of the kernels. Its number is a permanent
name; numbers need not be contiguous.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cupy_flash import accuracy, reference
from cupy_flash.products import loosest
from problems import DTYPES, KERNEL_DTYPES, ONE_DTYPE

Array = np.ndarray[Any, Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class OfFamily:
    """What a path computes: `family` is that of the kernels, None for the NumPy path."""

    family: str | None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of cases that are about none."""
        return DTYPES["float32" if self.family is None else ONE_DTYPE[self.family]]

    def able(self, *dtypes: Any) -> list[Any]:
        """Return those of the dtypes that can be computed."""
        able = DTYPES if self.family is None else KERNEL_DTYPES[self.family]
        return [dtype for dtype in dtypes if np.dtype(dtype).name in able]

    def draw(self, *shapes: tuple[int, ...], dtype: Any = None, seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(shape).astype(dtype or self.dtype) for shape in shapes]


@dataclass(frozen=True)
class Path(OfFamily):
    """A way to compute attention.

    `attend(q, k, v, **options)` takes and returns NumPy arrays, (out, lse); it keeps every stride
    and what shares memory with what.
    """

    attend: Callable[..., tuple[Array, Array]]
    family: str | None

    def same(self, got: tuple[Array, Array], want: tuple[Array, Array]) -> None:
        """Demand equal bits, or what another order of sums allows where BLAS decides on it."""
        for a, b in zip(got, want, strict=True):
            largest = np.abs(b).max(initial=0, where=np.isfinite(b))
            few = 0 if self.family else 16 * accuracy.ROUNDING[b.dtype.name]
            np.testing.assert_allclose(a, b, few, few * largest, equal_nan=False, strict=True)

    def right(self, q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
        """Compute, compare with the oracle within the bounds, and return the result."""
        out, lse = self.attend(q, k, v, **options)
        products = loosest(self.family, out.dtype.name)
        exact = reference.attention(q, k, v, **options, products=products)
        scale = options.get("scale", reference.default_scale(q.shape[-1]))
        bound = accuracy.out_bound(exact, out.dtype.name, q, k, v, scale, self.family)
        lse_bound = accuracy.lse_bound(exact, out.dtype.name, q, k, scale)
        for results in ((out, exact.out, bound), (lse, exact.lse, lse_bound)):
            compared = accuracy.compare(*results)
            assert compared.ok, compared
        return out, lse


# Of cases: small enough for kernels on the CPU, for NumPy, for a GPU alone.
SIZES = ("small", "medium", "large")


class Registry:
    """Cases of the modules named, each of which registers its own."""

    def __init__(self, *modules: str) -> None:
        self.modules = modules
        self._registered: list[tuple[Any, Any, str]] = []

    def bug(
        self, number: int, *arguments: Any, only: Any = None, size: str = "medium"
    ) -> Callable[[Any], Any]:
        """Register a case, once for each of `arguments` (a value or a tuple of values).

        `only` is the one dtype that the case is about, if there is one; `size` is one of SIZES.
        """

        def register(function: Callable[..., None]) -> Callable[..., None]:
            for values in arguments or ((),):
                values = values if isinstance(values, tuple) else (values,)
                name = "-".join([f"{number:03}", function.__name__, *map(str, values)])
                case = pytest.param(function, values, id=name)
                self._registered.append((case, only, size))
            return function

        return register

    def cases(self, family: str | None, *, largest: str = "large") -> list[Any]:
        """Return what `parametrize` takes: the cases in dtypes that a path can compute.

        `largest` is the largest size of the cases.
        """
        for module in self.modules:
            importlib.import_module(module)
        able = DTYPES if family is None else KERNEL_DTYPES[family]
        return [
            case
            for case, only, size in self._registered
            if (only is None or np.dtype(only).name in able)
            and SIZES.index(size) <= SIZES.index(largest)
        ]


FORWARD = Registry("plain_bugs", "mask_bugs", "score_bugs")
bug, cases = FORWARD.bug, FORWARD.cases


def assert_empty(out: Array, lse: Array) -> None:
    assert (out == 0).all()
    assert (lse == -np.inf).all()
