"""The oracle: softmax attention by its formula, over visible keys only, in high precision.

Nothing here is shared with the kernels or the blocked path. It keeps whole rows of scores, so it is
for tests, `check` and small problems. Gradients and their derivation are in
`cupy_flash.reference_backward`; all of it can be imported from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.exact_head import compute, sink_rounding
from cupy_flash.products import FMA, Products
from cupy_flash.reference_backward import attention_backward
from cupy_flash.reference_heads import Heads, Window, visibility

__all__ = [
    "Reference",
    "attention",
    "attention_backward",
    "default_scale",
    "softmax",
    "unfused",
    "visibility",
]

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
    out_errors : array, (..., m, p)
        What errors of the scores can move out by, as `accuracy` defines it.
    lse_errors : array, (..., m)
        What they can move lse by.
    visible : array of int, (..., m)
        How many keys the row sees.
    products : Products
        What multiplies in the kernel that the errors are of.
    """

    out: Array
    lse: Array
    probabilities_abs_v: Array
    out_errors: Array
    lse_errors: Array
    visible: Array
    products: Products = FMA


_ARRAYS = ("out", "lse", "probabilities_abs_v", "out_errors", "lse_errors", "visible")


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    offset: int | None = None,
    window: Window | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    q_lengths: Array | None = None,
    k_lengths: Array | None = None,
    products: Products = FMA,
) -> Reference:
    """Compute attention by its formula; the meaning of every option is `cupy_flash.attention`'s.

    Parameters
    ----------
    q, k, v : NumPy arrays
        float16, bfloat16 or float32 are computed in float64, float64 in `numpy.longdouble`.
    products : Products
        What multiplies in the kernel whose errors are to be bounded: one of those of
        ``cupy_flash.products``. It changes no result.

    Returns
    -------
    Reference
    """
    heads = Heads(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        offset=offset,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        q_lengths=q_lengths,
        k_lengths=k_lengths,
        products=products,
    )
    exact, leading, (m, _, p) = heads.exact, heads.leading, heads.sizes
    results = Reference(
        out=np.zeros((*leading, m, p), exact),
        lse=np.full((*leading, m), -np.inf, exact),
        probabilities_abs_v=np.zeros((*leading, m, p), exact),
        out_errors=np.zeros((*leading, m, p), exact),
        lse_errors=np.zeros((*leading, m), exact),
        visible=np.zeros((*leading, m), np.int64),
        products=products,
    )
    for index, head in heads:
        if head.sink is not None:
            results.lse[index], results.lse_errors[index] = head.sink, sink_rounding(head.sink)
        found = compute(head)
        for name in _ARRAYS:
            getattr(results, name)[(*index, found.rows)] = getattr(found, name)
    return results


def unfused(
    q: Array,
    k: Array,
    v: Array,
    seen: Array,
    scale: float,
    dtype: Any,
    p_dtype: Any = None,
    *,
    softcap: float | None = None,
    bias: Array | None = None,
    alibi: Array | None = None,
    sink: float | None = None,
) -> Array:
    """Compute one head of standard attention with every step rounded to `dtype`.

    With `p_dtype` the weights are rounded to it before they meet v, as tensor cores want them.
    `bias` (rows, keys) is added to the scores and `alibi` subtracted.

    The baseline of the max and rms rules: what a careful user gets on a GPU without a fused kernel.
    Products are chains of fused multiply-adds, as a GPU computes them. NumPy's BLAS sums in blocks:
    scores of d = 115 then have a third of the error, in a product as in a fused kernel.
    """
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    number = np.dtype(dtype).type
    last = number(-np.inf if sink is None else sink)
    with np.errstate(over="ignore", invalid="ignore"):
        scores = _chained(q, k.T) * number(scale)
        if softcap is not None:
            scores = number(softcap) * np.tanh(scores / number(softcap))
        if bias is not None:
            scores = scores + bias.astype(dtype)
        if alibi is not None:
            scores = scores - alibi.astype(dtype)
        scores = np.where(seen, scores, -np.inf)
        top = np.maximum(scores.max(axis=1, keepdims=True, initial=-np.inf), last)
        top = np.where(np.isfinite(top), top, 0)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True) + np.exp(last - top)
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
