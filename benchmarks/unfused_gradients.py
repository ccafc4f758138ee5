"""Gradients of unfused attention with every option, rounded as a careful user's would be.

In 16 bits scores, softmax and sums are float32, and P and dS are rounded to the element type, as
the tensor cores want their factors; P of float16 carries 2^15, so that small weights keep their
bits. float32 and float64 are computed in their own type throughout, each product a chain of fused
multiply-adds as a GPU's is: NumPy's BLAS sums in blocks, which rounds less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash.accuracy import accumulation
from cupy_flash.exact_head import Head
from cupy_flash.reference_heads import Heads

Array = np.ndarray[Any, Any]
NUMBERS = ("sinks", "alibi_slopes")
EXPONENTS = {"float16": 15}


def unfused_gradients(
    do: Array, arguments: dict[str, Any], wrt: tuple[str, ...]
) -> dict[str, Array]:
    """Return the gradients by name, each in the dtype of its argument.

    `arguments` are those of `cupy_flash.attention`; q, k and v have one dtype.
    """
    heads, dtype = Heads(**arguments), arguments["q"].dtype
    working = np.dtype(accumulation(dtype.name))
    factors = dtype if dtype.itemsize == 2 else None
    totals = {name: np.zeros(arguments[name].shape, working) for name in wrt}
    for index, head in heads:
        found = _of_head(head, do[index].astype(working), working, factors)
        for name, total in totals.items():
            own = heads.matrix(total[..., None, None] if name in NUMBERS else total, index)
            axes = tuple(axis for axis, extent in enumerate(own.shape) if extent == 1)
            own += found[name].sum(axis=axes, keepdims=True)
    return {name: total.astype(arguments[name].dtype) for name, total in totals.items()}


def scores(head: Head, dtype: Any = np.float64) -> tuple[Array, Array]:
    """Return the scores, -inf where a row doesn't see a key, and the slopes of their cap."""
    return _scores(head, np.dtype(dtype), np.matmul)


def _scores(head: Head, dtype: Any, product: Any) -> tuple[Array, Array]:
    number = np.dtype(dtype).type
    y = product(head.q.astype(dtype), head.k.T.astype(dtype)) * number(head.scale)
    slope = np.ones_like(y)
    if head.softcap is not None:
        tanh = np.tanh(y / number(head.softcap))
        y, slope = number(head.softcap) * tanh, (1 - tanh) * (1 + tanh)
    if head.bias is not None:
        y = y + head.bias.astype(dtype)
    if head.distance is not None:
        y = y - number(head.slope) * head.distance.astype(dtype)
    return np.where(head.seen, y, number(-np.inf)), slope


def _of_head(head: Head, do: Array, dtype: Any, factors: Any) -> dict[str, Array]:
    product: Any = np.matmul if factors is not None else chained
    number = dtype.type
    q, k, v = (x.astype(dtype) for x in (head.q, head.k, head.v))
    y, slope = _scores(head, dtype, product)
    sink = number(-np.inf if head.sink is None else head.sink)
    top = np.maximum(y.max(axis=1, keepdims=True), sink)
    P, P_sink = np.exp(y - top), np.exp(sink - top)
    l = P.sum(axis=1, keepdims=True) + P_sink
    P, P_sink = P / l, P_sink / l
    dP = product(do, v.T)
    D = (P * dP).sum(axis=1, keepdims=True)
    dy = P * (dP - D)
    dS = dy * slope
    distance = np.zeros_like(y) if head.distance is None else head.distance.astype(dtype)
    if factors is not None:
        exponent = EXPONENTS.get(factors.name, 0)
        P = np.ldexp(np.ldexp(P, exponent).astype(factors).astype(dtype), -exponent)
        dS = dS.astype(factors).astype(dtype)
    return {
        "q": product(dS, k) * number(head.scale),
        "k": product(dS.T, q) * number(head.scale),
        "v": product(P.T, do),
        "bias": dy,
        "alibi_slopes": -(dy * distance).sum(keepdims=True),
        "sinks": -(P_sink * D).sum(keepdims=True),
    }


def chained(a: Array, b: Array) -> Array:
    """Multiply matrices with one rounding for each term."""
    wide: Any = np.longdouble if a.dtype == np.float64 else np.float64
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for column, row in zip(a.T.astype(wide), b.astype(wide), strict=True):
        total = (total + column[:, None] * row).astype(a.dtype)
    return total
