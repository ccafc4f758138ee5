"""Attention on NumPy arrays: the online softmax in blocks, written as the algorithm's definition.

The kernels compute the same thing with the same letters:

====== ========================================================================
S      scores of a block: ``scale * Q @ K.T`` with softcap, bias and ALiBi, -inf where
       a row doesn't see a key (`cupy_flash.blocked_scores`)
m      running maximum of each row's scores
P      ``exp(S - m)``
l      running sum of P over the keys so far
alpha  ``exp(m_old - m_new)``, what the sums so far must be multiplied by
O      running sum of ``P @ V``
====== ========================================================================

After the last block a row's sink joins m and l, as a key without a value would. Then ``O / l`` is
the row of the output and ``m + log(l)`` its lse. Memory is O(n): one block of scores at a time.
Sums run in float32, for float64 inputs in float64. Unlike the kernels' bits, these depend on the
BLAS that NumPy uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.blocked_heads import heads_of
from cupy_flash.blocked_scores import Scores
from cupy_flash.params import probability_scale
from cupy_flash.problem import Problem, allocate

Array = np.ndarray[Any, Any]

# 256 x 512 scores: large enough for BLAS, small enough for a core's cache (1 MB in float64).
BLOCK_M = 256
BLOCK_N = 512


def forward(
    problem: Problem, arrays: dict[str, Array], out: Array | None, lse: Array | None
) -> tuple[Array, Array | None]:
    """Compute a problem of NumPy arrays; `out` and `lse` are allocated where they are None."""
    heads = heads_of(problem, arrays)
    if out is None:
        out = allocate(np.empty, problem)
    if lse is None and problem.lse is not None:
        lse = np.empty(problem.lse_shape, problem.accumulate)
    # Overflow and NaN follow from the inputs and reach the result; a warning would say it twice.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for head in heads:
            matrices = head.Q, head.K, head.V
            out[head.index], row_lse = attend(*matrices, head.scores, head.sink)
            if lse is not None:
                lse[head.index] = row_lse
    return out, lse


def attend(Q: Array, K: Array, V: Array, scores: Scores, sink: Any) -> tuple[Array, Array]:
    """Compute one head of one batch entry; rows beyond Q's are padding.

    Parameters
    ----------
    Q : array, (rows, d)
    K : array, (keys, d)
    V : array, (keys, p)
    scores : Scores
        What makes scores of products.
    sink : number
        One more score in the denominator of every row; -inf for none.

    Returns
    -------
    O : array, (m, p)
    lse : array, (m,)
    """
    problem = scores.problem
    dtype = np.dtype(problem.accumulate)
    output = np.zeros((problem.m, problem.p), dtype)
    lse = np.full(problem.m, sink, dtype)
    p_scale = dtype.type(probability_scale(problem.n))
    for row in range(0, len(Q), BLOCK_M):
        rows = slice(row, min(row + BLOCK_M, len(Q)))
        Q_block = Q[rows].astype(dtype) * scores.scale_q
        m = np.full((rows.stop - row, 1), -np.inf, dtype)
        l = np.zeros_like(m)
        O = np.zeros((len(m), problem.p), dtype)
        begin, end = scores.keys(rows, len(K))
        # Blocks start at multiples of BLOCK_N, whatever the window.
        for key in range(begin - begin % BLOCK_N, end, BLOCK_N):
            keys = slice(key, min(key + BLOCK_N, end))
            S, sees = scores.of(Q_block @ K[keys].astype(dtype).T, rows, keys)
            # P is 0 where a key is hidden, and 0 * NaN would be NaN.
            V_block = np.where(
                sees.any(axis=0, keepdims=True).T, V[keys].astype(dtype), dtype.type(0)
            )
            m_new = np.maximum(m, S.max(axis=1, keepdims=True))
            alpha = _exp(m, m_new)
            P = _exp(S, m_new) * p_scale
            l = alpha * l + P.sum(axis=1, keepdims=True)
            O = alpha * O + P @ V_block
            m = m_new
        m_new = np.maximum(m, sink)
        alpha = _exp(m, m_new)
        l = alpha * l + _exp(sink, m_new) * p_scale
        O, m = alpha * O, m_new
        seen = np.flatnonzero(~np.isneginf(m[:, 0]))
        output[row + seen] = _mean(O[seen], l[seen])
        lse[row + seen] = m[seen, 0] + np.log(l[seen, 0] / p_scale)
    return output.astype(to_dtype(problem.dtype)), lse


def _exp(x: Array, m: Array) -> Array:
    """Return exp(x - m); a row that has seen no key has x = m = -inf, whose difference is NaN."""
    weights: Array = np.exp(x - np.where(m == -np.inf, m.dtype.type(0), m))
    return weights


def _mean(O: Array, l: Array) -> Array:
    """Return O / l; a mean of finite values stays finite, rounding included."""
    mean = O / l
    largest = np.finfo(mean.dtype).max
    return np.where(np.isfinite(O), np.clip(mean, -largest, largest), mean)
