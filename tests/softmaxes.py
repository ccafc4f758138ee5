"""The softmax problems that every level of tests draws, and what is right of their results."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cupy_flash import accuracy, reference
from layouts import LAYOUTS, OUT_LAYOUTS, Strided, strided
from problems import DTYPES

METHODS = ("online", "three_pass")
VALUES = ("normal", "x30", "equal", "outlier", "large", "rising", "holes", "subnormal")
# Bytes of a row up to which one kernel serves; the last one of float32 alone.
CAPACITIES = (64, 128, 256, 512, 2048, 8192, 16384, 32768, 65536)
SENTINEL = 7.0


@dataclass(frozen=True)
class SoftmaxCase:
    """One problem; its repr is what reproduces it (`SoftmaxCase(...).build()`)."""

    shape: tuple[int, ...]
    axis: int
    dtype: str
    method: str = "online"
    layout: str = "contiguous"
    out_layout: str | None = None
    values: str = "normal"
    seed: int = 0

    def build(self) -> Strided:
        x = strided(self.shape, DTYPES[self.dtype], self.layout)
        if math.prod(self.shape):
            view = x.numpy()
            rows = np.moveaxis(view, self.axis, -1)
            rows[...] = drawn(rows.shape, self.dtype, self.values, self.seed)
        return x


def drawn(shape: tuple[int, ...], dtype: str, values: str, seed: int) -> np.ndarray[Any, Any]:
    """Draw rows, along the last axis, in float64."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if values == "x30":
        x *= 30
    elif values == "equal":
        x = np.full(shape, 0.37)
    elif values == "outlier":
        np.put_along_axis(x, rng.integers(0, shape[-1], (*shape[:-1], 1)), 25.0, -1)
    elif values == "large":
        x *= float(accuracy_largest(dtype)) / 16
    elif values == "rising":
        x = np.sort(x * 4, axis=-1)
    elif values == "holes":
        x[rng.random(shape) < 0.4] = -np.inf
        x[..., 0, :] = -np.inf
    elif values == "subnormal":
        x *= float(accuracy.SMALLEST[dtype]) * 8
    return x


def accuracy_largest(dtype: str) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(DTYPES[dtype]).max)


@st.composite
def softmax_cases(draw: st.DrawFn, dtype: str, longest: int) -> SoftmaxCase:
    """Draw a case whose rows have at most `longest` elements, often at the edge of a kernel."""
    itemsize = DTYPES[dtype].itemsize
    edges = [size // itemsize + d for size in CAPACITIES for d in (-1, 0, 1)]
    edges = [n for n in edges if n <= longest]
    n = draw(st.one_of(st.integers(1, 70), st.sampled_from(edges), st.integers(1, longest)))
    seed = draw(st.integers(0, 2**31))
    pick = random.Random(f"{n} {seed}")
    most = max(1, 20_000 // n)
    rows = [pick.randint(1, min(most, pick.choice((3, 40)))) for _ in range(pick.randint(1, 3))]
    while len(rows) > 1 and math.prod(rows) > 4 * most:
        rows.pop()
    axis = pick.choice((-1, -1, *range(len(rows) + 1)))
    place = axis % (len(rows) + 1)
    return SoftmaxCase(
        shape=(*rows[:place], n, *rows[place:]),
        axis=axis,
        dtype=dtype,
        method=pick.choice(METHODS),
        layout=pick.choice((*LAYOUTS, "pitch 8")),
        out_layout=pick.choice((None, *OUT_LAYOUTS, "pitch 8")),
        values=pick.choice(VALUES),
        seed=seed,
    )


def check_softmax(x: np.ndarray[Any, Any], out: np.ndarray[Any, Any], axis: int) -> float:
    """Raise AssertionError unless a softmax is right; return the worst error / bound."""
    assert out.shape == x.shape, (out.shape, x.shape)
    assert out.dtype == x.dtype, (out.dtype, x.dtype)
    exact = reference.softmax(x, axis)
    empty = (x == -np.inf).all(axis=axis, keepdims=True) & (x == x)
    assert (out[empty] == 0).all(), "a row of nothing but -inf isn't 0"
    compared = accuracy.compare(out, exact, accuracy.softmax_bound(x, exact, axis))
    assert compared.ok, str(compared)
    check_statistics(x, out, exact, axis)
    return compared.ratio


def check_statistics(
    x: np.ndarray[Any, Any],
    out: np.ndarray[Any, Any],
    exact: np.ndarray[Any, Any],
    axis: int,
) -> None:
    """The rms error is that of the formula in the same precision, at most four times."""
    if x.size < 400:
        return
    sums = np.dtype(accuracy.accumulation(x.dtype.name))
    S = x.astype(sums)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        m = S.max(axis=axis, keepdims=True)
        P = np.exp(S - np.where(m == -np.inf, sums.type(0), m))
        l = P.sum(axis=axis, keepdims=True)
        plain = (P / np.where(l == 0, sums.type(1), l)).astype(x.dtype)
    ours, theirs = (
        float(np.sqrt(np.mean(np.square((a.astype(exact.dtype) - exact).astype(np.float64)))))
        for a in (out, plain)
    )
    ulp = accuracy.ROUNDING[x.dtype.name] * float(exact.max(initial=0))
    assert ours <= 4 * theirs + ulp / 8, f"rms: {ours} against {theirs}"
