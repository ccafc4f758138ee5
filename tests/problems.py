"""The problems that every level of tests computes: shapes, layouts, dtypes, options and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from cupy_flash.select import HEAD_DIM_BUCKETS
from layouts import Strided, strided
from option_arrays import (
    FLOATS,
    LEADING,
    PAIRS,
    draw_bias,
    draw_mask,
    draw_sinks,
    draw_slopes,
    poison,
    reduced,
    visible,
)

DTYPES = FLOATS
# What each kernel family computes; sm90, which takes no mask and no bias, has tests of its own.
KERNEL_DTYPES = {
    "naive": tuple(DTYPES),
    "simt": tuple(DTYPES),
    "sm80": ("float16", "bfloat16"),
}
KERNELS = tuple(KERNEL_DTYPES)
# Every pair of them, for tests of what holds for all.
KERNELS_AND_DTYPES = [(kernel, dtype) for kernel in KERNELS for dtype in KERNEL_DTYPES[kernel]]
# One dtype each, for tests of what has nothing to do with it.
ONE_DTYPE = {"naive": "float32", "simt": "float32", "sm80": "float16"}
VALUES = ("normal", "x30", "equal", "outlier", "subnormal", "large", "level", "integers")
# Whose errors come from rounding, and not from flushing or from overflow of a baseline.
STATISTICAL_VALUES = ("normal", "x30", "outlier")
STATISTICAL_SIZE = 400


@dataclass(frozen=True)
class Case:
    """One problem; its repr is what reproduces it (`Case(...).build()`)."""

    batch: tuple[int, ...]
    heads: int | None
    kv_heads: int | None
    m: int
    n: int
    d: int
    p: int
    dtypes: tuple[str, str, str]
    layouts: tuple[str, str, str] = ("contiguous",) * 3
    out_layout: str | None = None
    values: str = "normal"
    causal: bool = False
    offset: int | None = None
    scale: float | None = None
    lengths: str | None = None
    length_dtype: str = "int32"
    squeeze: bool = False
    window: tuple[int | None, int | None] | None = None
    mask: str | None = None
    bias: str | None = None
    bias_dtype: str = "float32"
    softcap: float | None = None
    alibi: str | None = None
    alibi_dtype: str = "float32"
    sinks: str | None = None
    sinks_dtype: str = "float32"
    precision: str | None = None
    option_layout: str = "contiguous"
    poison: bool = False
    seed: int = 0

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        # squeeze: k and v lack the batch axes, so they broadcast.
        kv_batch = () if self.squeeze else self.batch
        q_heads = () if self.heads is None else (self.heads,)
        kv_heads = () if self.kv_heads is None else (self.kv_heads,)
        return (
            (*self.batch, *q_heads, self.m, self.d),
            (*kv_batch, *kv_heads, self.n, self.d),
            (*kv_batch, *kv_heads, self.n, self.p),
        )

    def leading(self) -> tuple[int, ...]:
        """Return out's leading axes."""
        if self.heads is None:
            return self.batch
        return (*self.batch, max(self.heads, self.kv_heads or 0))

    def suits(self, kernel: str) -> bool:
        """Whether a kernel family computes this case; only naive takes heads of any width."""
        widest = HEAD_DIM_BUCKETS.get(kernel, (math.inf,))[-1]
        return max(self.d, self.p) <= widest and result_dtype(self) in KERNEL_DTYPES[kernel]

    def has_statistics(self) -> bool:
        """Whether the max and rms rule of tolerance.py says something of this case."""
        size = math.prod(self.leading()) * self.m * self.p
        return self.values in STATISTICAL_VALUES and self.n > 0 and size >= STATISTICAL_SIZE

    def build(self) -> Arrays:
        return build(self)


def result_dtype(case: Case) -> str:
    return np.result_type(*(DTYPES[name] for name in case.dtypes)).name


@dataclass
class Arrays:
    case: Case
    q: Strided
    k: Strided
    v: Strided
    q_lengths: np.ndarray[Any, Any] | None
    k_lengths: np.ndarray[Any, Any] | None
    mask: Strided | None = None
    bias: Strided | None = None
    alibi_slopes: Strided | None = None
    sinks: Strided | None = None

    def inputs(self) -> dict[str, Strided]:
        return {"q": self.q, "k": self.k, "v": self.v}

    def small(self) -> dict[str, Strided]:
        """Return the arrays of the options, without the lengths."""
        arrays = {name: getattr(self, name) for name in ("mask", "bias", "alibi_slopes", "sinks")}
        return {name: x for name, x in arrays.items() if x is not None}

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `attention` and of the reference, arrays on the host."""
        case = self.case
        options: dict[str, Any] = {"causal": case.causal, "offset": case.offset}
        optional = {
            "scale": case.scale,
            "window": case.window,
            "softcap": case.softcap,
            "q_lengths": self.q_lengths,
            "k_lengths": self.k_lengths,
        }
        options |= {name: value for name, value in optional.items() if value is not None}
        return options | {name: x.numpy() for name, x in self.small().items()}


def fill_values(case: Case, rng: np.random.Generator, arrays: dict[str, Strided]) -> None:
    views = {name: array.numpy() for name, array in arrays.items()}
    data = {name: rng.standard_normal(view.shape) for name, view in views.items()}
    wide = [name in ("bfloat16", "float32") for name in case.dtypes]
    kind = case.values
    if kind == "x30":
        data["q"] *= 30
    elif kind == "equal":
        data = {name: np.full(x.shape, 0.5) for name, x in data.items()}
    elif kind == "outlier" and case.n and case.d:
        data["k"][..., rng.integers(case.n), rng.integers(case.d)] *= 50
        data["v"][..., rng.integers(case.n), :] *= 50
    elif kind == "subnormal":
        for name, dtype in zip(data, case.dtypes, strict=True):
            data[name] *= float(ml_dtypes.finfo(DTYPES[dtype]).smallest_subnormal) * 8
    elif kind == "large":
        # Scores near 2^40 (2^100 in float64), values at the dtype's largest.
        top = float(ml_dtypes.finfo(DTYPES[case.dtypes[2]]).max)
        data["v"] = np.clip(data["v"], -1, 1) * top
        for name, is_wide in zip(("q", "k"), wide, strict=False):
            data[name] *= 2.0**20 if is_wide else 2.0**8
    elif kind == "level" and case.d:
        # Every score lies near -1e6 (-1e4 where float16 can't hold more).
        level = 100.0 if "float16" in case.dtypes[:2] else 1000.0
        data["q"][..., 0] = level * np.sqrt(case.d)
        data["k"][..., 0] = -level
    elif kind == "integers":
        data = {name: rng.integers(-3, 4, x.shape).astype(float) for name, x in data.items()}
    for name, view in views.items():
        if view.size:
            with np.errstate(over="ignore"):
                view[...] = data[name].astype(view.dtype)


def build(case: Case) -> Arrays:
    rng = np.random.default_rng(case.seed)
    arrays = {
        name: strided(shape, DTYPES[dtype], layout)
        for name, shape, dtype, layout in zip(
            "qkv", case.shapes(), case.dtypes, case.layouts, strict=True
        )
    }
    fill_values(case, rng, arrays)
    lengths = []
    for which, limit in (("q", case.m), ("k", case.n)):
        if case.lengths in (which, "both"):
            drawn = rng.integers(0, limit + 1, case.batch)
            lengths.append(np.asarray(drawn, dtype=case.length_dtype))
        else:
            lengths.append(None)
    built = Arrays(case, **arrays, q_lengths=lengths[0], k_lengths=lengths[1])
    add_options(built, rng)
    if case.poison:
        hide(built)
    return built


def add_options(arrays: Arrays, rng: np.random.Generator) -> None:
    """Draw the arrays of the case's options."""
    case, layout = arrays.case, arrays.case.option_layout
    heads = () if case.heads is None else case.leading()[-1:]
    pairs = {
        kind: PAIRS[kind](case.batch, heads, case.m, case.n)
        for kind in (case.mask, case.bias)
        if kind is not None
    }
    if case.mask is not None:
        arrays.mask = draw_mask(rng, pairs[case.mask], layout)
    if case.bias is not None:
        arrays.bias = draw_bias(rng, pairs[case.bias], case.bias_dtype, layout)
    if case.alibi is not None:
        shape = LEADING[case.alibi](case.batch, heads)
        arrays.alibi_slopes = draw_slopes(rng, shape, case.alibi_dtype, layout)
    if case.sinks is not None:
        shape = LEADING[case.sinks](case.batch, heads)
        arrays.sinks = draw_sinks(rng, shape, case.sinks_dtype, layout)


def hide(arrays: Arrays) -> None:
    """Put NaN into all that no row looks at, wherever it lies."""
    case, options = arrays.case, arrays.options()
    group_axis = None if case.heads is None else -2
    of = (case.leading(), len(case.batch), case.m, case.n, options)
    seen = visible(*of)
    for x, looked_at in (
        (arrays.q, seen.any(axis=-1)),
        (arrays.k, seen.any(axis=-2)),
        (arrays.v, seen.any(axis=-2)),
    ):
        poison(x, reduced(looked_at, x.shape[:-1], group_axis)[..., None])
    if arrays.bias is not None and case.bias_dtype in DTYPES:
        bias = arrays.bias.numpy()
        # -inf stays: it may be all that hides a pair.
        needed = reduced(visible(*of, bias=None), bias.shape) | np.isneginf(bias)
        poison(arrays.bias, needed)
