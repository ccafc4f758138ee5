"""A problem of the oracle as single heads: their matrices, what each row sees, their options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cupy_flash.exact_head import Head
from cupy_flash.products import FMA, Products

Array = np.ndarray[Any, Any]
Window = tuple[int | None, int | None]
# Of a head: its batch entry, and the query head where there is a head axis.
Index = tuple[int, ...]


def visibility(
    m: int,
    n: int,
    *,
    causal: bool = False,
    offset: int = 0,
    window: Window | None = None,
    rows: int | None = None,
    keys: int | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Return the (m, n) table of which row sees which key; mask and bias broadcast to it."""
    i, j = np.arange(m)[:, None], np.arange(n)[None, :]
    table = np.ones((m, n), bool)
    if rows is not None:
        table &= i < rows
    if keys is not None:
        table &= j < keys
    if causal:
        table &= j <= i + offset
    left, right = window or (None, None)
    if left is not None:
        table &= j >= i + offset - left
    if right is not None:
        table &= j <= i + offset + right
    if mask is not None:
        table &= mask
    if bias is not None:
        table &= bias != -np.inf
    return table


@dataclass(frozen=True, eq=False)
class Heads:
    """A problem; iterating yields each head's index in out's leading axes, and the head.

    The attributes are the arguments of `cupy_flash.attention`, and what multiplies, for the errors.
    """

    q: Array
    k: Array
    v: Array
    scale: float | None = None
    causal: bool = False
    offset: int | None = None
    window: Window | None = None
    mask: Array | None = None
    bias: Array | None = None
    softcap: float | None = None
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    q_lengths: Array | None = None
    k_lengths: Array | None = None
    products: Products = FMA

    @cached_property
    def exact(self) -> Any:
        """The type to compute in, above the precision of the inputs."""
        dtypes = (self.q.dtype, self.k.dtype, self.v.dtype)
        return np.longdouble if np.float64 in dtypes else np.float64

    @cached_property
    def has_heads(self) -> bool:
        """Whether axis -3 is the head axis."""
        return max(self.q.ndim, self.k.ndim, self.v.ndim) > 3

    @cached_property
    def batch(self) -> tuple[int, ...]:
        """The leading axes of out without the heads."""
        end = -3 if self.has_heads else -2
        return np.broadcast_shapes(*(x.shape[:end] for x in (self.q, self.k, self.v)))

    @cached_property
    def leading(self) -> tuple[int, ...]:
        """The leading axes of out."""
        if not self.has_heads:
            return self.batch
        heads = [x.shape[-3] if x.ndim > 2 else 1 for x in (self.q, self.k, self.v)]
        return (*self.batch, max(heads) if 0 not in heads else 0)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and p."""
        return self.q.shape[-2], self.k.shape[-2], self.v.shape[-1]

    def matrix(self, x: Array, index: Index) -> Array:
        """Return the matrix that a head has in x, a view; any of x's axes may broadcast."""
        x = x[(np.newaxis,) * (len(self.leading) + 2 - x.ndim)]
        # Only the head axis has an extent between 1 and out's: that of k and v, heads in groups.
        where = tuple(
            at * own // extent
            for at, own, extent in zip(index, x.shape, self.leading, strict=False)
        )
        found: Array = x[where]
        return found

    def __iter__(self) -> Iterator[tuple[Index, Head]]:
        """Yield every head."""
        exact, (m, n, _), d = self.exact, self.sizes, self.q.shape[-1]
        scale = exact(1) / np.sqrt(exact(d or 1)) if self.scale is None else exact(self.scale)
        mask, bias = (
            x if x is None else np.broadcast_to(x, (*self.leading, m, n))
            for x in (self.mask, self.bias)
        )
        slopes, sinks = (
            x if x is None else np.broadcast_to(x, self.leading)
            for x in (self.alibi_slopes, self.sinks)
        )
        for index in np.ndindex(*self.leading):
            q, k, v = (self.matrix(x, index).astype(exact) for x in (self.q, self.k, self.v))
            rows = self._length(self.q_lengths, index, m)
            keys = self._length(self.k_lengths, index, n)
            at = self.offset
            if at is None:
                at = (n if keys is None else keys) - (m if rows is None else rows)
            seen = visibility(
                m,
                n,
                causal=self.causal,
                offset=at,
                window=self.window,
                rows=rows,
                keys=keys,
                mask=None if mask is None else mask[index],
                bias=None if bias is None else bias[index],
            )
            distance = None
            if slopes is not None:
                distance = np.abs(np.arange(m)[:, None] + at - np.arange(n)).astype(exact)
            yield (
                index,
                Head(
                    q=q,
                    k=k,
                    v=v,
                    seen=seen,
                    scale=scale,
                    softcap=self.softcap,
                    bias=None if bias is None else bias[index].astype(exact),
                    slope=None if slopes is None else exact(slopes[index]),
                    distance=distance,
                    sink=None if sinks is None else exact(sinks[index]),
                    products=self.products,
                ),
            )

    def _length(self, lengths: Array | None, index: Index, limit: int) -> int | None:
        if lengths is None:
            return None
        entry = index[: len(self.batch)]
        return min(max(int(np.broadcast_to(lengths, self.batch)[entry]), 0), limit)
