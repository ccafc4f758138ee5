"""A NumPy problem as single heads: their matrices, cut to the lengths, and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.blocked_scores import Scores
from cupy_flash.params import split_scale
from cupy_flash.problem import Problem

Array = np.ndarray[Any, Any]
Index = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class BlockedHead:
    """One query head of one batch entry.

    Attributes
    ----------
    index : tuple of int
        Where it is in out's leading axes.
    Q, K, V : array, (rows, d), (keys, d), (keys, p)
        Without the padding behind the lengths.
    scores : Scores
        What makes scores of products.
    sink : number
        One more score in the denominator of every row; -inf for none.
    """

    index: Index
    Q: Array
    K: Array
    V: Array
    scores: Scores
    sink: Any


def heads_of(problem: Problem, arrays: Mapping[str, Array]) -> Iterator[BlockedHead]:
    """Check the lengths' values, which nothing has looked at so far; then yield every head."""
    lengths = [
        _lengths(name, arrays.get(name), problem.batch, limit)
        for name, limit in (("q_lengths", problem.m), ("k_lengths", problem.n))
    ]
    return _heads(problem, arrays, *lengths)


def _heads(
    problem: Problem, arrays: Mapping[str, Array], q_lengths: Array, k_lengths: Array
) -> Iterator[BlockedHead]:
    number = np.dtype(problem.accumulate).type
    scale_q, scale_s = map(number, split_scale(problem.scale, problem.accumulate))
    leading = problem.out_shape[:-2]

    def pairs(name: str, index: Index) -> Array | None:
        if name not in arrays:
            return None
        return np.broadcast_to(matrix(arrays[name], leading, index), (problem.m, problem.n))

    def single(name: str, index: Index) -> Any:
        return number(matrix(arrays[name][..., None, None], leading, index)[0, 0])

    for index in np.ndindex(leading):
        entry = index[: len(problem.batch)]
        rows, keys = int(q_lengths[entry]), int(k_lengths[entry])
        Q, K, V = (matrix(arrays[name], leading, index) for name in ("q", "k", "v"))
        yield BlockedHead(
            index=index,
            Q=Q[:rows],
            K=K[:keys],
            V=V[:keys],
            scores=Scores(
                problem=problem,
                scale_q=scale_q,
                scale_s=scale_s,
                offset=keys - rows if problem.offset is None else problem.offset,
                mask=pairs("mask", index),
                bias=pairs("bias", index),
                slope=single("alibi_slopes", index) if "alibi_slopes" in arrays else None,
            ),
            sink=single("sinks", index) if "sinks" in arrays else number(-np.inf),
        )


def matrix(x: Array, leading: tuple[int, ...], index: Index) -> Array:
    """Return the matrix that a head has in x, a view; any of x's axes may broadcast.

    Parameters
    ----------
    x : array, (..., rows, columns)
    leading : tuple of int
        Out's leading axes.
    index : tuple of int
        The head's place in them.
    """
    x = x[(np.newaxis,) * (len(leading) + 2 - x.ndim)]
    # Only the head axis has an extent between 1 and out's: that of k and v, heads in groups.
    place = tuple(
        at * own // extent for at, own, extent in zip(index, x.shape, leading, strict=False)
    )
    found: Array = x[place]
    return found


def _lengths(name: str, lengths: Array | None, batch: tuple[int, ...], limit: int) -> Array:
    if lengths is None:
        return np.full(batch, limit)
    if lengths.size and (lengths.min() < 0 or lengths.max() > limit):
        raise ValueError(
            f"attention: {name} has values from {lengths.min()} to {lengths.max()}; "
            f"they must lie in [0, {limit}]"
        )
    return np.broadcast_to(lengths, batch)
