"""Softmax of NumPy arrays: both algorithms in blocks of columns, written as their definitions.

====== ===================================================================
m      maximum of each row's columns so far
l      sum of ``exp(x - m)`` over the columns so far
alpha  ``exp(m_old - m_new)``, what the sum so far must be multiplied by
====== ===================================================================

Three passes: m; then l; then the result. Online: m and l together in one pass, since a larger
maximum only changes what the sum is relative to; then the result. Sums run in float32, for float64
in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.axes import placed
from cupy_flash.softmaxes.problem import SoftmaxProblem

Array = np.ndarray[Any, Any]

# Elements that are computed at a time: small beside a core's cache and beside the array.
BLOCK = 4096
# Blocks of a row, so that its sums aren't long chains.
MOST_BLOCKS = 64


def forward(problem: SoftmaxProblem, x: Array, out: Array | None) -> Array:
    """Compute a softmax of a NumPy array; `out` is allocated where it is None."""
    if out is None:
        out = allocate(problem)
    dtype = np.dtype(problem.accumulate)
    rows, results = (np.moveaxis(a, problem.axis, -1) for a in (x, out))
    # Overflow and NaN follow from the input and reach the result; a warning would say it twice.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for index in _row_blocks(problem):
            block, result = rows[index], results[index]
            m, l = METHODS[problem.method](block, dtype)
            _write(block, result, m, l, dtype)
    return out


def allocate(problem: SoftmaxProblem) -> Array:
    """Allocate a result in the memory order that the problem planned."""
    info = placed(problem.shape, problem.o_strides, to_dtype(problem.dtype))
    order = sorted(range(info.ndim), key=lambda axis: (-info.strides[axis], axis))
    dense: Array = np.empty([info.shape[axis] for axis in order], info.dtype)
    return dense.transpose([order.index(axis) for axis in range(info.ndim)])


def three_pass(rows: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return m and l of rows, (..., n) to (..., 1): a pass for the maximum, one for the sum."""
    m = np.full((*rows.shape[:-1], 1), -np.inf, dtype)
    for columns in _column_blocks(rows):
        m = np.maximum(m, _maximum(columns.astype(dtype)))
    l = np.zeros_like(m)
    for columns in _column_blocks(rows):
        l += _weights(columns, m, dtype).sum(axis=-1, keepdims=True)
    return m, l


def online(rows: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return m and l of rows, (..., n) to (..., 1), in one pass."""
    m = np.full((*rows.shape[:-1], 1), -np.inf, dtype)
    l = np.zeros_like(m)
    for columns in _column_blocks(rows):
        m_new = np.maximum(m, _maximum(columns.astype(dtype)))
        alpha = np.exp(m - _reference(m_new))
        l = alpha * l + _weights(columns, m_new, dtype).sum(axis=-1, keepdims=True)
        m = m_new
    return m, l


METHODS = {"three_pass": three_pass, "online": online}


def _write(rows: Array, results: Array, m: Array, l: Array, dtype: np.dtype[Any]) -> None:
    # Every other row has l >= 1, or NaN.
    inverse = np.where(l == 0, dtype.type(0), dtype.type(1) / np.where(l == 0, dtype.type(1), l))
    targets = _column_blocks(results)
    for columns, target in zip(_column_blocks(rows), targets, strict=True):
        P = _weights(columns, m, dtype)
        P *= inverse
        target[...] = P


def _weights(columns: Array, m: Array, dtype: np.dtype[Any]) -> Array:
    # C order: a row's bits must not depend on how the array lies in memory.
    P: Array = columns.astype(dtype, order="C")
    P -= _reference(m)
    np.exp(P, out=P)
    return P


def _maximum(columns: Array) -> Array:
    """Return the maximum without NaN, which reaches the result through the sum."""
    m: Array = np.fmax.reduce(columns, axis=-1, keepdims=True)
    return m


def _reference(m: Array) -> Array:
    """Return m, 0 for a row of nothing but -inf: -inf - -inf would be NaN."""
    return np.where(m == -np.inf, m.dtype.type(0), m)


def _column_blocks(rows: Array) -> Iterator[Array]:
    n = rows.shape[-1]
    step = max(BLOCK, -(-n // MOST_BLOCKS))
    return (rows[..., begin : begin + step] for begin in range(0, n, step))


def _row_blocks(problem: SoftmaxProblem) -> Iterator[tuple[Any, ...]]:
    """Yield indices of rows that are computed together: neighbours along the last axis of rows."""
    if problem.size == 0:
        return
    *outer, last = problem.row_shape or (1,)
    step = max(BLOCK // problem.columns, 1)
    for index in np.ndindex(*outer):
        if not problem.row_shape:
            yield (None, slice(None))
            continue
        for begin in range(0, last, step):
            yield (*index, slice(begin, begin + step))
