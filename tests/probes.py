"""Exact probes: what attention must do to the last bit, or nearly, on inputs made for it.

Each probe is written against ``attend(q, k, v, **options) -> (out, lse)``, NumPy arrays in and out,
so that the NumPy path, the emulated kernels and the GPU answer the same questions. `family` is the
kernel family, None for the NumPy path: a row's bits follow from the row's own inputs alone in the
kernels, not on the NumPy path, where BLAS decides on them and they must lie within the error bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from cupy_flash import accuracy
from option_probes import OPTION_PROBES
from probe_options import BATCH, HEADS, LENGTHS, OPTIONS, PAIRS, M, N, of_row, visible
from probe_tools import (
    Result,
    assert_close,
    assert_same,
    assert_same_bits,
    bounds,
    draw,
    edges,
    placed,
    ulp,
)
from problems import DTYPES

Attend = Callable[..., Result]


def check_visible_keys(
    attend: Attend, m: int, n: int, dtype: str = "float32", width: int = 0, **options: Any
) -> None:
    """P1: with q = 0 and v a shifted identity, the results spell out the set of visible keys.

    A head reads `width` columns of the identity (all of them for 0), so that together they read
    every one. Each element of the lengths, and each batch axis of mask and bias, whose finite
    numbers are 0, is a problem of the batch.
    """
    batch = np.broadcast_shapes(
        *(np.shape(options[name]) for name in LENGTHS if name in options),
        *(np.shape(options[name])[:-3] for name in PAIRS if name in options),
    )
    width = width or max(n, 1)
    chunks = max(-(-n // width), 1)
    q = np.broadcast_to(np.zeros((m, 1), DTYPES[dtype]), (*batch, 1, m, 1))
    k = (np.arange(n)[:, None] % 7 - 3.0).astype(DTYPES[dtype])
    v = np.zeros((chunks, n, width), DTYPES[dtype])
    key = np.arange(n)
    v[key // width, key, key % width] = 1024
    out, lse = attend(q, k, v, **options)
    what = f"m={m} n={n} width={width} {dtype} {options}"
    assert out.shape == (*batch, chunks, m, width), (what, out.shape)
    assert lse.shape == (*batch, chunks, m), (what, lse.shape)
    table = np.broadcast_to(visible(m, n, **options), (*batch, chunks, m, n))
    count = table.sum(axis=-1)
    # Head h has the columns of keys h * width and on.
    seen = np.zeros(out.shape, bool)
    for head, begin in enumerate(range(0, n, width)):
        part = table[..., head, :, begin : begin + width]
        seen[..., head, :, : part.shape[-1]] = part
    found = out.astype(lse.dtype, copy=False)
    wrong = (found != 0) != seen
    assert not wrong.any(), f"{what}: wrong keys at {np.argwhere(wrong)[:5].tolist()}"
    want = 1024.0 / np.maximum(count, 1)
    some = count > 0
    high = found.max(axis=-1, initial=0)
    low = found.min(axis=-1, initial=2048, where=seen)
    for extreme in (high, np.where(seen.any(axis=-1), low, high)):
        # A head whose columns the row doesn't see has neither.
        error = np.where(seen.any(axis=-1), np.abs(extreme - want), 0)
        assert (error <= 2 * ulp(want, dtype)).all(), f"{what}: not 1024 / count"
    log = np.log(np.maximum(count, 1).astype(np.float64))
    error = np.abs(np.where(some, lse, 0) - log)
    assert (error <= 16 * accuracy.ROUNDING[lse.dtype.name]).all(), f"{what}: lse is not ln(count)"
    assert (np.where(some, -np.inf, lse) == -np.inf).all(), f"{what}: lse of an empty row"


def check_non_interference(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P2: what no row sees may hold anything, NaN included; so may rows that see no key."""
    q, k, v = draw(dtype, d, p)
    for name, options in OPTIONS.items():
        seen = np.broadcast_to(visible(M, N, **options), (BATCH, HEADS, M, N))
        blind, hidden = ~seen.any(axis=-1), ~seen.any(axis=-2)
        if not hidden.any():
            continue
        want = attend(q, k, v, **options)
        assert np.isfinite(want[0].astype(np.float64)).all()
        for value in (np.nan, np.inf, -np.inf, float(ml_dtypes.finfo(DTYPES[dtype]).max)):
            poison = DTYPES[dtype].type(value)
            poisoned = (
                np.where(which[..., None], poison, x)
                for which, x in ((blind, q), (hidden, k), (hidden, v))
            )
            changed = dict(options)
            if "bias" in options:
                # Where the bias is all that hides a pair, it stays.
                others = visible(M, N, **{**options, "bias": None})
                unread = ~others & ~np.isneginf(options["bias"].astype(np.float64))
                with np.errstate(over="ignore"):
                    unread_value = np.float64(value).astype(options["bias"].dtype)
                changed["bias"] = np.where(unread, unread_value, options["bias"])
            what = f"{name}: {value} where unseen"
            assert_same_bits(attend(*poisoned, **changed), want, what)


def check_needle(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P3: one key 60 above all others is the only one that counts, wherever it stands."""
    rng = np.random.default_rng(3)
    needles = edges(N)
    q = rng.standard_normal((M, d)).astype(DTYPES[dtype])
    q[:, 0] = 8
    k = np.zeros((len(needles), 1, N, d), DTYPES[dtype])
    k[np.arange(len(needles)), 0, needles, 0] = 7.5
    v = (rng.uniform(1, 2, (N, p)) * rng.choice((-1, 1), (N, p))).astype(DTYPES[dtype])
    for causal in (False, True):
        out, lse = attend(q, k, v, scale=1.0, causal=causal)
        seen = visible(M, N, causal=causal)[0]
        finds = seen[:, needles].T
        want = np.broadcast_to(v[needles][:, None], out[:, 0].shape)
        assert (out[:, 0][finds] == want[finds]).all(), f"causal={causal}: not the needle's row"
        assert (lse[:, 0][finds] == 60).all(), f"causal={causal}: lse is not the needle's score"
        log = np.broadcast_to(np.log(seen.sum(axis=1)), finds.shape)
        assert np.abs(lse[:, 0] - log)[~finds].max(initial=0) < 2.0**-20, "a needle ahead counts"


def check_permutations(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P4: the order of the keys hardly matters, the order of batch and heads not at all."""
    rng = np.random.default_rng(4)
    q, k, v = arrays = draw(dtype, d, p)
    order = rng.permutation(N)
    want = attend(q, k, v)
    got = attend(q, k[..., order, :], v[..., order, :])
    assert_close(got, want, arrays, {}, family, "keys in another order")
    for name in ("plain", "causal"):
        options = OPTIONS[name]
        out, lse = attend(q, k, v, **options)
        for axis, what in ((0, "batch"), (1, "heads")):
            order = np.roll(np.arange(q.shape[axis]), 1)
            moved = [np.take(x, order, axis) for x in arrays]
            want = np.take(out, order, axis), np.take(lse, order, axis)
            what = f"{name}: {what} in another order"
            assert_same(attend(*moved, **options), want, moved, options, family, what)


def check_grouped_heads(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P4: grouped heads are the same as keys and values repeated."""
    for kv_heads, group in ((2, 3), (1, 5), (3, 2)):
        q, k, v = (x[:1] for x in draw(dtype, d, p, kv_heads, group))
        repeated = [q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)]
        what = f"{kv_heads} x {group} heads"
        assert_same(attend(q, k, v), attend(*repeated), repeated, {}, family, what)


def check_ones(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P5: a mean of ones is one; in 16 bits to an ulp and without a bias."""
    q, k, v = draw(dtype, d, p)
    v = np.ones_like(v)
    for name, options in OPTIONS.items():
        # A sink takes part of the weights.
        options = {key: x for key, x in options.items() if key != "sinks"}
        out, _ = attend(q, k, v, **options)
        seen = np.broadcast_to(visible(M, N, **options).any(axis=-1), out.shape[:-1])
        assert (out[~seen] == 0).all(), f"{name}: a row without keys"
        error = np.abs(out.astype(np.float64) - 1)
        if dtype in ("float16", "bfloat16"):
            bias = (out.astype(np.float64) - 1)[seen]
            assert error[seen].max() <= ulp(np.array(1.0), dtype), f"{name}: not one"
            assert abs(bias.mean()) <= 4 * bias.std() / np.sqrt(bias.size), f"{name}: biased"
        else:
            bound = bounds([q, k, v], options, family)[0]
            assert (error[seen] <= bound[seen]).all(), f"{name}: not one"


def check_linearity(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P6: v times a power of two is out times it, to the bit."""
    q, k, v = draw(dtype, d, p)
    # Of one sign, so that no mean is a subnormal number, which would round in another place.
    v = (np.abs(v.astype(np.float64)) % 1 + 1).astype(v.dtype)
    for name in ("plain", "causal lengths", "everything"):
        options = OPTIONS[name]
        out, lse = attend(q, k, v, **options)
        for factor in (2.0, -8.0, 0.25):
            got = attend(q, k, v * v.dtype.type(factor), **options)
            # Adding 0 makes the -0 of an empty row the 0 that it is.
            want = out * out.dtype.type(factor) + out.dtype.type(0), lse
            assert_same_bits(got, want, f"{name}: v times {factor}")


def check_split_merge(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P7: parts of the keys, merged by their lse, are the whole."""
    q, k, v = arrays = [x[:1] for x in draw(dtype, d, p)]
    everything = {name: x for name, x in OPTIONS["everything"].items() if name not in LENGTHS}
    everything |= {name: everything[name][:1] for name in ("mask", "alibi_slopes", "sinks")}
    for options, cuts in itertools.product(
        (
            {"causal": False, "offset": 0},
            {"causal": True, "offset": 11},
            {"window": (40, 20), "offset": 11},
            everything | {"offset": 7},
        ),
        ((0, 50, N), (0, 1, 64, 100, N), (0, 32, 32, N), tuple(range(0, N + 20, 20))),
    ):
        whole = attend(q, k, v, **options)
        parts, part_bounds = [], []
        for begin, end in itertools.pairwise(cuts):
            part = [q, k[..., begin:end, :], v[..., begin:end, :]]
            shifted = options | {"offset": options["offset"] - begin}
            shifted |= {name: x[..., begin:end] for name, x in options.items() if name in PAIRS}
            if begin > 0:
                # One part brings the sinks.
                shifted.pop("sinks", None)
            parts.append(attend(*part, **shifted))
            part_bounds.append(bounds(part, shifted, family))
        outs, lses = (np.stack([x[i] for x in parts]).astype(np.longdouble) for i in (0, 1))
        out_bounds, lse_bounds = (np.stack([x[i] for x in part_bounds]) for i in (0, 1))
        top = lses.max(axis=0)
        weights = np.exp(lses - np.where(np.isfinite(top), top, 0))
        total = weights.sum(axis=0)
        weights = weights / np.where(total > 0, total, 1)
        slack = lse_bounds.max(axis=0)
        out_bound, lse_bound = bounds(arrays, options, family)
        spread = out_bounds + 2 * slack[..., None] * np.abs(outs)
        allowed = out_bound + (weights[..., None] * spread).sum(axis=0)
        out = (weights[..., None] * outs).sum(axis=0)
        with np.errstate(divide="ignore"):
            lse = np.where(np.isfinite(top), top, 0) + np.log(total)
        for got, want, bound in ((whole[0], out, allowed), (whole[1], lse, lse_bound + slack)):
            compared = accuracy.compare(got, want, bound)
            assert compared.ok, f"{options} cut at {cuts}: {compared}"


def check_layouts(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P8: strides and alignment change nothing, and what lies between the elements is not read."""
    q, k, v = draw(dtype, d, p)
    options = {"causal": True, "offset": 5}
    for what, views in placed([q[:2, :, :37], k[:2, :, :45], v[:2, :, :45]]):
        packed = [np.ascontiguousarray(x) for x in views]
        want = attend(*packed, **options)
        assert_same(attend(*views, **options), want, packed, options, family, what)


def check_integers(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """P12: equal scores over a power of two of integers: the exact mean, rounded once."""
    rng = np.random.default_rng(12)
    n = 128
    k_lengths = np.array([1, 2, 4, 8, 16, 32, 64, 128], np.int32)
    q_lengths = np.full_like(k_lengths, M)
    q = rng.integers(-2, 3, (8, 1, M, d)).astype(DTYPES[dtype])
    k = np.ones((n, d), DTYPES[dtype])
    v = rng.integers(-50, 51, (8, 1, n, p)).astype(DTYPES[dtype])
    for scale in (1.0, -0.5):
        out, _ = attend(q, k, v, scale=scale, q_lengths=q_lengths, k_lengths=k_lengths)
        for entry, keys in enumerate(k_lengths):
            mean = v[entry, :, :keys].astype(np.float64).mean(axis=-2, keepdims=True)
            assert (out[entry] == mean.astype(out.dtype)).all(), f"mean of {keys} integers"


def check_row_alone(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """Batch invariance: a row by itself has the bits that it has among others."""
    q, k, v = draw(dtype, d, p, 2, 2)
    for name, options in OPTIONS.items():
        out, lse = attend(q, k, v, **options)
        for b, h, i in itertools.product(range(BATCH), (0, 3), edges(M)):
            alone = q[b, h, i : i + 1], k[b, h // 2], v[b, h // 2]
            if "q_lengths" in options:
                alone = tuple(x[None, None] for x in alone)
            got = attend(*alone, **of_row(options, b, h, int(i), q.shape[1]))
            got = got[0].reshape(1, p), got[1].reshape(1)
            want = out[b, h, i : i + 1], lse[b, h, i : i + 1]
            assert_same_bits(got, want, f"{name}: row {i} of head {h} of entry {b}")


def check_repeatable(attend: Attend, dtype: str, d: int, p: int, family: str | None) -> None:
    """Determinism: the same call has the same bits."""
    arrays = draw(dtype, d, p)
    for name, options in OPTIONS.items():
        want = attend(*arrays, **options)
        for _ in range(3):
            assert_same_bits(attend(*arrays, **options), want, name)


PROBES = {
    "P2 non-interference": check_non_interference,
    "P3 needle": check_needle,
    "P4 permutations": check_permutations,
    "P4 grouped heads": check_grouped_heads,
    "P5 ones": check_ones,
    "P6 linearity": check_linearity,
    "P7 split and merge": check_split_merge,
    "P8 layouts": check_layouts,
    "P12 integers": check_integers,
    **OPTION_PROBES,
}
# Of the kernels only: the bits of the NumPy path are BLAS's.
KERNEL_PROBES = PROBES | {"row alone": check_row_alone, "repeatable": check_repeatable}
