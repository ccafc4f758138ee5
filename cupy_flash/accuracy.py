"""How far a result may be from the exact one, computed for each element from the data.

The bounds follow from the algorithm's roundings, with multiplier 1: a right kernel stays within
them on every input, and a lost key, a wrong scale or a sum in too few bits does not. In units of
e = 2**-24 (2**-53 for float64):

* a score of magnitude ``S = scale * sum |q_x k_x|`` at distance ``D`` below the row's maximum has
  error at most ``delta = e ((d / 2 + 4) S + 4 D + 8)``, so its weight changes by a factor between
  ``exp(-delta)`` and ``exp(delta)``, and the output by at most
  ``E = (sum P (exp(delta) - 1) |v| + |o| sum P (exp(delta) - 1)) / sum P exp(-delta)``. What
  softcap, bias and ALiBi add to delta is derived in `cupy_flash.exact_head`; a sink is one more P
  without v;
* an output of magnitude ``A = sum P |v|`` has error at most
  ``u |o| + E + 2 e (sqrt(n) + n / 64 + 8) A``, u being the rounding of the output's dtype;
* a kernel that rounds P to 16 bits adds ``u A``, and for float16 ``2**-40`` of the largest ``|v|``
  a key, what the scaled P loses at the lower end of its range;
* lse has error at most ``e ((4 + 3 sqrt(d)) max S + |lse| + 64 + sqrt(n))``: a score is a chain of
  d fused multiply-adds, whose roundings add up like a random walk of steps below ``0.6 e S``, and
  five standard deviations of it are ``3 sqrt(d) e S`` (an H200 reaches 8.7 e S at d = 43 where one
  product dominates). The scale with the change to base 2, its product, ln(2) and its product round
  once each, and so does lse itself. Softcap, bias and ALiBi change the first term as they change
  delta, and what converting a sink rounds takes part in the maximum.

That is of chains of fused multiply-adds. Where the tensor cores multiply float32 in parts, a sum of
t products may be off by ``x(t)`` of its magnitude more, as ``cupy_flash.products`` derives: a score
by ``x(d) S``, in delta and for lse, and an output by ``x(min(n, 64)) A``, for a tile of keys is
summed there and added outside. ``x(t)`` is ``(1 + 3 ceil(t / 16)) e`` of six bfloat16 products,
and of three, with ``precision="tf32"``, 2**-15 more. ``Reference.products`` says which.

Kernels flush float32 numbers below 2**-126 to zero, inputs, sums and results alike (CuPy compiles
with -ftz=true); what that can lose is added, and is nothing for ordinary data. P carries a factor
of at least 1 / (4 n), so a key's weight counts as zero below 4 n 2**-126, and the sums of P v end
there too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash.reference import Reference

Array = np.ndarray[Any, Any]

# Half an ulp, relative; and half the distance of the smallest numbers.
ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1074}
FLUSHED = {"float32": 2.0**-126, "float64": 2.0**-1022}
# Most keys whose products with v the tensor cores sum before the sum is added outside.
TILE = 64


def accumulation(dtype: str) -> str:
    """Return the dtype that sums of a result of `dtype` run in."""
    return "float64" if dtype == "float64" else "float32"


# Families that round P to the element type before P v, and what float16's range takes from weights:
# scaled by 2**15, they are rounded to multiples of 2**-24.
ROUNDS_P = ("sm80", "sm90")
LOST_WEIGHT = {"float16": 2.0**-40}


def out_bound(
    exact: Reference,
    dtype: str,
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    family: str | None = None,
) -> Array:
    """Return the largest allowed ``|out - exact.out|`` of every element.

    Parameters
    ----------
    exact : Reference
        Of the same problem.
    dtype : str
        Element type of the result.
    q, k, v : NumPy arrays
        The inputs, for what flushing small numbers can lose.
    scale : float
        Factor of the scores.
    family : str, optional
        The kernel family, if it is known: those of ROUNDS_P may be off by the rounding of P too.
    """
    e = ROUNDING[accumulation(dtype)]
    n = exact.visible[..., None].astype(np.float64)
    A = exact.probabilities_abs_v
    sums = 2 * e * (np.sqrt(n) + n / 64 + 8) * A
    sums = sums + exact.products.error(np.minimum(n, TILE)) * A
    rounding = np.maximum(ROUNDING[dtype] * np.abs(exact.out), SMALLEST[dtype])
    flushed = FLUSHED[accumulation(dtype)]
    lost_scores = flushed * q.shape[-1] * (_largest(q) + _largest(k)) * max(abs(scale), 1.0)
    # Each visible key can lose its weight, in O and in l, and each step of the sum its last bits.
    weight = n * (4 * k.shape[-2] * flushed)
    lost_sums = weight + 2 * weight * _largest(v)
    bound: Array = rounding + exact.out_errors + sums + 2 * A * lost_scores + lost_sums
    if family in ROUNDS_P:
        bound = bound + ROUNDING[dtype] * A + n * LOST_WEIGHT.get(dtype, 0.0) * _largest(v)
    return bound


def lse_bound(exact: Reference, dtype: str, q: Array, k: Array, scale: float) -> Array:
    """Return the largest allowed ``|lse - exact.lse|`` of every row.

    Without visible keys: what converting the row's sink rounds, 0 without sinks.
    """
    e = ROUNDING[accumulation(dtype)]
    flushed = FLUSHED[accumulation(dtype)]
    lost = flushed * q.shape[-1] * (_largest(q) + _largest(k)) * max(abs(scale), 1.0)
    own = np.where(exact.visible > 0, np.abs(exact.lse), 0) + 64 + np.sqrt(exact.visible)
    return exact.lse_errors + np.where(exact.visible > 0, e * own + lost, 0)


def softmax_bound(x: Array, exact: Array, axis: int = -1) -> Array:
    """Return the largest allowed ``|softmax(x) - exact|`` of every element.

    With ``D`` the distance of an element below its row's maximum and n the row's length, in units
    of e as above:

    * ``exp(-D)`` is off by ``3 D + 4``: the difference, log2(e), the product and ex2 itself;
    * the sum is off by the same of each of its terms, weighted by their share P; by 6 for each
      rescaling (an exponential and a product, whose distances add up to D again); and by 1 for
      each addition on a term's way;
    * the reciprocal and the product round once each.

    A term meets one addition for each element of its thread (up to 128, of the longest rows one for
    each 2**16 elements) and 20 between threads. It is rescaled in a thread for each 16 of its
    elements, and where threads, warps and parts of a row are joined; on the NumPy path for each
    4096 elements, at most 64 times. Weights that a kernel keeps (float64) are joined to the row's
    maximum by one exponential and one product more.

    Parameters
    ----------
    x : NumPy array
        The input, in the element type of the result.
    exact : array, of x's shape
        `cupy_flash.reference.softmax` of it, without NaN.
    axis : int
        The axis that was summed over.
    """
    dtype, n = x.dtype.name, x.shape[axis]
    e = ROUNDING[accumulation(dtype)]
    S = x.astype(exact.dtype)
    m = S.max(axis=axis, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        D = np.where(exact > 0, m - S, 0)
    blocks = min(n / 4096, 64)
    rescalings = 2 + min(n / 256, 6) + blocks + n / 2**20
    additions = min(n, 128) + 20 + blocks + n / 2**16
    distances = 4 * (D + (exact * D).sum(axis=axis, keepdims=True))
    relative = distances + 16 + 6 * rescalings + additions
    rounding = np.maximum(ROUNDING[dtype] * exact, SMALLEST[dtype])
    bound: Array = rounding + e * relative * exact + (n + 2) * FLUSHED[accumulation(dtype)]
    return bound


def _largest(x: Array) -> float:
    magnitudes = np.abs(x.astype(np.float64))
    return float(np.max(magnitudes, initial=0.0, where=np.isfinite(magnitudes)))


@dataclass(frozen=True)
class Comparison:
    """A result beside the exact one.

    Attributes
    ----------
    ratio : float
        Largest error in units of its bound; a right result has at most 1. inf for a NaN, an
        infinity, or an error where none is allowed.
    worst : tuple of int
        Index of that element.
    max_error, rms_error : float
        Largest and root-mean-square absolute error.
    got, want : float
        The worst element and its exact value.
    """

    ratio: float
    worst: tuple[int, ...]
    max_error: float
    rms_error: float
    got: float
    want: float

    @property
    def ok(self) -> bool:
        """Whether every element is within its bound."""
        return self.ratio <= 1.0

    def __str__(self) -> str:
        """Say the worst element in one line."""
        return (
            f"error / bound = {self.ratio:.3g} at {self.worst} (got {self.got!r}, exact "
            f"{self.want!r}); max {self.max_error:.3g}, rms {self.rms_error:.3g}"
        )


def compare(got: Array, want: Array, bound: Array) -> Comparison:
    """Compare element by element; infinities must be equal and NaN is never accepted."""
    if got.shape != want.shape:
        raise ValueError(f"compare: shapes {got.shape} and {want.shape} differ")
    if got.size == 0:
        return Comparison(0.0, (), 0.0, 0.0, 0.0, 0.0)
    got = got.astype(want.dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(got == want, 0, np.abs(got - want))
        ratio = np.where(error == 0, 0, error / bound)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape)
    finite = error[np.isfinite(error)].astype(np.float64)
    largest = float(finite.max(initial=0.0)) or 1.0
    return Comparison(
        ratio=float(ratio[worst]),
        worst=tuple(int(i) for i in worst),
        max_error=float(error.max()),
        # Scaled, since errors of float64's largest numbers have no square.
        rms_error=largest * float(np.sqrt(np.mean((finite / largest) ** 2)))
        if finite.size
        else float("nan"),
        got=float(got[worst]),
        want=float(want[worst]),
    )
