"""Rows of attention to 50 decimal digits, by mpmath, of data that are hard on float64."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from cupy_flash import accuracy, reference

Array = np.ndarray[Any, Any]
DIGITS = 50
M, N, D, P = 70, 150, 48, 5
ROWS = (0, 33, 69)


def _normal(rng: np.random.Generator) -> list[Array]:
    return [rng.standard_normal(shape) for shape in ((M, D), (N, D), (N, P))]


def _far_apart(rng: np.random.Generator) -> list[Array]:
    q, k, v = _normal(rng)
    return [30 * q, k, v]


def _common_offset(rng: np.random.Generator) -> list[Array]:
    """Scores near 1e8, which differ by about 1."""
    q, k, v = _normal(rng)
    q[:, 0] = k[:, 0] = 2.0**15
    return [q, k, v]


def _outlier(rng: np.random.Generator) -> list[Array]:
    q, k, v = _normal(rng)
    v[N // 2] *= 2.0**40
    k[N // 2] -= 4 * q.mean(axis=0)
    return [q, k, v]


DATA = {
    "normal": _normal,
    "far apart": _far_apart,
    "a common offset": _common_offset,
    "an outlier": _outlier,
}


def draw(name: str) -> list[Array]:
    return DATA[name](np.random.default_rng(len(name)))


def exactly(x: Any) -> Any:
    """Return a number in binary, a longdouble too, without rounding it."""
    upper = float(x)
    return mpmath.mpf(upper) + mpmath.mpf(float(x - upper))


def row(q: Array, k: Array, v: Array) -> tuple[list[Any], Any]:
    """Return the result and lse of one row of queries."""
    scores = [mpmath.fdot(map(mpmath.mpf, q), map(mpmath.mpf, key)) for key in k]
    scores = [score / mpmath.sqrt(len(q)) for score in scores]
    top = max(scores)
    weights = [mpmath.exp(score - top) for score in scores]
    total = mpmath.fsum(weights)
    out = [mpmath.fdot(weights, map(mpmath.mpf, column)) / total for column in v.T]
    return out, top + mpmath.log(total)


def check(name: str, out: Array, lse: Array, share: float = 1.0) -> None:
    """Check the sampled rows of results: a share of what float64 may be off by, at most."""
    q, k, v = draw(name)
    exact = reference.attention(q, k, v)
    of_out = accuracy.out_bound(exact, "float64", q, k, v, D**-0.5)
    of_lse = accuracy.lse_bound(exact, "float64", q, k, D**-0.5)
    with mpmath.workdps(DIGITS):
        for i in ROWS:
            wanted, wanted_lse = row(q[i], k, v)
            for c, (x, want) in enumerate(zip(map(exactly, out[i]), wanted, strict=True)):
                allowed = share * float(of_out[i, c])
                assert abs(x - want) <= allowed, f"{name}: out[{i}, {c}] is {x}, not {want}"
            x = exactly(lse[i])
            allowed = share * float(of_lse[i])
            assert abs(x - wanted_lse) <= allowed, f"{name}: lse[{i}] is {x}, not {wanted_lse}"
