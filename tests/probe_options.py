"""The options that probes ask with, which row then sees which key, and the options of one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Options = dict[str, Any]

BATCH, HEADS, M, N = 3, 2, 71, 101
PAIRS = ("mask", "bias")
LEADING = ("alibi_slopes", "sinks")
LENGTHS = ("q_lengths", "k_lengths")


def holes(seed: int, *shape: int) -> Array:
    """Draw a mask of half the pairs, with rows that see nothing and keys that nobody sees."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., [0, 5, 6, 7, 64, N - 1]] = False
    if shape[-2] > 1:
        mask[..., [0, 33, M - 1], :] = False
    return mask


def with_holes(seed: int, *shape: int) -> Array:
    """Draw a bias with -inf where such a mask is False, in fewer pairs."""
    rng = np.random.default_rng(seed)
    hidden = ~holes(seed, *shape) & (rng.random(shape) < 0.9)
    hidden[..., [5, 64, N - 1]] = True
    return np.where(hidden, -np.inf, rng.normal(0, 2, shape))


def per_entry(*values: float) -> Array:
    return np.array(values, np.float32)[:, None]


def ints(*values: int) -> Array:
    return np.array(values, np.int32)


# Those that hide pairs leave rows and keys unseen.
OPTIONS: dict[str, Options] = {
    "plain": {},
    "causal": {"causal": True, "offset": 20},
    "causal, far left": {"causal": True, "offset": -33},
    "lengths": {"q_lengths": ints(70, 41, 0), "k_lengths": ints(99, 0, 101)},
    "causal lengths": {
        "causal": True,
        "q_lengths": ints(70, 41, 33),
        "k_lengths": ints(64, 97, 5),
    },
    "window": {"window": (13, 4), "offset": 9},
    "window, far right": {"window": (3, 0), "offset": 60},
    "mask of keys": {"mask": holes(1, BATCH, 1, 1, N)},
    "mask of pairs": {"mask": holes(2, M, N)},
    "bias": {"bias": with_holes(3, BATCH, 1, M, N).astype(np.float32)},
    "bias of keys": {"bias": with_holes(4, 1, N)[0].astype(np.float16), "causal": True},
    "changed scores": {
        "softcap": 1.5,
        "alibi_slopes": per_entry(0.25, 0.0, 0.03),
        "sinks": per_entry(1.0, -np.inf, 3.0),
    },
    "everything": {
        "window": (50, 30),
        "mask": holes(5, BATCH, 1, 1, N),
        "bias": with_holes(6, M, N).astype(ml_dtypes.bfloat16),
        "softcap": 2.5,
        "alibi_slopes": per_entry(0.1, 0.3, -0.01),
        "sinks": per_entry(0.5, 2.0, -1.0),
        "q_lengths": ints(70, 41, 66),
        "k_lengths": ints(99, 60, 101),
    },
}


@dataclass(frozen=True)
class Holes:
    """Draws masks and biases for m rows, n keys and batch axes; their holes alone matter."""

    m: int
    n: int
    batch: tuple[int, ...]
    rng: np.random.Generator

    def mask(self, *shape: int) -> Array:
        return self.rng.random(shape) < 0.4

    def bias(self, dtype: Any, *shape: int) -> Array:
        return np.where(self.mask(*shape), -np.inf, 0).astype(dtype)

    def one_key(self) -> Array:
        return (7 * np.arange(self.m)[:, None] + 3) % max(self.n, 1) == np.arange(self.n)


# What hides keys, by name; see `hiding`.
HIDING: dict[str, Callable[[Holes], Options]] = {
    "none": lambda _: {},
    "causal": lambda _: {"causal": True},
    "causal, offset 0": lambda _: {"causal": True, "offset": 0},
    "causal, offset -3": lambda _: {"causal": True, "offset": -3},
    "causal, offset 5": lambda _: {"causal": True, "offset": 5},
    "window (0, 0)": lambda _: {"window": (0, 0)},
    "window (3, 2), offset 2": lambda _: {"window": (3, 2), "offset": 2},
    "window (33, None)": lambda _: {"window": (33, None)},
    "window (None, 5), offset -9": lambda _: {"window": (None, 5), "offset": -9},
    "causal window (31, 7)": lambda _: {"causal": True, "window": (31, 7)},
    "mask of keys": lambda at: {"mask": at.mask(at.n)},
    "mask of keys of entries": lambda at: {"mask": at.mask(*at.batch, 1, 1, at.n)},
    "mask of rows": lambda at: {"mask": at.mask(at.m, 1)},
    "mask of pairs": lambda at: {"mask": at.mask(*at.batch, 1, at.m, at.n)},
    "mask of one key a row": lambda at: {"mask": at.one_key()},
    "bias of keys": lambda at: {"bias": at.bias(np.float16, at.n)},
    "bias of pairs": lambda at: {"bias": at.bias(np.float64, *at.batch, 1, at.m, at.n)},
    "mask and bias": lambda at: {
        "mask": at.mask(at.m, at.n),
        "bias": at.bias(np.float32, *at.batch, 1, 1, at.n),
    },
    "everything": lambda at: {
        "window": (40, 9),
        "mask": ~at.mask(at.n),
        "bias": at.bias(np.float32, at.m, at.n),
        "softcap": 1.0,
        "alibi_slopes": np.zeros((), np.float32),
    },
}


def hiding(name: str, m: int, n: int, batch: tuple[int, ...] = ()) -> Options:
    """Return options of `HIDING` for m rows and n keys, whose arrays may have batch axes.

    Softcap and ALiBi leave the scores of 0 that the probe has.
    """
    return HIDING[name](Holes(m, n, batch, np.random.default_rng([m, n, *name.encode()])))


def visible(
    m: int,
    n: int,
    *,
    causal: bool = False,
    offset: int | None = None,
    window: tuple[int | None, int | None] | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    q_lengths: Array | None = None,
    k_lengths: Array | None = None,
    **_: Any,
) -> Array:
    """Return the table of which row sees which key, (batch..., heads, m, n), broadcast axes 1."""
    rows = np.asarray(m if q_lengths is None else q_lengths)[..., None, None, None]
    keys = np.asarray(n if k_lengths is None else k_lengths)[..., None, None, None]
    at = keys - rows if offset is None else offset
    left, right = window or (None, None)
    i, j = np.arange(m)[:, None], np.arange(n)
    seen = (i < rows) & (j < keys)
    if causal:
        seen = seen & (j <= i + at)
    if left is not None:
        seen = seen & (i + at - j <= left)
    if right is not None:
        seen = seen & (j - i - at <= right)
    if mask is not None:
        seen = seen & mask
    return seen if bias is None else seen & ~np.isneginf(bias.astype(np.float64))


def of_row(options: Options, b: int, h: int, i: int, heads: int) -> Options:
    """Return the options under which one row by itself, without leading axes, is the same row.

    Of lengths, the batch entry's, with its one row.
    """
    alone = dict(options)
    for name in PAIRS:
        if name in options:
            table = np.broadcast_to(options[name], (BATCH, heads, M, N))
            alone[name] = table[b, h, i : i + 1]
    for name in LEADING:
        if name in options:
            alone[name] = np.asarray(np.broadcast_to(options[name], (BATCH, heads))[b, h])
    if "q_lengths" in options:
        rows = int(options["q_lengths"][b])
        alone["q_lengths"] = ints(min(max(rows - i, 0), 1))
        alone["k_lengths"] = options["k_lengths"][b : b + 1]
        own_offset = int(options["k_lengths"][b]) - rows
    else:
        own_offset = N - M
    offset = options.get("offset")
    alone["offset"] = (own_offset if offset is None else offset) + i
    return alone
