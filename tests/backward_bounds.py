"""How far gradients may be off: first-order bounds from the sizes of all terms, summed.

Beside each gradient of the oracle there are two sums over the same pairs of rows and keys: of the
terms' sizes, and of how far each term may be off. The second has the roundings of the scores, of
lse (which is given in the precision of the sums), of the row's sum of do * o (o is rounded to its
own dtype) and of the products. Families that multiply on the tensor cores round P and dS to the
element type first.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from cupy_flash.accuracy import ROUNDS_P, accumulation
from cupy_flash.reference_heads import Heads

Array = np.ndarray[Any, Any]


def bounds(
    call: dict[str, Any],
    do: Array,
    dlse: Array,
    gradients: Any,
    dtype: str,
    dtypes: dict[str, Any],
    family: str | None = None,
    lost: float = 0.0,
) -> dict[str, Array]:
    """Return the largest error of every element.

    `call` holds the arguments of attention, `gradients` those of the oracle, `dtype` is out's and
    `dtypes` are the gradients'; `family` is that of the kernels. `lost` is what a product may be
    off by itself, of its size, where precision="tf32" permits that.
    """
    heads = Heads(**call)
    info = ml_dtypes.finfo(accumulation(dtype))
    u, tiny = float(info.eps), float(info.tiny)
    o_rounding = float(ml_dtypes.finfo(dtype).eps)
    o_tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    factors = ml_dtypes.finfo(dtype) if family in ROUNDS_P else None
    names = gradients._fields
    sizes, errors = (
        {name: np.zeros(np.shape(x)) for name, x in zip(names, gradients, strict=True)}
        for _ in range(2)
    )
    for index, head in heads:
        with np.errstate(all="ignore"):
            found = _of_head(
                head, do[index], dlse[index], u, tiny, o_rounding, o_tiny, factors, lost
            )
        for name in names:
            is_number = name in ("sinks", "alibi_slopes", "scale")
            for total, part in zip((sizes, errors), found[name], strict=True):
                whole = total[name]
                own = heads.matrix(whole[..., None, None] if is_number else whole, index)
                axes = tuple(axis for axis, extent in enumerate(own.shape) if extent == 1)
                own += part.sum(axis=axes, keepdims=True)
    m, n, _ = heads.sizes
    count = m * n * math.prod(heads.leading)
    result = {}
    for name, exact in zip(names, gradients, strict=True):
        own = ml_dtypes.finfo(dtypes[name])
        # A term goes through a block's sum and then one addition for each block and head.
        adds = 2 * math.sqrt(count) + 16
        off = errors[name] + u * adds * sizes[name] + tiny * count * (1 + sizes[name])
        rounded = float(own.eps) * (np.abs(exact.astype(float)) + off)
        # CuPy's compiler options flush float32's subnormal numbers, results of wider sums too.
        flushed = own.tiny if np.dtype(dtypes[name]) == np.float32 else own.smallest_subnormal
        result[name] = off + rounded + float(flushed)
    return result


def _of_head(
    head: Any,
    do: Array,
    dlse: Array,
    u: float,
    tiny: float,
    o_rounding: float,
    o_tiny: float,
    factors: Any,
    lost: float,
) -> dict[str, tuple[Array, Array]]:
    """Return the sizes of each gradient's terms, summed, and how far they may be off."""
    seen = head.seen
    rows, keys = seen.any(axis=1, keepdims=True), seen.any(axis=0)[:, None]
    do = np.where(rows, do.astype(float), 0)
    q, k, v = (
        np.where(kept, x.astype(float), 0)
        for kept, x in ((rows, head.q), (keys, head.k), (keys, head.v))
    )
    scale, (d, p) = abs(float(head.scale)), (q.shape[1], v.shape[1])
    plain = q @ k.T
    products = np.abs(q) @ np.abs(k).T
    y = float(head.scale) * plain
    size, slope, slope_error = scale * products, np.ones_like(y), np.zeros_like(y)
    off = (u * (d + 8) + lost) * size + tiny * (1 + scale) * (d + 1)
    if head.softcap is not None:
        x = y / head.softcap
        slope = 1 / np.cosh(x) ** 2
        # The kernels make it of 1 - tanh and 1 + tanh, which are off by the rounding of 1.
        slope_error = slope * np.expm1(np.minimum(4 * off / head.softcap, 60)) + 4 * u
        y = head.softcap * np.tanh(x)
        # tanh moves by the slope nearby, at most by its argument.
        off = np.minimum(off * np.minimum(slope + slope_error, 1), 2 * head.softcap)
        off = off + 8 * u * np.abs(y)
    for addend in (head.bias, None if head.alibi is None else -head.alibi):
        if addend is not None:
            addend = np.where(seen, addend.astype(float), 0)
            y = y + addend
            off = off + 4 * u * np.abs(addend)
    off = off + 2 * u * np.abs(y)
    y, off = np.where(seen, y, -np.inf), np.where(seen, off, 0)
    sink = -np.inf if head.sink is None else float(head.sink)
    top = np.maximum(y.max(axis=1, keepdims=True, initial=-np.inf), sink)
    base = np.where(np.isneginf(top), 0, top)
    lse = base + np.log(np.exp(y - base).sum(axis=1, keepdims=True) + np.exp(sink - base))
    seeing = ~np.isneginf(lse)
    lse = np.where(seeing, lse, 0)
    P, P_sink = np.where(seeing, np.exp(y - lse), 0), np.where(seeing, np.exp(sink - lse), 0)
    lse_off = off.max(axis=1, keepdims=True, initial=0) + u * (8 + len(k) / 8 + 4 * np.abs(lse))
    off = off + lse_off + 4 * u * np.abs(y - lse, where=seen, out=np.zeros_like(y))
    P_off = P * np.expm1(np.minimum(off + 8 * u, 60)) + np.where(seen, 4 * tiny, 0)
    sink_off = P_sink * np.expm1(np.minimum(lse_off + 8 * u, 60))
    dP = np.abs(do) @ np.abs(v).T
    dlse = np.where(seeing, np.abs(dlse.astype(float))[:, None], 0)
    D = (P * dP).sum(axis=1, keepdims=True)
    # The sums of p products, and what o's own rounding and its weights' errors leave.
    sums = u * (p + len(k) / 8 + 8)
    D_off = (o_rounding + sums) * D + (P_off * dP).sum(axis=1, keepdims=True) + u * dlse
    D_off = D_off + o_tiny * np.abs(do).sum(axis=1, keepdims=True) + tiny * p
    inner = dP + D + dlse
    dy = P * inner
    dy_off = np.where(
        seen, P_off * inner + (P + P_off) * ((sums + lost) * dP + D_off + tiny * p), 0
    )
    dy_off = dy_off + 8 * u * dy
    ds, ds_off = dy * slope, dy_off * (slope + slope_error) + dy * slope_error
    a, b = np.abs(q), np.abs(k)
    distance = np.zeros_like(y) if head.distance is None else head.distance.astype(float)
    total = np.abs(dlse) + D

    def rounded(x: Array, off: Array) -> tuple[Array, Array]:
        """Add what rounding to a factor of the tensor cores leaves, and products with it."""
        if factors is None:
            return x, off + lost * (x + off)
        rest = float(factors.eps) * (x + off) + float(factors.smallest_subnormal)
        return x, np.where(seen, off + rest, 0)

    def both(make: Any, first: Array, second: Array) -> tuple[Array, Array]:
        return make(first), make(second)

    return {
        "q": both(lambda w: scale * w @ b, *rounded(ds, ds_off)),
        "k": both(lambda w: scale * w.T @ a, *rounded(ds, ds_off)),
        "v": both(lambda w: w.T @ np.abs(do), *rounded(P, P_off)),
        "bias": (dy, dy_off),
        "alibi_slopes": both(lambda w: (w * distance).sum(keepdims=True), dy, dy_off),
        "scale": both(
            lambda w: (w * products).sum(keepdims=True), ds, ds_off + (u * (d + 8) + lost) * ds
        ),
        "sinks": (
            (P_sink * total).sum(keepdims=True),
            (sink_off * total + (P_sink + sink_off) * D_off).sum(keepdims=True),
        ),
    }
