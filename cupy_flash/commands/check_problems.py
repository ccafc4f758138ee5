"""The fixed problems of `python -m cupy_flash check`: small, and each aimed at one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupy_flash.arrays import to_dtype

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Check:
    """A problem without its data.

    Attributes
    ----------
    name : str
    q, k, v : tuple of int
        Shapes.
    options : dict
        causal, offset and scale, as for `cupy_flash.attention`.
    layout : str
        How the arrays lie in memory: a key of `LAYOUTS`.
    q_scale : float
        Factor of the standard normal q; 1 gives small scores.
    q_lengths, k_lengths : tuple of int, optional
        One per batch entry; what lies beyond them is NaN.
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

    def __str__(self) -> str:
        """Say the problem in one line."""
        words = [f"q {self.q} k {self.k} v {self.v}"]
        words += [f"{name}={value}" for name, value in self.options.items()]
        for name, lengths in (("q_lengths", self.q_lengths), ("k_lengths", self.k_lengths)):
            if lengths is not None:
                words.append(f"{name}={lengths}")
        if self.layout != "plain":
            words.append(f"{self.layout} in memory")
        return ", ".join(words)

    def data(self, dtype: str, seed: int) -> dict[str, Array]:
        """Draw q, k, v and the lengths; every dtype gets the same numbers, rounded to it."""
        # The name and not the place in the list, so that a problem keeps its data.
        rng = np.random.default_rng([seed, *self.name.encode()])
        q, k, v = (rng.standard_normal(shape) for shape in (self.q, self.k, self.v))
        arrays = {"q": q * self.q_scale, "k": k, "v": v}
        for lengths, padded in ((self.q_lengths, ("q",)), (self.k_lengths, ("k", "v"))):
            if lengths is not None:
                for entry, length in enumerate(lengths):
                    for x in padded:
                        arrays[x][entry, ..., length:, :] = np.nan
        rounded = {name: x.astype(to_dtype(dtype)) for name, x in arrays.items()}
        if self.q_lengths is not None:
            rounded["q_lengths"] = np.array(self.q_lengths, np.int32)
        if self.k_lengths is not None:
            rounded["k_lengths"] = np.array(self.k_lengths, np.int64)
        return rounded


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


def _self(name: str, shape: Shape, **more: Any) -> Check:
    """Make a problem whose q, k and v have one shape."""
    return Check(name, shape, shape, shape, **more)


def _cross(name: str, m: int, n: int, d: int = 24, p: int | None = None, **more: Any) -> Check:
    """Make a problem of two heads with m rows and n keys."""
    return Check(name, (1, 2, m, d), (1, 2, n, d), (1, 2, n, d if p is None else p), **more)


CAUSAL = {"causal": True}

CHECKS = (
    _self("square", (2, 3, 65, 32)),
    _cross("one-row", 1, 200, 64),
    _cross("one-key", 70, 1),
    _self("one-element", (1, 1)),
    Check("two-axes", (33, 24), (47, 24), (47, 40)),
    Check("three-axes-broadcast", (3, 20, 16), (1, 30, 16), (30, 16)),
    Check("five-axes-broadcast", (2, 1, 4, 17, 8), (1, 3, 2, 19, 8), (2, 19, 8)),
    Check("grouped-heads", (2, 8, 33, 32), (2, 2, 70, 32), (2, 2, 70, 32)),
    Check("one-key-head", (1, 6, 40, 16), (1, 1, 66, 16), (1, 1, 66, 16), CAUSAL),
    _self("causal-square", (1, 2, 129, 16), options=CAUSAL),
    _cross("causal-more-keys", 40, 133, options=CAUSAL),
    _cross("causal-more-rows", 133, 40, options=CAUSAL),
    _cross("causal-top-left-more-keys", 40, 133, options={"causal": True, "offset": 0}),
    _cross("causal-top-left-more-rows", 133, 40, options={"causal": True, "offset": 0}),
    _cross("causal-first-rows-empty", 70, 70, options={"causal": True, "offset": -65}),
    _cross("causal-sees-all", 70, 70, options={"causal": True, "offset": 10**12}),
    _cross("causal-sees-nothing", 70, 70, options={"causal": True, "offset": -(10**12)}),
    _cross("one-column", 35, 70, 1),
    _cross("odd-columns", 35, 70, 3, 5),
    _cross("columns-above-a-bucket", 35, 70, 33, 65),
    _cross("wide-keys-narrow-values", 35, 70, 100, 36),
    _cross("narrow-keys-wide-values", 35, 70, 40, 200),
    _cross("columns-128", 35, 70, 128, options=CAUSAL),
    _cross("columns-256", 35, 70, 256),
    _cross("columns-257", 20, 40, 257, 16),
    _cross("values-300", 20, 40, 16, 300),
    _cross("many-keys", 30, 1100, 16),
    _cross("many-rows", 600, 50, 16),
    _cross("many-causal", 270, 600, 8, options=CAUSAL),
    _self("k-lengths", (3, 2, 70, 16), k_lengths=(70, 1, 33)),
    _self("q-lengths", (3, 2, 70, 16), q_lengths=(70, 1, 33)),
    _self(
        "lengths-causal",
        (3, 2, 70, 16),
        options=CAUSAL,
        q_lengths=(64, 5, 70),
        k_lengths=(70, 60, 3),
    ),
    _self("lengths-zero", (2, 2, 40, 16), q_lengths=(40, 0), k_lengths=(0, 40)),
    _self("layout-batch-row-head", (2, 3, 65, 24), layout="(batch, row, head, column)"),
    _self("layout-transposed", (2, 2, 65, 24), layout="transposed"),
    _self("layout-reversed", (2, 2, 65, 24), layout="rows reversed", options=CAUSAL),
    _self("layout-gaps", (2, 2, 65, 24), layout="every second column"),
    _self("layout-misaligned", (1, 1, 65, 21), layout="misaligned"),
    _cross("no-rows", 0, 40),
    _cross("no-keys", 40, 0),
    _cross("no-columns", 40, 70, 0, 16),
    _cross("no-values", 40, 70, 16, 0),
    _self("no-batch", (0, 2, 40, 16)),
    _cross("scale-zero", 40, 70, options={"scale": 0.0}),
    _cross("scale-negative", 40, 70, options={"scale": -0.7}),
    _cross("sharp-scores", 66, 130, 32, q_scale=12.0),
    _cross("sharp-causal", 130, 130, 32, q_scale=12.0, options=CAUSAL),
)
