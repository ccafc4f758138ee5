"""The oracle: softmax attention by its formula, over visible keys only, in high precision.

Nothing here is shared with the kernels or the blocked path. It keeps whole rows of scores, so it is
for tests, `check` and small problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Reference:
    """Exact results and what their error bounds need (see `cupy_flash.accuracy`).

    Attributes
    ----------
    out : array, (..., m, p)
    lse : array, (..., m)
    probabilities_abs_v : array, (..., m, p)
        A: sum over keys of ``P |v|``.
    score_magnitude : array, (..., m)
        Largest ``scale * sum |q_x k_x|`` over the row's visible keys.
    score_errors : array, (..., m, p)
        What errors of the scores can move out by, as `accuracy` defines it.
    visible : array of int, (..., m)
        How many keys the row sees.
    """

    out: Array
    lse: Array
    probabilities_abs_v: Array
    score_magnitude: Array
    score_errors: Array
    visible: Array


def visibility(
    m: int, n: int, *, causal: bool, offset: int, rows: int | None = None, keys: int | None = None
) -> Array:
    """Return the (m, n) table of which row sees which key."""
    i, j = np.arange(m)[:, None], np.arange(n)[None, :]
    table = np.ones((m, n), bool)
    if rows is not None:
        table &= i < rows
    if keys is not None:
        table &= j < keys
    if causal:
        table &= j <= i + offset
    return table


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    offset: int | None = None,
    q_lengths: Array | None = None,
    k_lengths: Array | None = None,
) -> Reference:
    """Compute attention by its formula; the meaning of every option is `cupy_flash.attention`'s.

    Parameters
    ----------
    q, k, v : NumPy arrays
        float16, bfloat16 or float32 are computed in float64, float64 in `numpy.longdouble`.

    Returns
    -------
    Reference
    """
    exact: Any = np.longdouble if np.float64 in (q.dtype, k.dtype, v.dtype) else np.float64
    unit = 2.0**-53 if exact is np.longdouble else 2.0**-24
    (m, d), n, p = q.shape[-2:], k.shape[-2], v.shape[-1]
    has_heads = max(q.ndim, k.ndim, v.ndim) > 3
    split = -3 if has_heads else -2
    batch = np.broadcast_shapes(*(x.shape[: max(x.ndim + split, 0)] for x in (q, k, v)))
    heads = [x.shape[-3] if has_heads and x.ndim > 2 else 1 for x in (q, k, v)]
    total = max(heads) if 0 not in heads else 0
    leading = (*batch, total) if has_heads else batch
    factor = exact(scale) if scale is not None else exact(1) / np.sqrt(exact(d or 1))
    results = Reference(
        out=np.zeros((*leading, m, p), exact),
        lse=np.full((*leading, m), -np.inf, exact),
        probabilities_abs_v=np.zeros((*leading, m, p), exact),
        score_magnitude=np.zeros((*leading, m), exact),
        score_errors=np.zeros((*leading, m, p), exact),
        visible=np.zeros((*leading, m), np.int64),
    )
    for index in np.ndindex(*leading):
        entry = index[: len(batch)]
        Q, K, V = (_matrix(x, index, batch, total, has_heads).astype(exact) for x in (q, k, v))
        rows = _length(q_lengths, entry, batch, m)
        keys = _length(k_lengths, entry, batch, n)
        at = offset
        if at is None:
            at = (n if keys is None else keys) - (m if rows is None else rows)
        seen = visibility(m, n, causal=causal, offset=at, rows=rows, keys=keys)
        _one_head(Q, K, V, seen, factor, unit, results, index)
    return results


def _length(
    lengths: Array | None, entry: tuple[int, ...], batch: tuple[int, ...], limit: int
) -> int | None:
    if lengths is None:
        return None
    return min(max(int(np.broadcast_to(lengths, batch)[entry]), 0), limit)


def _matrix(
    x: Array, index: tuple[int, ...], batch: tuple[int, ...], heads: int, has_heads: bool
) -> Array:
    """Return the matrix of one batch entry and query head."""
    axes = len(batch) + has_heads
    x = x[(np.newaxis,) * (axes + 2 - x.ndim)]
    where = [
        i if extent > 1 else 0 for i, extent in zip(index[: len(batch)], x.shape, strict=False)
    ]
    if has_heads:
        group = heads // x.shape[len(batch)]
        where.append(index[-1] // group)
    matrix: Array = x[tuple(where)]
    return matrix


def _one_head(
    q: Array,
    k: Array,
    v: Array,
    seen: Array,
    scale: Any,
    unit: float,
    results: Reference,
    index: Any,
) -> None:
    # Keys that no row sees drop out before any arithmetic, whatever they hold.
    used = seen.any(axis=0)
    k, v, seen = k[used], v[used], seen[:, used]
    rows = np.flatnonzero(seen.any(axis=1))
    if rows.size == 0:
        return
    q, seen = q[rows], seen[rows]
    scores = np.where(seen, scale * (q @ k.T), -np.inf)
    magnitude = abs(scale) * (np.abs(q) @ np.abs(k).T)
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    P = weights / total
    depth = np.where(seen, top - scores, 0)
    # Beyond 80 a bound says nothing; exp stays finite.
    delta = np.minimum(unit * ((q.shape[1] / 2 + 4) * magnitude + 4 * depth + 8), 80)
    grown = np.where(seen, P * np.expm1(delta), 0)
    shrunk = np.where(seen, P * np.exp(-delta), 0).sum(axis=1, keepdims=True)
    at = (*index, rows)
    if np.isfinite(v).all():
        results.out[at] = P @ v
    else:
        for row, visible in enumerate(seen):
            results.out[(*index, rows[row])] = P[row, visible] @ v[visible]
    results.lse[at] = (top + np.log(total))[:, 0]
    results.probabilities_abs_v[at] = P @ np.abs(v)
    results.score_magnitude[at] = np.where(seen, magnitude, 0).max(axis=1)
    out = np.abs(results.out[at])
    results.score_errors[at] = (grown @ np.abs(v) + out * grown.sum(axis=1, keepdims=True)) / shrunk
    results.visible[at] = seen.sum(axis=1)


def unfused(
    q: Array, k: Array, v: Array, seen: Array, scale: float, dtype: Any, p_dtype: Any = None
) -> Array:
    """Compute one head of standard attention with every step rounded to `dtype`.

    With `p_dtype` the weights are rounded to it before they meet v, as tensor cores want them.

    The baseline of the max and rms rules: what a careful user gets on a GPU without a fused kernel.
    Products are chains of fused multiply-adds, as a GPU computes them. NumPy's BLAS sums in blocks:
    scores of d = 115 then have a third of the error, in a product as in a fused kernel.
    """
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    with np.errstate(over="ignore", invalid="ignore"):
        scores = np.where(seen, _chained(q, k.T) * np.dtype(dtype).type(scale), -np.inf)
        top = scores.max(axis=1, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        if p_dtype is not None:
            weights = np.ldexp(np.ldexp(weights, 15).astype(p_dtype).astype(dtype), -15)
        summed = _chained(weights, v)
        result: Array = np.where(total > 0, summed / np.where(total > 0, total, 1), 0)
    return result


def _chained(a: Array, b: Array) -> Array:
    """Multiply matrices with one rounding per term, as a chain of fused multiply-adds rounds."""
    wide: Any = np.longdouble if a.dtype == np.float64 else np.float64
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for column, row in zip(a.T.astype(wide), b.astype(wide), strict=True):
        total = (total + column[:, None] * row).astype(a.dtype)
    return total


def default_scale(d: int) -> float:
    """Return 1 / sqrt(d), and 1 for d = 0, where every score is 0."""
    return 1.0 / math.sqrt(d) if d else 1.0


def softmax(x: Array, axis: int = -1) -> Array:
    """Compute a softmax by its formula, over elements above -inf only.

    Parameters
    ----------
    x : NumPy array
        float16, bfloat16 or float32 are computed in float64, float64 in numpy.longdouble.

    Returns
    -------
    array, of x's shape
        A row of nothing but -inf is 0.
    """
    exact: Any = np.longdouble if x.dtype == np.float64 else np.float64
    if x.shape[axis] == 0:
        return np.zeros(x.shape, exact)
    S = x.astype(exact)
    with np.errstate(invalid="ignore"):
        m = S.max(axis=axis, keepdims=True)
        P = np.exp(S - np.where(m == -np.inf, exact(0), m))
        l = P.sum(axis=axis, keepdims=True)
        weights: Array = P / np.where(l == 0, exact(1), l)
    return weights
