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
        distance = self._beyond(rows, keys)
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
            cap, scale = self._softcap()
            S = number(cap) * np.tanh(products * number(scale))
        if self.bias is not None:
            bias = self.bias[rows, keys]
            visible &= bias != -np.inf
            S = S + bias.astype(products.dtype)
        if self.slope is not None:
            S = S - self.slope * np.abs(distance).astype(products.dtype)
        # Chosen, not added: a hidden score may be NaN.
        return np.where(visible, S, number(-np.inf)), visible

    def slope_of_cap(self, products: Array) -> Array:
        """Return what the softcap multiplies gradients by, from one to far scores' zero.

        1 - tanh**2, without what the difference loses where tanh is near 1.
        """
        if self.problem.softcap is None:
            return np.ones_like(products)
        _, scale = self._softcap()
        slope: Array = 1 / np.cosh(products * products.dtype.type(scale)) ** 2
        return slope

    def distances(self, rows: slice, keys: slice) -> Array:
        """Return how far from each row's place each key is: what ALiBi multiplies slopes by."""
        return np.abs(self._beyond(rows, keys))

    def _beyond(self, rows: slice, keys: slice) -> Array:
        i, j = np.ogrid[rows, keys]
        beyond: Array = j - (i + self.offset)
        return beyond

    def _softcap(self) -> tuple[float, float]:
        scale = float(self.scale_s)
        return split_softcap(self.problem.softcap, scale, self.problem.accumulate)
