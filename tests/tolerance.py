"""The pass rules, in one place: exact special values, the element bound, and the max and rms rule.

The element bound is computed from the data (cupy_flash.accuracy). It allows for the worst sum of
roundings, so a fault that only makes everything a little less accurate could hide in it. The max
and rms rule closes that: on a problem with many elements the errors must be those of an unfused
computation in the same precision, at most four times (float32 and float64, whose sums run in
another order), or its rms by 10 % (16 bit, where the rounding of the result dominates).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy_flash import accuracy, reference
from cupy_flash.products import THREE_BFLOAT16, Products, loosest
from problems import DTYPES, STATISTICAL_SIZE, Arrays, result_dtype

# Bits of a factor of products that are less accurate than float32's.
BITS = {THREE_BFLOAT16: 16}
# The chained products of the baseline are slow.
HEADS = 8


def check(
    arrays: Arrays,
    out: np.ndarray[Any, Any],
    lse: np.ndarray[Any, Any],
    family: str | None = None,
    products: Products | None = None,
) -> float:
    """Raise AssertionError unless out and lse are right; return the worst error / bound.

    `products`: what multiplied, if it is known better than by the family.
    """
    case = arrays.case
    q, k, v = (array.numpy() for array in arrays.inputs().values())
    dtype = result_dtype(case)
    products = products or loosest(family, dtype, case.precision)
    exact = reference.attention(q, k, v, **arrays.options(), products=products)
    scale = case.scale if case.scale is not None else reference.default_scale(case.d)
    assert out.shape == exact.out.shape, (out.shape, exact.out.shape)
    assert lse.shape == exact.lse.shape, (lse.shape, exact.lse.shape)
    assert out.dtype.name == dtype, (out.dtype, dtype)
    assert lse.dtype.name == accuracy.accumulation(dtype), lse.dtype
    empty = exact.visible == 0
    assert (out[empty] == 0).all(), f"a row without keys isn't 0: {case}"
    nothing = np.isneginf(exact.lse)
    assert (lse[nothing] == -np.inf).all(), f"a row without keys has lse above -inf: {case}"
    bound = accuracy.out_bound(exact, dtype, q, k, v, scale, family)
    worst = 0.0
    for name, compared in (
        ("out", accuracy.compare(out, exact.out, bound)),
        ("lse", accuracy.compare(lse, exact.lse, accuracy.lse_bound(exact, dtype, q, k, scale))),
    ):
        assert compared.ok, f"{name}: {compared}\n{case}"
        worst = max(worst, compared.ratio)
    if case.has_statistics():
        check_statistics(arrays, out, exact, scale, family)
    return worst


def check_statistics(
    arrays: Arrays,
    out: np.ndarray[Any, Any],
    exact: reference.Reference,
    scale: float,
    family: str | None,
) -> None:
    dtype = result_dtype(arrays.case)
    p_dtype = DTYPES[dtype] if family in accuracy.ROUNDS_P else None
    heads, plain = unfused(
        arrays, scale, accuracy.accumulation(dtype), p_dtype, BITS.get(exact.products, 24)
    )
    plain = plain.astype(out.dtype)
    visible = np.stack([exact.visible[head] for head in heads])
    if np.count_nonzero(visible) * out.shape[-1] < STATISTICAL_SIZE:
        return
    out, want = (np.stack([x[head] for head in heads]) for x in (out, exact.out))
    # A sink far above the scores leaves numbers that are flushed, not rounded.
    if np.abs(want).max() < 2.0**-90:
        return
    ours, theirs = (np.asarray(x.astype(want.dtype) - want, np.float64) for x in (out, plain))
    ulp = accuracy.ROUNDING[dtype] * float(np.abs(want).max(initial=0))
    factor, share = (4.0, 4.0) if dtype in ("float32", "float64") else (1.5, 1.1)
    largest, baseline = np.abs(ours).max(), np.abs(theirs).max()
    assert largest <= factor * baseline + ulp, f"max: {largest} against {baseline}: {arrays.case}"
    rms, baseline = (float(np.sqrt(np.mean(x**2))) for x in (ours, theirs))
    assert rms <= share * baseline + ulp / 8, f"rms: {rms} against {baseline}: {arrays.case}"


def unfused(
    arrays: Arrays, scale: float, dtype: str, p_dtype: Any = None, bits: int = 24
) -> tuple[list[tuple[int, ...]], np.ndarray[Any, Any]]:
    """Compute heads of a case by `reference.unfused`, each step rounded to `dtype`.

    `bits`: what float32 inputs are rounded to before.

    Returns the heads' indices, evenly spread where there are more than HEADS, and their results.
    """
    case = arrays.case
    q, k, v = (rounded(array.numpy(), bits) for array in arrays.inputs().values())
    if case.heads is not None:
        total = max(x.shape[-3] for x in (q, k, v))
        q, k, v = (np.repeat(x, total // x.shape[-3], axis=-3) for x in (q, k, v))
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
    q, k, v = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (q, k, v))
    every = list(np.ndindex(*lead))
    heads = every[:: -(-len(every) // HEADS)]
    results = []
    for index in heads:
        entry = index[: len(case.batch)]
        rows = case.m if arrays.q_lengths is None else int(arrays.q_lengths[entry])
        keys = case.n if arrays.k_lengths is None else int(arrays.k_lengths[entry])
        offset = keys - rows if case.offset is None else case.offset
        own = _options_of_head(arrays, lead, index, offset)
        seen = reference.visibility(
            case.m,
            case.n,
            causal=case.causal,
            offset=offset,
            window=case.window,
            rows=rows,
            keys=keys,
            mask=own.pop("mask", None),
            bias=own.get("bias"),
        )
        used = seen.any(axis=0)
        for name in own.keys() & {"bias", "alibi"}:
            own[name] = own[name][:, used]
        results.append(
            reference.unfused(
                q[index],
                k[index][used],
                v[index][used],
                seen[:, used],
                scale,
                dtype,
                p_dtype,
                softcap=case.softcap,
                **own,
            )
        )
    return heads, np.stack(results)


def rounded(x: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Round float32 numbers to fewer bits."""
    if x.dtype != np.float32 or bits == 24:
        return x
    significand, exponent = np.frexp(x)
    with np.errstate(over="ignore"):
        near = np.ldexp(np.round(np.ldexp(significand, bits)), exponent - bits)
    # The largest number would become an infinity.
    return np.where(np.isfinite(near), near, x)


def _options_of_head(
    arrays: Arrays, lead: tuple[int, ...], index: tuple[int, ...], offset: int
) -> dict[str, Any]:
    """Return the option arrays of one head, ALiBi's as what it subtracts."""
    m, n = arrays.case.m, arrays.case.n
    own: dict[str, Any] = {}
    for name, x in arrays.small().items():
        shape = (*lead, m, n) if name in ("mask", "bias") else lead
        own[name] = np.broadcast_to(x.numpy(), shape)[index]
    if "alibi_slopes" in own:
        distance = np.abs(np.arange(m)[:, None] + offset - np.arange(n))
        own["alibi"] = float(own.pop("alibi_slopes")) * distance
    if "sinks" in own:
        own["sink"] = own.pop("sinks")
    return own
