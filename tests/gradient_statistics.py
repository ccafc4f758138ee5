"""The max and rms rule of gradients: errors are those of an unfused computation, or little more.

The baseline computes scores, softmax and all sums in float32, and rounds P and dS to the element
type, as tensor cores want their factors. Arrays are NumPy's or CuPy's: `xp` is their module.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash import accuracy

# (of the largest error, of the rms): 16 bits; sums of float32 run in another order.
FACTORS = {"float16": (2.0, 1.3), "bfloat16": (2.0, 1.3), "float32": (4.0, 4.0)}


def rounded(xp: Any, x: Any, dtype: str) -> Any:
    """Round float32 numbers to those of an element type."""
    if dtype == "float16":
        return x.astype(xp.float16).astype(xp.float32)
    if dtype == "bfloat16":
        bits = xp.ascontiguousarray(x).view(xp.uint32)
        bits = bits + xp.uint32(0x7FFF) + ((bits >> xp.uint32(16)) & xp.uint32(1))
        return (bits & xp.uint32(0xFFFF0000)).view(xp.float32)
    return x


def unfused_gradients(
    xp: Any, arrays: list[Any], dtype: Any, scale: float, causal: bool, factors: str | None
) -> dict[str, Any]:
    """Compute dq, dk and dv of (heads, rows, columns) do, q, k and v, one key head for all.

    `factors` is the element type of P and dS in their products.
    """
    do, q, k, v = (x.astype(dtype) for x in arrays)
    m, n = q.shape[1], k.shape[1]
    hidden = xp.arange(n) > xp.arange(m)[:, None] + (n - m)
    found = {"q": xp.empty_like(q), "k": xp.zeros_like(k), "v": xp.zeros_like(v)}
    for head in range(len(q)):
        S = dtype(scale) * (q[head] @ k[0].T)
        if causal:
            S = xp.where(hidden, dtype(-np.inf), S)
        P = xp.exp(S - S.max(axis=1, keepdims=True))
        P = P / P.sum(axis=1, keepdims=True)
        dP = do[head] @ v[0].T
        dS = P * (dP - (P * dP).sum(axis=1, keepdims=True))
        if factors is not None:
            P, dS = (rounded(xp, x, factors) for x in (P, dS))
        found["q"][head] = dtype(scale) * (dS @ k[0])
        found["k"][0] += dtype(scale) * (dS.T @ q[head])
        found["v"][0] += P.T @ do[head]
    return found


def check_statistics(
    xp: Any, found: dict[str, Any], arrays: list[Any], dtype: str, scale: float, causal: bool
) -> dict[str, tuple[float, float]]:
    """Demand the rule; return the largest and the rms error, each over the baseline's.

    `found` and `arrays` (do, q, k, v) hold numbers of `dtype` as float32.
    """
    exact = unfused_gradients(xp, arrays, xp.float64, scale, causal, None)
    factors = dtype if dtype != "float32" else None
    plain = unfused_gradients(xp, arrays, xp.float32, scale, causal, factors)
    share_of_max, share_of_rms = FACTORS[dtype]
    ratios = {}
    for name, want in exact.items():
        ours = found[name].astype(xp.float64) - want
        theirs = rounded(xp, plain[name], dtype).astype(xp.float64) - want
        ulp = accuracy.ROUNDING[dtype] * float(xp.abs(want).max())
        largest, baseline = (float(xp.abs(x).max()) for x in (ours, theirs))
        assert largest <= share_of_max * baseline + ulp, f"max of d{name}: {largest} / {baseline}"
        rms, baseline_rms = (float(xp.sqrt((x**2).mean())) for x in (ours, theirs))
        assert rms <= share_of_rms * baseline_rms + ulp / 8, (
            f"rms of d{name}: {rms} against {baseline_rms}"
        )
        ratios[name] = largest / baseline, rms / baseline_rms
    return ratios
