"""The scores of one head's blocks in NumPy, and which row sees which key.

The counterpart of `kernels_cu/score.cuh` and `kernels_cu/mask.cuh`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.params import split_softcap
from cupy_flash.problem import Problem

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Scores:
    """What becomes of the products of one head.

    Attributes
    ----------
    problem : Problem
    scale_q, scale_s : number
        Factors of Q and of the products, in the precision of the sums.
    offset : int
        Row i stands at key i + offset.
    mask, bias : array, (m, n), optional
    slope : number, optional
        Of ALiBi.
    """

    problem: Problem
    scale_q: Any
    scale_s: Any
    offset: int
    mask: Array | None = None
    bias: Array | None = None
    slope: Any = None

    def keys(self, rows: slice, n: int) -> tuple[int, int]:
        """Return the first of n keys that the window of any row reaches, and the one behind."""
        left, right = self.problem.left, self.problem.right
        begin = 0 if left is None else max(rows.start + self.offset - left, 0)
        end = n if right is None else min(rows.stop + self.offset + right, n)
        return begin, end

    def of(self, products: Array, rows: slice, keys: slice) -> tuple[Array, Array]:
        """Return a block's scores, -inf where a row doesn't see a key, and where it does.

        Parameters
        ----------
        products : array, (rows, keys)
            ``scale_q * Q @ K.T``.
        rows, keys : slice
            Where the block lies.

        Returns
        -------
        S, visible : array, (rows, keys)
        """
        i, j = np.ogrid[rows, keys]
        distance = j - (i + self.offset)
        visible = np.ones(products.shape, bool)
        if self.problem.left is not None:
            visible &= distance >= -self.problem.left
        if self.problem.right is not None:
            visible &= distance <= self.problem.right
        if self.mask is not None:
            visible &= self.mask[rows, keys]
        number = products.dtype.type
        if self.problem.softcap is None:
            S = products * self.scale_s
        else:
            cap, scale = split_softcap(
                self.problem.softcap, float(self.scale_s), self.problem.accumulate
            )
            S = number(cap) * np.tanh(products * number(scale))
        if self.bias is not None:
            bias = self.bias[rows, keys]
            visible &= bias != -np.inf
            S = S + bias.astype(products.dtype)
        if self.slope is not None:
            S = S - self.slope * np.abs(distance).astype(products.dtype)
        # Chosen, not added: a hidden score may be NaN.
        return np.where(visible, S, number(-np.inf)), visible
