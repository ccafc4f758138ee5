"""The oracle of gradients: what a backward pass has to compute, by formulas, in high precision.

`cupy_flash.attention` is, with the sums over the keys j that row i sees::

    s = scale * (q[i] @ k[j])
    y = softcap * tanh(s / softcap) + bias[i, j] - slope * abs(i + offset - j)
    lse[i] = log(exp(sink) + sum(exp(y)))
    P = exp(y - lse[i])
    out[i] = sum(P * v[j])

Below, dx is the gradient of a number L with respect to x; do and dlse are given. Without dlse, the
gradients of q, k and v are those of Dao et al., "FlashAttention", arXiv:2205.14135, appendix B.2.
The derivative of P[j] with respect to y[t] is ``P[j] * ((j == t) - P[t])``, that of lse is
``P[t]``, hence the last line::

    dv[j] = sum over i of P * do[i]
    dP = do[i] @ v[j]
    D[i] = sum(P * dP)                              (= do[i] @ out[i])
    dy = P * (dP - D[i] + dlse[i])

A sink is one more key, of score ``sink`` and value 0: its weight is ``exp(sink - lse[i])`` and its
dP is 0. The rest is the chain rule::

    dsink = sum over i of exp(sink - lse[i]) * (dlse[i] - D[i])
    dbias = dy
    dslope = -sum over i and j of dy * abs(i + offset - j)
    ds = dy * (1 - tanh(s / softcap)**2)
    dq[i] = scale * sum(ds * k[j])
    dk[j] = scale * sum over i of ds * q[i]
    dscale = sum over i and j of ds * (q[i] @ k[j])

Only visible pairs take part in these sums: what the others hold, NaN too, never matters. Of a row
that sees no key only lse can depend on anything: it is the sink, if there is one. An array that
broadcasts has the sum of the gradients of its copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash.arrays import FLOAT_NAMES, is_float
from cupy_flash.exact_head import Head
from cupy_flash.gradients import check_wrt, gradients_type
from cupy_flash.reference_heads import Heads, Window

Array = np.ndarray[Any, Any]


def attention_backward(
    do: Array,
    q: Array,
    k: Array,
    v: Array,
    /,
    *,
    dlse: Array | None = None,
    wrt: tuple[str, ...] = ("q", "k", "v"),
    scale: float | None = None,
    causal: bool = False,
    offset: int | None = None,
    window: Window | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    q_lengths: Array | None = None,
    k_lengths: Array | None = None,
) -> Any:
    """Compute the gradients of attention by their formulas, given those of its results.

    Of a number L that follows from out and lse, its gradients with respect to the arrays in `wrt`.
    The options are those of `cupy_flash.attention`, and `cupy_flash.reference.attention` computes
    the results.

    Parameters
    ----------
    do : NumPy array, (..., m, p)
        The gradient of L with respect to out, in out's shape: float16, bfloat16, float32, float64
        or longdouble. What it holds in rows that see no key never matters.
    q, k, v : NumPy arrays, (..., m, d), (..., n, d) and (..., n, p)
        float16, bfloat16 or float32 are computed in float64, float64 in `numpy.longdouble`.
    dlse : NumPy array, (..., m), optional
        The gradient of L with respect to lse, in lse's shape; the dtypes of `do`. What it holds
        where lse is -inf never matters; where lse is a sink alone it goes to the sink. Default 0.
    wrt : tuple of str, optional
        Of which arguments to return gradients, each once: out of "q", "k", "v", "bias", "sinks",
        "alibi_slopes" and "scale". Default ``("q", "k", "v")``.

    Returns
    -------
    named tuple of NumPy arrays
        A field for each name of `wrt`, in its order, in the shape of that argument: over axes that
        broadcast, heads of a group and batch entries that share it, gradients are summed. "scale"
        has shape (), also where the scale is the default one. 0 where a key is seen by no row, or
        bias is -inf, and of a q whose row sees no key.

    Raises
    ------
    TypeError, ValueError
        For names that aren't allowed, repeated, or of arrays not given, and for `do` and `dlse` of
        another type or shape.

    Examples
    --------
    Two keys of equal scores, values 0 and 1: out is 0.5, and the weight that moves is 0.25.

    >>> import numpy as np
    >>> from cupy_flash import reference
    >>> q, k, v = np.ones((1, 1)), np.ones((2, 1)), np.array([[0.0], [1.0]])
    >>> grads = reference.attention_backward(np.ones((1, 1)), q, k, v, wrt=("v", "k"))
    >>> grads._fields
    ('v', 'k')
    >>> grads.v.astype(float)
    array([[0.5],
           [0.5]])
    >>> grads.k.astype(float)
    array([[-0.25],
           [ 0.25]])
    """
    heads = Heads(
        q,
        k,
        v,
        scale=scale,
        causal=causal,
        offset=offset,
        window=window,
        mask=mask,
        bias=bias,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        q_lengths=q_lengths,
        k_lengths=k_lengths,
    )
    arrays = {"q": q, "k": k, "v": v, "bias": bias, "sinks": sinks, "alibi_slopes": alibi_slopes}
    shapes = {name: x.shape for name, x in arrays.items() if x is not None} | {"scale": ()}
    check_wrt(wrt, shapes)
    m, _, p = heads.sizes
    _check_gradient("do", do, (*heads.leading, m, p), "out")
    if dlse is None:
        dlse = np.zeros((*heads.leading, m))
    _check_gradient("dlse", dlse, (*heads.leading, m), "lse")
    gradients = {name: np.zeros(shapes[name], heads.exact) for name in wrt}
    for index, head in heads:
        # What a row sees may be anything: NaN comes out then, without a warning.
        with np.errstate(invalid="ignore", over="ignore"):
            found = _of_head(head, do[index].astype(heads.exact), dlse[index].astype(heads.exact))
            for name, total in gradients.items():
                is_number = name in ("sinks", "alibi_slopes", "scale")
                own = heads.matrix(total[..., None, None] if is_number else total, index)
                _add(own, found[name])
    return gradients_type(wrt)(**gradients)


def _of_head(head: Head, do: Array, dlse: Array) -> dict[str, Array]:
    """Return one head's gradients: matrices, of numbers (1, 1)."""
    # Rows that see no key and keys that no row sees drop out before any arithmetic.
    rows, keys = (np.flatnonzero(head.seen.any(axis=axis)) for axis in (1, 0))
    keyless = ~head.seen.any(axis=1)
    whole, head = head, head.part(rows, keys)
    dlse_of_sinks, do, dlse = dlse[keyless].sum(), do[rows], dlse[rows, None]
    seen = head.seen
    products = np.where(seen, head.q @ head.k.T, 0)
    y, slope_of_cap = head.scale * products, 1
    if head.softcap is not None:
        x = y / head.softcap
        y = head.softcap * np.tanh(x)
        # 1 - tanh**2, without what the difference loses where tanh is near 1.
        slope_of_cap = 1 / np.cosh(x) ** 2
    if head.bias is not None:
        y = y + head.bias
    if (alibi := head.alibi) is not None:
        y = y - alibi
    y = np.where(seen, y, -np.inf)
    sink = y.dtype.type(-np.inf) if head.sink is None else head.sink
    top = y.max(axis=1, keepdims=True, initial=sink)
    P, P_sink = np.exp(y - top), np.exp(sink - top)
    l = P.sum(axis=1, keepdims=True) + P_sink
    P, P_sink = P / l, P_sink / l
    dP = np.where(seen, do @ head.v.T, 0)
    D = (P * dP).sum(axis=1, keepdims=True)
    dy = np.where(seen, P * (dP - D + dlse), 0)
    ds = dy * slope_of_cap
    dsink = (P_sink * (dlse - D)).sum(keepdims=True) + dlse_of_sinks
    dq = head.scale * _over_visible(ds, head.k, seen)
    dk = head.scale * _over_visible(ds.T, head.q, seen.T)
    dv = _over_visible(P.T, do, seen.T)
    dslope = -dy * (0 if head.distance is None else head.distance)
    return {
        "q": _spread(dq, whole.q.shape, rows),
        "k": _spread(dk, whole.k.shape, keys),
        "v": _spread(dv, whole.v.shape, keys),
        "bias": _spread(dy, whole.seen.shape, np.ix_(rows, keys)),
        "sinks": np.where(sink == -np.inf, 0, dsink),
        "alibi_slopes": dslope.sum(keepdims=True),
        "scale": (ds * products).sum(keepdims=True),
    }


def _over_visible(weights: Array, x: Array, seen: Array) -> Array:
    """Multiply matrices; terms where `seen` is False are left out, as 0 times NaN is NaN."""
    if np.isfinite(x).all():
        product: Array = weights @ x
        return product
    return np.stack([row[sees] @ x[sees] for row, sees in zip(weights, seen, strict=True)])


def _spread(part: Array, shape: tuple[int, ...], where: Any) -> Array:
    whole = np.zeros(shape, part.dtype)
    whole[where] = part
    return whole


def _add(total: Array, gradient: Array) -> None:
    """Add a head's gradient to its place, summed over the axes along which that broadcasts."""
    axes = tuple(axis for axis, extent in enumerate(total.shape) if extent == 1)
    total += gradient.sum(axis=axes, keepdims=True)


def _check_gradient(name: str, x: Any, shape: tuple[int, ...], result: str) -> None:
    if not isinstance(x, np.ndarray):
        raise TypeError(
            f"attention_backward: {name} is a {type(x).__name__}; a NumPy array is needed. Convert "
            "it with numpy.asarray or cupy.asnumpy"
        )
    if not is_float(x.dtype) and x.dtype != np.dtype(np.longdouble):
        names = ", ".join(FLOAT_NAMES)
        raise TypeError(
            f"attention_backward: {name} has dtype {x.dtype}; allowed are {names} and longdouble. "
            f"Convert it: {name}.astype(numpy.float64)"
        )
    if x.shape != shape:
        way = f". The same number everywhere is numpy.full({shape}, number)" if x.ndim == 0 else ""
        raise ValueError(
            f"attention_backward: {name} has shape {x.shape}; it must be {shape}, the shape of "
            f"{result}{way}"
        )
