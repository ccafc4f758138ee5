"""Gradients on NumPy arrays, in blocks: the backward pass of FlashAttention as its definition.

The kernels compute the same thing with the same letters; dX is the gradient with respect to X:

====== ========================================================================
S      scores of a block, as in the forward pass, -inf where a row doesn't see a key
P      ``exp(S - lse)``, the weights, made again from each row's lse
dP     ``dO @ V.T``
delta  each row's sum of ``dO * O``, which is that of ``P * dP``, less dlse
dS     ``P * (dP - delta)``
====== ========================================================================

After a block of rows and keys, dV is larger by ``P.T @ dO``, dQ by ``scale * dS @ K``, dK by
``scale * dS.T @ Q`` and the bias' gradient by dS, where behind a softcap dS has first been
multiplied by the cap's slope for all but the bias. A sink is one more key, without a value: its
weight is ``exp(sink - lse)`` and its dP is 0.

Memory is O(n): one block of scores at a time. Sums run in float32, for float64 inputs in float64,
and each gradient is rounded once. The method is that of Dao et al., "FlashAttention",
arXiv:2205.14135, appendix B.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cupy_flash.backward.problem import NUMBERS, BackwardProblem, allocate
from cupy_flash.blocked import BLOCK_M, BLOCK_N
from cupy_flash.blocked_heads import BlockedHead, heads_of, matrix

Array = np.ndarray[Any, Any]


def backward(
    problem: BackwardProblem, arrays: Mapping[str, Array], out: tuple[Array | None, ...]
) -> tuple[Array, ...]:
    """Compute gradients of NumPy arrays, in the order of `wrt`; allocated where `out` is None."""
    forward = problem.forward
    heads = heads_of(forward, arrays)
    leading, dtype = forward.out_shape[:-2], np.dtype(forward.accumulate)
    totals = {gradient.name: np.zeros(gradient.shape, dtype) for gradient in problem.gradients}
    # A number is a matrix of one element.
    matrices = {
        name: total[..., np.newaxis, np.newaxis] if name in NUMBERS else total
        for name, total in totals.items()
    }
    results = tuple(
        allocate(np.empty, gradient) if given is None else given
        for gradient, given in zip(problem.gradients, out, strict=True)
    )
    # Overflow and NaN follow from the inputs and reach the result; a warning would say it twice.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for head in heads:
            dO, O, lse = (arrays[name][head.index].astype(dtype) for name in ("do", "o", "lse"))
            dlse = arrays["dlse"][head.index] if "dlse" in arrays else np.zeros_like(lse)
            delta = _product(O, dO).sum(axis=1) - dlse
            own = {name: matrix(total, leading, head.index) for name, total in matrices.items()}
            if "sinks" in own and head.sink != -np.inf:
                own["sinks"] -= (_weights(head.sink, lse) * delta).sum()
            differentiate(head, dO, lse[:, np.newaxis], delta[:, np.newaxis], own)
        for result, total in zip(results, totals.values(), strict=True):
            result[...] = total.astype(result.dtype)
    return results


def differentiate(
    head: BlockedHead, dO: Array, lse: Array, delta: Array, totals: Mapping[str, Array]
) -> None:
    """Add what one head's pairs of rows and keys contribute to its gradients.

    Parameters
    ----------
    head : BlockedHead
    dO : array, (m, p)
    lse, delta : array, (m, 1)
    totals : mapping
        Of the names of `wrt`, to the matrices of this head; those of numbers are (1, 1).
    """
    scores = head.scores
    scale_q, scale_s, dtype = scores.scale_q, scores.scale_s, dO.dtype
    for row in range(0, len(head.Q), BLOCK_M):
        rows = slice(row, min(row + BLOCK_M, len(head.Q)))
        Q = head.Q[rows].astype(dtype)
        begin, end = scores.keys(rows, len(head.K))
        for key in range(begin - begin % BLOCK_N, end, BLOCK_N):
            keys = slice(key, min(key + BLOCK_N, end))
            K, V = (x[keys].astype(dtype) for x in (head.K, head.V))
            products = (Q * scale_q) @ K.T
            S, sees = scores.of(products, rows, keys)
            # A row whose scores all overflowed to -inf has seen nothing either.
            sees &= ~np.isneginf(lse[rows])
            P = np.where(sees, _weights(S, lse[rows]), 0)
            dS = _product(P, dO[rows] @ V.T - delta[rows])
            # P and dS are 0 where a key is hidden, and 0 * NaN would be NaN.
            seeing, seen = sees.any(axis=1, keepdims=True), sees.any(axis=0, keepdims=True).T
            if "v" in totals:
                totals["v"][keys] += P.T @ np.where(seeing, dO[rows], 0)
            if "bias" in totals:
                _add_pairs(totals["bias"], dS, rows, keys)
            if "alibi_slopes" in totals:
                totals["alibi_slopes"] -= (dS * scores.distances(rows, keys).astype(dtype)).sum()
            dS = _product(dS, scores.slope_of_cap(products))
            if "k" in totals:
                totals["k"][keys] += (dS.T @ np.where(seeing, Q * scale_q, 0)) * scale_s
            if "q" in totals or "scale" in totals:
                along_q = dS @ np.where(seen, K, 0)
                if "q" in totals:
                    totals["q"][rows] += along_q * scale_q * scale_s
                if "scale" in totals:
                    totals["scale"] += _product(along_q, Q).sum()


def _weights(S: Array, lse: Array) -> Array:
    """Return exp(S - lse); a weight is at most 1, whatever the rounding of large scores says."""
    weights: Array = np.exp(np.minimum(S - lse, 0))
    return weights


def _product(weights: Array, x: Array) -> Array:
    """Return weights * x, 0 where the weights are: what isn't seen may be NaN."""
    product: Array = np.where(weights != 0, weights * x, 0)
    return product


def _add_pairs(total: Array, dS: Array, rows: slice, keys: slice) -> None:
    """Add a block to its place in a matrix of pairs, summed along its axes of extent 1."""
    axes = tuple(axis for axis in (0, 1) if total.shape[axis] == 1)
    where = tuple(
        slice(None) if extent == 1 else block
        for extent, block in zip(total.shape, (rows, keys), strict=True)
    )
    total[where] += dS.sum(axis=axes, keepdims=True)
