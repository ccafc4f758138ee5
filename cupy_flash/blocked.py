"""Attention on NumPy arrays: the online softmax in blocks, written as the algorithm's definition.

The kernels compute the same thing with the same letters:

====== ========================================================================
S      scores of a block: ``scale * Q @ K.T``, -inf where a row doesn't see a key
m      running maximum of each row's scores
P      ``exp(S - m)``
l      running sum of P over the keys so far
alpha  ``exp(m_old - m_new)``, what the sums so far must be multiplied by
O      running sum of ``P @ V``
====== ========================================================================

After the last block ``O / l`` is the row of the output and ``m + log(l)`` its lse. Memory is O(n):
one block of scores at a time. Sums run in float32, for float64 inputs in float64. Unlike the
kernels' bits, these depend on the BLAS that NumPy uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.params import probability_scale, split_scale
from cupy_flash.problem import Problem, allocate

Array = np.ndarray[Any, Any]

# 256 x 512 scores: large enough for BLAS, small enough for a core's cache (1 MB in float64).
BLOCK_M = 256
BLOCK_N = 512


def forward(
    problem: Problem, arrays: dict[str, Array], out: Array | None, lse: Array | None
) -> tuple[Array, Array | None]:
    """Compute a problem of NumPy arrays; `out` and `lse` are allocated where they are None."""
    lengths = {
        name: _lengths(name, arrays.get(name), problem.batch, limit)
        for name, limit in (("q_lengths", problem.m), ("k_lengths", problem.n))
    }
    if out is None:
        out = allocate(np.empty, problem)
    if lse is None and problem.lse is not None:
        lse = np.empty(problem.lse_shape, problem.accumulate)
    has_heads = len(problem.out_shape) == len(problem.batch) + 3
    q, k, v = (
        _with_leading_axes(arrays[name], problem.batch, has_heads) for name in ("q", "k", "v")
    )
    # Overflow and NaN follow from the inputs and reach the result; a warning would say it twice.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        _each_head(q, k, v, problem, lengths, out, lse)
    return out, lse


def _each_head(
    q: Array,
    k: Array,
    v: Array,
    problem: Problem,
    lengths: dict[str, Array],
    out: Array,
    lse: Array | None,
) -> None:
    has_heads = len(problem.out_shape) == len(problem.batch) + 3
    for entry in np.ndindex(problem.batch):
        rows, keys = int(lengths["q_lengths"][entry]), int(lengths["k_lengths"][entry])
        offset = keys - rows if problem.offset is None else problem.offset
        for h in range(problem.heads):
            index = (*entry, h) if has_heads else entry
            Q = _head(q[entry], h, problem.heads)[:rows]
            K = _head(k[entry], h, problem.heads)[:keys]
            V = _head(v[entry], h, problem.heads)[:keys]
            out[index], row_lse = attend(Q, K, V, problem, offset)
            if lse is not None:
                lse[index] = row_lse


def attend(Q: Array, K: Array, V: Array, problem: Problem, offset: int) -> tuple[Array, Array]:
    """Compute one head of one batch entry; rows beyond Q's are padding.

    Parameters
    ----------
    Q : array, (rows, d)
    K : array, (keys, d)
    V : array, (keys, p)
    problem : Problem
    offset : int
        Row i stands at key i + offset.

    Returns
    -------
    O : array, (m, p)
    lse : array, (m,)
    """
    dtype = np.dtype(problem.accumulate)
    output = np.zeros((problem.m, problem.p), dtype)
    lse = np.full(problem.m, -np.inf, dtype)
    scale_q, scale_s = (dtype.type(x) for x in split_scale(problem.scale, problem.accumulate))
    p_scale = dtype.type(probability_scale(problem.n))
    for row in range(0, len(Q), BLOCK_M):
        Q_block = Q[row : row + BLOCK_M].astype(dtype) * scale_q
        i = np.arange(row, row + len(Q_block))[:, None]
        m = np.full((len(Q_block), 1), -np.inf, dtype)
        l = np.zeros((len(Q_block), 1), dtype)
        O = np.zeros((len(Q_block), problem.p), dtype)
        keys = len(K)
        if problem.right is not None:
            keys = min(keys, max(row + len(Q_block) + offset + problem.right, 0))
        for key in range(0, keys, BLOCK_N):
            block = slice(key, min(key + BLOCK_N, keys))
            S = Q_block @ K[block].astype(dtype).T * scale_s
            if problem.right is not None:
                last = i + offset + problem.right
                S = np.where(np.arange(block.start, block.stop) <= last, S, -np.inf)
            m_new = np.maximum(m, S.max(axis=1, keepdims=True))
            # A row that has seen no key keeps m = -inf, and -inf - -inf would be NaN.
            reference = np.where(m_new == -np.inf, dtype.type(0), m_new)
            alpha = np.exp(m - reference)
            P = np.exp(S - reference) * p_scale
            l = alpha * l + P.sum(axis=1, keepdims=True)
            O = alpha * O + P @ V[block].astype(dtype)
            m = m_new
        seen = m[:, 0] != -np.inf
        rows = row + np.flatnonzero(seen)
        output[rows] = _mean(O[seen], l[seen])
        lse[rows] = m[seen, 0] + np.log(l[seen, 0] / p_scale)
    return output.astype(to_dtype(problem.dtype)), lse


def _mean(O: Array, l: Array) -> Array:
    """Return O / l; a mean of finite values stays finite, rounding included."""
    mean = O / l
    largest = np.finfo(mean.dtype).max
    return np.where(np.isfinite(O), np.clip(mean, -largest, largest), mean)


def _lengths(name: str, lengths: Array | None, batch: tuple[int, ...], limit: int) -> Array:
    if lengths is None:
        return np.full(batch, limit)
    if lengths.size and (lengths.min() < 0 or lengths.max() > limit):
        raise ValueError(
            f"attention: {name} has values from {lengths.min()} to {lengths.max()}; "
            f"they must lie in [0, {limit}]"
        )
    return np.broadcast_to(lengths, batch)


def _with_leading_axes(x: Array, batch: tuple[int, ...], has_heads: bool) -> Array:
    """Broadcast the batch axes; the head axis keeps its own extent."""
    ndim = len(batch) + has_heads + 2
    x = x.reshape((1,) * (ndim - x.ndim) + x.shape)
    return np.broadcast_to(x, (*batch, *x.shape[len(batch) :]))


def _head(x: Array, h: int, heads: int) -> Array:
    """Return the matrix that query head h of `heads` uses of an array ([heads,] rows, columns)."""
    if x.ndim == 2:
        return x
    matrix: Array = x[h * x.shape[0] // heads]
    return matrix
