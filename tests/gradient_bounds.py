"""How far rounding can move each gradient, element by element.

The formulas are those of `cupy_flash.reference_backward`, each with the errors of what goes into
it; those of scores are `cupy_flash.exact_head`'s. e is the rounding of the type that sums run in. A
sum of N terms is off by ``e (N + 8)`` times the sum of their magnitudes. What the kernels get of a
row is out, rounded to its dtype, and lse: delta, and with it dP - delta of every pair of the row,
is off by the rounding of out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash.accuracy import FLUSHED, ROUNDING, SMALLEST, accumulation
from cupy_flash.exact_head import Head, scores_and_errors
from cupy_flash.reference_heads import Heads
from problems import Arrays, result_dtype

Array = np.ndarray[Any, Any]


def bounds(
    arrays: Arrays, do: Array, dlse: Array, wrt: tuple[str, ...], exact: Any
) -> dict[str, Array]:
    """Return the largest allowed error of each element of the gradients `wrt`."""
    dtype = result_dtype(arrays.case)
    inputs = [x.numpy() for x in arrays.inputs().values()]
    given = dict(zip("qkv", inputs, strict=True))
    given |= {name: x.numpy() for name, x in arrays.small().items()}
    options = {**arrays.options()}
    heads = Heads(*inputs, **options)
    entries = int(np.prod(heads.leading))
    found = {name: np.zeros(getattr(exact, name).shape, heads.exact) for name in wrt}
    for index, head in heads:
        own = _of_head(head, *(x[index].astype(heads.exact) for x in (do, dlse)), dtype, entries)
        for name, total in found.items():
            number = name in ("sinks", "alibi_slopes", "scale")
            place = heads.matrix(total[..., None, None] if number else total, index)
            axes = tuple(axis for axis, extent in enumerate(place.shape) if extent == 1)
            place += own[name].sum(axis=axes, keepdims=True)
    for name, total in found.items():
        target = accumulation(dtype) if name == "scale" else given[name].dtype.name
        total += ROUNDING[target] * np.abs(getattr(exact, name)) + SMALLEST[target]
    return found


def _of_head(head: Head, do: Array, dlse: Array, dtype: str, entries: int) -> dict[str, Array]:
    rows, keys = (np.flatnonzero(head.seen.any(axis=axis)) for axis in (1, 0))
    whole, head = head, head.part(rows, keys)
    keyless = ~whole.seen.any(axis=1)
    lost = np.abs(dlse[keyless]).sum()
    do, dlse, seen = do[rows], dlse[rows, None], head.seen
    e, e_out = ROUNDING[accumulation(dtype)], ROUNDING[dtype]
    tiny = FLUSHED[accumulation(dtype)]
    (m, d), (n, p) = head.q.shape, head.v.shape
    sums = e * (max(m, n) + entries + 8)
    q, k, v, g = (np.abs(np.where(np.isnan(x), 0, x)) for x in (head.q, head.k, head.v, do))
    scale = abs(head.scale)
    scores, errors, _ = scores_and_errors(head)
    sink = head.q.dtype.type(-np.inf) if head.sink is None else head.sink
    top = scores.max(axis=1, keepdims=True, initial=sink)
    lse = top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True) + np.exp(sink - top))
    P = np.exp(scores - lse)
    out, dP = P @ head.v, np.where(seen, do @ head.v.T, 0)
    D = (do * out).sum(axis=1, keepdims=True)

    # What the logarithm of a weight is off by. Beyond 80 a bound says nothing; exp stays finite.
    size = np.where(seen, np.abs(scores), 0)
    below = np.where(seen, np.abs(scores - lse), 0)
    lost_products = 4 * tiny * d * (q.max(initial=0) + k.max(initial=0) + 1) * max(scale, 1)
    log_error = errors + e * (size + 2 * np.abs(lse) + 4 * below + 8) + lost_products
    P_error = np.where(seen, P * np.expm1(np.minimum(log_error, 80)) + 2 * tiny, 0)
    dP_error = e * (p + 8) * (g @ v.T) + 4 * tiny * p * (g.max(initial=0) + v.max(initial=0) + 1)
    of_out = (g * np.abs(out)).sum(axis=1, keepdims=True)
    D_error = (e_out + e * (p + 8)) * of_out + e * np.abs(dlse)
    D_error = D_error + (SMALLEST[dtype] + 2 * tiny) * (g.sum(axis=1, keepdims=True) + p)
    rest, rest_size = np.abs(dP - D + dlse), np.abs(dP) + np.abs(D) + np.abs(dlse)
    rest_error = dP_error + D_error + 4 * e * rest_size
    dy, dy_error = P * rest, P_error * (rest + rest_error) + P * rest_error + 2 * tiny
    dy_error = np.where(seen, dy_error + 2 * e * dy, 0)

    slope, slope_error = 1.0, 0.0
    if head.softcap is not None:
        t = np.tanh(np.where(seen, head.scale * (head.q @ head.k.T), 0) / head.softcap)
        argument = (e * (d + 8) * scale * (q @ k.T) + lost_products) / head.softcap
        slope, slope_error = 1 - t**2, 2 * np.minimum(argument, 1) + 24 * e
    dx, dx_error = dy * slope, dy_error * (slope + slope_error) + dy * slope_error
    dx_error = dx_error + 2 * e * dx

    def product(weight: Array, error: Array, x: Array) -> Array:
        flushed = tiny * ((weight + error).sum(axis=1, keepdims=True) + 2 * weight.shape[1] + 2)
        return (error + sums * weight) @ x + flushed

    dot = np.where(seen, np.abs(head.q @ head.k.T), 0)
    dot_error = e * (d + 8) * (q @ k.T) + lost_products / min(scale or 1, 1)
    dscale = dx_error * (dot + dot_error) + dx * (dot_error + sums * dot)
    distance = 0 if head.distance is None else head.distance
    w = np.exp(sink - lse)
    # A sink of -inf weighs nothing.
    of_sink = np.where(w > 0, np.abs(np.where(w > 0, sink - lse, 0)), 0)
    w_error = w * np.expm1(np.minimum(e * (8 * of_sink + 8 * np.abs(lse) + 8), 80)) + 2 * tiny
    dsink = w_error * (np.abs(D - dlse) + D_error) + w * (D_error + sums * np.abs(D - dlse))
    return {
        "q": _spread((scale + 4 * tiny) * product(dx, dx_error, k), whole.q.shape, rows),
        "k": _spread((scale + 4 * tiny) * product(dx.T, dx_error.T, q), whole.k.shape, keys),
        "v": _spread(product(P.T, P_error.T, g), whole.v.shape, keys),
        "bias": _spread(dy_error + sums * dy, whole.seen.shape, np.ix_(rows, keys)),
        "sinks": dsink.sum(keepdims=True) + sums * lost,
        "alibi_slopes": ((dy_error + sums * dy) * distance).sum(keepdims=True),
        "scale": dscale.sum(keepdims=True),
    }


def _spread(part: Array, shape: tuple[int, ...], where: Any) -> Array:
    whole = np.zeros(shape, part.dtype)
    whole[where] = part
    return whole
