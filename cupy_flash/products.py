"""What multiplies float32, and how much less accurate than fused multiply-adds it may be.

A chain of fused multiply-adds rounds each step to 24 bits. The tensor cores take shorter factors,
of which several make a float32, and cut sums off where FMA rounds them. In units of e = 2**-24, of
a sum of magnitude ``S = sum |x y|``:

* **three bfloat16 terms** (8 bits each) are a float32, but for what is flushed below 2**-126: after
  one term at most 16 bits are left, after two at most 8. Of the nine products of two factors' terms
  six are made. The others are below ``2**-8 2**-17`` of the whole twice, and ``2**-34``: 1 e S;
* **cuts**: a step of the tensor cores aligns the products and what was summed before to the largest
  of them, cuts each off 25 bits below it, and the sum to 24 bits (M. Fasi et al., PeerJ Comput.
  Sci. 7:e330, 2021). A step of 16 terms loses half an e for each, which is what a chain of FMA
  loses and what `accuracy` has in it, and ``2.5 e S`` of the sum before; 3 with those of the small
  products, which are 2**-8 of the others. What was summed in other steps counts: so the products
  with v are summed over one tile of 64 keys, whose sum is added to those before by FMA.

``precision="tf32"`` takes **two bfloat16 terms** and three products, which are off by ``2**-15`` at
most: a factor misses ``2**-17``, twice, and the product that is left out is at most ``2**-16``. One
TF32 product would be off by ``2**-10``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_E = 2.0**-24
# Terms that the tensor cores sum at a time.
STEP = 16


@dataclass(frozen=True)
class Products:
    """How products are made.

    Attributes
    ----------
    how : str
        In words.
    lost : float
        What a product may be off by itself, of its magnitude.
    cut : float
        What the sum before it may lose in each step of 16 terms, of the sum's magnitude.
    """

    how: str
    lost: float = 0.0
    cut: float = 0.0

    def error(self, terms: Any) -> Any:
        """Return what a sum of so many terms may be off more than FMA's, of its magnitude."""
        return self.lost + self.cut * -(-terms // STEP)


FMA = Products("by fused multiply-adds")
SIX_BFLOAT16 = Products("on the tensor cores, in six bfloat16 products of three terms", _E, 3 * _E)
THREE_BFLOAT16 = Products(
    "on the tensor cores, in three bfloat16 products of two terms", 2.0**-15, 3 * _E
)


def loosest(family: str | None, dtype: str, precision: str | None = None) -> Products:
    """Return the products with the largest bound that a family of kernels may make of float32.

    Parameters
    ----------
    family : str or None
        None for the NumPy path.
    dtype : str
        Element type of the result.
    precision : {None, "highest", "tf32"}
        As in `cupy_flash.attention`.
    """
    if dtype != "float32" or family != "simt":
        return FMA
    return THREE_BFLOAT16 if precision == "tf32" else SIX_BFLOAT16
