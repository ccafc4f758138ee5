"""One head of attention by its formula, and how far rounding can move what comes out of it.

The errors are for `cupy_flash.accuracy`. With e = 2**-24 (2**-53 for float64), and each step's
exact result in place of the rounded one, which changes the step's own rounding by e**2 only:

* a score ``s = scale * q @ k`` of magnitude ``S = scale * sum |q_x k_x|`` has an error of
  ``e (d / 2 + 4) S`` where it moves a weight, and of ``e (3 sqrt(d) + 4) S`` where it moves lse
  (`accuracy` says why), and on the tensor cores of what ``cupy_flash.products`` derives in both;
* ``c * tanh(s / c)``: the slope of tanh is at most 1 and falls on both sides of 0, so an error r
  of s moves the result by at most ``c * (tanh(|s| / c) - tanh((|s| - r) / c))``. tanh itself is off
  by 4 ulp (8 e) at most, c and the product round once each; the division by c is part of the scale.
  A quotient that is flushed to zero loses ``2**-126 c``;
* a bias b rounds once when it is converted, and the sum ``x = capped + b`` once: ``e (|b| + |x|)``;
* ALiBi: the slope, the distance and their product a round once each, and the sum ``y = x - a``
  once: ``e (3 |a| + |y|)``;
* a score at distance D below the row's maximum then has a weight whose logarithm is off by another
  ``e (4 D + 8)``: the difference, log2(e), the product and ex2, and the same where it is rescaled.
  A sink joins at the end, by one more exponential and product: ``5 e``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cupy_flash.products import FMA, Products

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Head:
    """One head's matrices and options, in the precision of the result.

    Attributes
    ----------
    q, k, v : array
    seen : array of bool, (rows, keys)
        Which row sees which key.
    scale : number
    softcap : float or None
    bias : array, (rows, keys), or None
        What is added to the scores.
    slope : number or None
    distance : array, (rows, keys), or None
        ALiBi: their product is subtracted from the scores.
    sink : number or None
        One more score in every row's denominator.
    products : Products
        What multiplies, for the errors.
    """

    q: Array
    k: Array
    v: Array
    seen: Array
    scale: Any
    softcap: float | None = None
    bias: Array | None = None
    slope: Any = None
    distance: Array | None = None
    sink: Any = None
    products: Products = FMA

    @property
    def alibi(self) -> Array | None:
        """What ALiBi subtracts from the scores."""
        return None if self.distance is None else self.slope * self.distance

    def part(self, rows: Array, keys: Array) -> Head:
        """Return the head with some of its rows and keys."""
        pairs = np.ix_(rows, keys)
        return replace(
            self,
            q=self.q[rows],
            k=self.k[keys],
            v=self.v[keys],
            seen=self.seen[pairs],
            bias=None if self.bias is None else self.bias[pairs],
            distance=None if self.distance is None else self.distance[pairs],
        )


@dataclass(frozen=True)
class Rows:
    """Results of the rows that see a key: where they are, and `cupy_flash.reference`'s fields."""

    rows: Array
    out: Array
    lse: Array
    probabilities_abs_v: Array
    out_errors: Array
    lse_errors: Array
    visible: Array


def compute(head: Head) -> Rows:
    """Compute the rows of a head that see a key."""
    # Keys that no row sees drop out before any arithmetic, whatever they hold.
    rows = np.flatnonzero(head.seen.any(axis=1))
    head = head.part(rows, np.flatnonzero(head.seen.any(axis=0)))
    seen, v, sink = head.seen, head.v, head.sink
    unit = _unit(v)
    with np.errstate(invalid="ignore", over="ignore"):
        scores, weight_errors, lse_errors = _scores(head)
    top = scores.max(axis=1, keepdims=True, initial=-np.inf)
    steps = 8
    sink_weight = np.zeros_like(top)
    sink_error = np.zeros_like(top)
    if sink is not None and sink != -np.inf:
        top = np.maximum(top, sink)
        steps += 5
        sink_weight = np.exp(sink - top)
        sink_error = unit * (abs(sink) + 4 * (top - sink) + steps)
        lse_errors = np.maximum(lse_errors, sink_rounding(sink))
    weights = np.exp(scores - top)
    l = weights.sum(axis=1, keepdims=True) + sink_weight
    P, P_sink = weights / l, sink_weight / l
    weight_errors = weight_errors + unit * (4 * np.where(seen, top - scores, 0) + steps)
    # Beyond 80 a bound says nothing; exp stays finite.
    weight_errors, sink_error = (np.minimum(x, 80) for x in (weight_errors, sink_error))
    grown = np.where(seen, P * np.expm1(weight_errors), 0)
    shrunk = np.where(seen, P * np.exp(-weight_errors), 0).sum(axis=1, keepdims=True)
    l_grown = grown.sum(axis=1, keepdims=True) + P_sink * np.expm1(sink_error)
    l_shrunk = shrunk + P_sink * np.exp(-sink_error)
    if np.isfinite(v).all():
        out = P @ v
    else:
        out = np.stack([row[sees] @ v[sees] for row, sees in zip(P, seen, strict=True)])
    return Rows(
        rows=rows,
        out=out,
        lse=(top + np.log(l))[:, 0],
        probabilities_abs_v=P @ np.abs(v),
        out_errors=(grown @ np.abs(v) + np.abs(out) * l_grown) / l_shrunk,
        lse_errors=lse_errors,
        visible=seen.sum(axis=1),
    )


def sink_rounding(sink: Any) -> Any:
    """Return what converting a sink rounds; also all that lse of a row without keys may be off."""
    return _unit(sink) * abs(sink) if np.isfinite(sink) else 0


def _unit(x: Any) -> float:
    return 2.0**-53 if x.dtype == np.longdouble else 2.0**-24


def _scores(head: Head) -> tuple[Array, Array, Array]:
    """Return the scores, how far each is off where it moves a weight, and each row's worst for lse.

    A pair that isn't visible has score -inf and error 0.
    """
    unit, d = _unit(head.q), head.q.shape[1]
    S = abs(head.scale) * (np.abs(head.q) @ np.abs(head.k).T)
    scores = head.scale * (head.q @ head.k.T)
    more = head.products.error(d)
    errors = (unit * (d / 2 + 4) + more) * S, (unit * (3 * math.sqrt(d) + 4) + more) * S
    if head.softcap is not None:
        c, size = head.softcap, np.abs(scores)
        scores = c * np.tanh(scores / c)
        own = 10 * unit * np.abs(scores) + c * (2.0**-1022 if unit == 2.0**-53 else 2.0**-126)
        errors = tuple(c * (np.tanh(size / c) - np.tanh((size - r) / c)) + own for r in errors)
    if head.bias is not None:
        scores = scores + head.bias
        errors = tuple(r + unit * (np.abs(head.bias) + np.abs(scores)) for r in errors)
    if (alibi := head.alibi) is not None:
        scores = scores - alibi
        errors = tuple(r + unit * (3 * np.abs(alibi) + np.abs(scores)) for r in errors)
    for_weights, for_lse = (np.where(head.seen, r, 0) for r in errors)
    return np.where(head.seen, scores, -np.inf), for_weights, for_lse.max(axis=1, initial=0)
