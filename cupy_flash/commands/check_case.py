"""What a problem of `python -m cupy_flash check` is: shapes, options, data, places in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupy_flash.arrays import to_dtype
from cupy_flash.reference import visibility

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


# What a table of results tells apart; "all" are problems that have more options than three.
KINDS = ("plain", "causal", "window", "mask", "bias", "softcap", "ALiBi", "sinks", "lengths", "all")


@dataclass(frozen=True)
class Small:
    """An array of an option without its data.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        Element type; "" for that of q.
    visible : float
        Share of True in a mask.
    """

    shape: Shape
    dtype: str = ""
    visible: float = 0.6

    def __str__(self) -> str:
        """Say shape and element type."""
        return f"{self.dtype} {self.shape}".strip()


@dataclass(frozen=True)
class Check:
    """A problem without its data.

    Attributes
    ----------
    name : str
    q, k, v : tuple of int
        Shapes.
    options : dict
        The options that are numbers, as for `cupy_flash.attention`.
    layout : str
        How the arrays lie in memory: a key of `LAYOUTS`.
    q_scale : float
        Factor of the standard normal q; 1 gives small scores.
    q_lengths, k_lengths : tuple of int, optional
        One per batch entry; what lies beyond them is NaN.
    mask, bias, alibi_slopes, sinks : Small, optional
        Of problems with four axes. Keys that they, or a window, hide from all rows are NaN.
    """

    name: str
    q: Shape
    k: Shape
    v: Shape
    options: dict[str, Any] = field(default_factory=dict)
    layout: str = "plain"
    q_scale: float = 1.0
    q_lengths: Shape | None = None
    k_lengths: Shape | None = None
    mask: Small | None = None
    bias: Small | None = None
    alibi_slopes: Small | None = None
    sinks: Small | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which of `KINDS` the problem is of."""
        given = {
            "causal": self.options.get("causal"),
            "window": self.options.get("window"),
            "mask": self.mask,
            "bias": self.bias,
            "softcap": self.options.get("softcap"),
            "ALiBi": self.alibi_slopes,
            "sinks": self.sinks,
            "lengths": self.q_lengths or self.k_lengths,
        }
        kinds = tuple(kind for kind, option in given.items() if option)
        return (kinds or ("plain",)) if len(kinds) <= 3 else ("all",)

    def __str__(self) -> str:
        """Say the problem in one line."""
        words = [f"q {self.q} k {self.k} v {self.v}"]
        words += [f"{name}={value}" for name, value in self.options.items()]
        for name in ("mask", "bias", "alibi_slopes", "sinks", "q_lengths", "k_lengths"):
            value = getattr(self, name)
            if value is not None:
                words.append(f"{name}={value}")
        if self.layout != "plain":
            words.append(f"{self.layout} in memory")
        return ", ".join(words)

    def data(self, dtype: str, seed: int) -> dict[str, Array]:
        """Draw all arrays; every dtype gets the same numbers, rounded to it."""
        # The name and not the place in the list, so that a problem keeps its data.
        rng = np.random.default_rng([seed, *self.name.encode()])
        q, k, v = (rng.standard_normal(shape) for shape in (self.q, self.k, self.v))
        arrays = {"q": q * self.q_scale, "k": k, "v": v}
        for lengths, padded in ((self.q_lengths, ("q",)), (self.k_lengths, ("k", "v"))):
            if lengths is not None:
                for entry, length in enumerate(lengths):
                    for x in padded:
                        arrays[x][entry, ..., length:, :] = np.nan
        small = self._small(dtype, rng)
        if {"window", "mask", "bias", "all"} & {*self.kinds}:
            hidden = self._hidden(small)
            arrays["k"][hidden] = arrays["v"][hidden] = np.nan
        rounded = {name: x.astype(to_dtype(dtype)) for name, x in arrays.items()}
        if self.q_lengths is not None:
            small["q_lengths"] = np.array(self.q_lengths, np.int32)
        if self.k_lengths is not None:
            small["k_lengths"] = np.array(self.k_lengths, np.int64)
        return rounded | small

    def _small(self, dtype: str, rng: np.random.Generator) -> dict[str, Array]:
        small = {}
        for name, draw in DRAWS.items():
            given: Small | None = getattr(self, name)
            if given is not None:
                small[name] = draw(rng, given, to_dtype(given.dtype or dtype))
        return small

    def _hidden(self, small: dict[str, Array]) -> Array:
        """Return which keys of which key heads no row sees."""
        m, n = self.q[-2], self.k[-2]
        seen = np.ones((*self.q[:-1], n), bool)
        for entry in range(self.q[0]):
            rows = self.q_lengths[entry] if self.q_lengths else m
            keys = self.k_lengths[entry] if self.k_lengths else n
            seen[entry] &= visibility(
                m,
                n,
                causal=self.options.get("causal", False),
                offset=self.options.get("offset", keys - rows),
                window=self.options.get("window"),
                rows=rows,
                keys=keys,
            )
        if "mask" in small:
            seen &= small["mask"]
        if "bias" in small:
            np.logical_and(seen, small["bias"] != -np.inf, out=seen)
        # Query heads that share a key head lie side by side.
        grouped = seen.reshape(*self.k[:-2], -1, *seen.shape[-2:])
        return np.asarray(~grouped.any(axis=(-3, -2)))


def _draw_mask(rng: np.random.Generator, given: Small, dtype: np.dtype[Any]) -> Array:
    mask: Array = rng.random(given.shape) < given.visible
    if mask.ndim > 1 and mask.shape[-2] > 1:
        mask[..., 1, :] = False
    return mask


def _draw_bias(rng: np.random.Generator, given: Small, dtype: np.dtype[Any]) -> Array:
    bias = rng.integers(0, 9, given.shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return bias
    bias = (2 * rng.standard_normal(given.shape)).astype(dtype)
    bias[rng.random(given.shape) < 0.1] = -np.inf
    return bias


def _draw_slopes(rng: np.random.Generator, given: Small, dtype: np.dtype[Any]) -> Array:
    return rng.random(given.shape).astype(dtype)


def _draw_sinks(rng: np.random.Generator, given: Small, dtype: np.dtype[Any]) -> Array:
    sinks = (3 * rng.standard_normal(given.shape)).astype(dtype)
    if sinks.size > 1:
        sinks.flat[-1] = -np.inf
    return sinks


DRAWS = {
    "mask": _draw_mask,
    "bias": _draw_bias,
    "alibi_slopes": _draw_slopes,
    "sinks": _draw_sinks,
}


@dataclass(frozen=True)
class Layout:
    """How to lay an array out: a contiguous array to copy to the device, and the view of it."""

    base: Callable[[Array], Array]
    view: Callable[[Any], Any]


def _same(x: Any) -> Any:
    return x


def _swap_heads(x: Any) -> Any:
    return x.swapaxes(-2, -3)


def _transpose(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _reverse_rows(x: Any) -> Any:
    return x[..., ::-1, :]


def _with_gaps(x: Array) -> Array:
    wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), np.nan, x.dtype)
    wide[..., ::2] = x
    return wide


def _every_second_column(x: Any) -> Any:
    return x[..., ::2]


def _one_more_entry(x: Array) -> Array:
    return np.concatenate([np.full_like(x[:1], np.nan), x])


def _without_first(x: Any) -> Any:
    return x[1:]


LAYOUTS = {
    "plain": Layout(_same, _same),
    "(batch, row, head, column)": Layout(_swap_heads, _swap_heads),
    "transposed": Layout(_transpose, _transpose),
    "rows reversed": Layout(_reverse_rows, _reverse_rows),
    "every second column": Layout(_with_gaps, _every_second_column),
    # One entry of the first axis is skipped; an odd number of elements, so nothing is aligned.
    "misaligned": Layout(_one_more_entry, _without_first),
}
