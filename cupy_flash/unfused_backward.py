"""Gradients of standard attention: what a user has without a fused kernel.

The benchmarks measure against it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from cupy_flash.arrays import describe, promote
from cupy_flash.device import import_cupy
from cupy_flash.gradients import gradients_type
from cupy_flash.unfused import cupy_with_cublas, rows_per_key_head, unfolded, weights


def standard_attention_backward(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    /,
    *,
    scale: float | None = None,
    causal: bool = False,
    offset: int | None = None,
) -> Any:
    """Gradients of attention with matmul, softmax and arithmetic; P and dP lie in memory.

    ::

        P = softmax(S)            as in `standard_attention`
        dv = P.T @ do
        dP = do @ v.T
        dS = P * (dP - D)         in place, D[i] = sum(P[i] * dP[i])
        dq = scale * dS @ k
        dk = dS.T @ (scale * q)

    Dao et al., "FlashAttention", arXiv:2205.14135, appendix B.2. Products are CuPy's (cuBLAS). P is
    computed again, as nobody would keep it from the forward call. Of CuPy arrays D and dS are a
    kernel each, that reads its matrices once. `cupy.matmul` copies transposed matrices, so the
    products with P.T and dS.T are written as transposes of products with do.T and q.T, which are
    small. 16-bit arrays are converted to float32 first.

    Parameters
    ----------
    do : array, (..., Hq, m, p)
        Gradient with respect to the result, in its shape.
    q, k, v : array
        As of `standard_attention`, all NumPy or all CuPy arrays.
    scale, causal, offset
        As of `standard_attention`.

    Returns
    -------
    named tuple of arrays
        q, k and v: the gradients, with the shapes and dtypes of those arrays and any strides,
        summed over axes that broadcast and over the heads of a group.

    Raises
    ------
    CublasMissing
        For CuPy arrays without cuBLAS.
    TypeError, ValueError
        For arrays that no product can take.

    Notes
    -----
    Memory: P and dP, m n elements per head each.
    """
    given = (q, k, v)
    xp = np if isinstance(q, np.ndarray) else cupy_with_cublas()
    dtype = promote({name: describe(name, x) for name, x in zip("qkv", given, strict=True)})
    working = np.promote_types(dtype, np.float32)
    do, q, k, v = (x.astype(working, copy=False) for x in (do, q, k, v))
    (m, d), n = q.shape[-2:], k.shape[-2]
    if n == 0:
        return gradients_type(("q", "k", "v"))(*(xp.zeros(x.shape, x.dtype) for x in given))
    factor = working.type(1 / math.sqrt(d or 1) if scale is None else scale)
    rows, heads = rows_per_key_head(q * factor, k, v)
    if heads is not None:
        kv_heads = rows.shape[-3]
        do = do.reshape((*do.shape[:-3], kv_heads, heads // kv_heads * m, do.shape[-1]))

    S = xp.matmul(rows, k.swapaxes(-1, -2))
    folded = S.shape
    S = S.reshape((*unfolded(folded[:-2], heads), m, n))
    P = weights(S, causal=causal, offset=offset).reshape(folded)
    dv = xp.matmul(do.swapaxes(-1, -2), P).swapaxes(-1, -2)
    dS = _score_gradients(P, xp.matmul(do, v.swapaxes(-1, -2)))
    dk = xp.matmul(rows.swapaxes(-1, -2), dS).swapaxes(-1, -2)
    dq = xp.matmul(dS, k)
    dq *= factor
    dq = dq.reshape((*unfolded(dq.shape[:-2], heads), m, d))
    return gradients_type(("q", "k", "v"))(
        *(_summed(x, like) for x, like in zip((dq, dk, dv), given, strict=True))
    )


def _score_gradients(P: Any, dP: Any) -> Any:
    """Return ``P * (dP - sum(P * dP))`` in the memory of dP."""
    if isinstance(P, np.ndarray):
        dP -= np.einsum("...j,...j->...", P, dP)[..., None]
        dP *= P
        return dP
    row_sums, products = _kernels()
    D = row_sums(P, dP, axis=-1, keepdims=True)
    return products(P, D, dP)


@functools.cache
def _kernels() -> tuple[Any, Any]:
    cupy = import_cupy()
    row_sums = cupy.ReductionKernel(
        "T p, T dp", "T total", "p * dp", "a + b", "total = a", "0", "standard_row_sums"
    )
    # The result's memory holds dP.
    products = cupy.ElementwiseKernel(
        "T p, T total", "T ds", "ds = p * (ds - total)", "standard_score_gradients"
    )
    return row_sums, products


def _summed(gradient: Any, like: Any) -> Any:
    """Sum over the axes along which an array was broadcast, in its shape and dtype."""
    extra = gradient.ndim - like.ndim
    axes = tuple(
        axis
        for axis, extent in enumerate(gradient.shape)
        if axis < extra or extent != like.shape[axis - extra]
    )
    if axes:
        gradient = gradient.sum(axis=axes).reshape(like.shape)
    return gradient.astype(like.dtype, copy=False)
