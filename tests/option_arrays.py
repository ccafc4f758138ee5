"""The arrays of a case's options: masks, biases, slopes and sinks of every shape, dtype and layout.

And the poison: NaN wherever no row looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from cupy_flash import reference
from layouts import Strided, strided

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

FLOATS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
INTEGERS: dict[str, np.dtype[Any]] = {
    f"{sign}int{bits}": np.dtype(f"{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}

# Shapes of masks and biases, by what they differ along: keys alone, or rows too. `batch` and
# `heads` are out's leading axes; `heads` is empty without a head axis.
ALONG_KEYS: dict[str, Callable[[Shape, Shape, int, int], Shape]] = {
    "one": lambda batch, heads, m, n: (),
    "keys": lambda batch, heads, m, n: (n,),
    "keys of a batch entry": lambda batch, heads, m, n: (*batch, *[1] * len(heads), 1, n),
    "keys of a head": lambda batch, heads, m, n: (*heads, 1, n),
}
ALONG_PAIRS: dict[str, Callable[[Shape, Shape, int, int], Shape]] = {
    "rows": lambda batch, heads, m, n: (m, 1),
    "pairs": lambda batch, heads, m, n: (m, n),
    "rows of a batch entry": lambda batch, heads, m, n: (*batch, *[1] * len(heads), m, 1),
    "pairs of a head": lambda batch, heads, m, n: (*heads, m, n),
    "full": lambda batch, heads, m, n: (*batch, *heads, m, n),
}
PAIRS = ALONG_KEYS | ALONG_PAIRS
# Shapes of slopes and sinks.
LEADING: dict[str, Callable[[Shape, Shape], Shape]] = {
    "one": lambda batch, heads: (),
    "heads": lambda batch, heads: heads or batch[-1:],
    "batch": lambda batch, heads: (*batch, *[1] * len(heads)),
    "full": lambda batch, heads: (*batch, *heads),
}
# Beyond so many elements, one table for all heads.
LARGEST = 1 << 22


def along(kind: str | None) -> str:
    """Say what a mask or bias of a kind differs along."""
    return "none" if kind is None else "keys" if kind in ALONG_KEYS else "pairs"


def placed(values: Array, layout: str) -> Strided:
    """Lay values out in memory; gaps hold NaN, True or a large number."""
    fill = 99 if values.dtype.kind in "iu" else math.nan
    # Layouts need two axes; those in front are dropped again.
    missing = max(2 - values.ndim, 0)
    x = strided((1,) * missing + values.shape, values.dtype, layout, fill)
    x = replace(x, shape=x.shape[missing:], strides=x.strides[missing:])
    if values.size:
        x.numpy()[...] = values
    return x


def draw_mask(rng: np.random.Generator, shape: Shape, layout: str) -> Strided:
    mask = rng.random(shape) < rng.choice((0.95, 0.6, 0.1))
    if rng.random() < 0.5:
        mask = np.where(lines(rng, shape), False, mask)
    return placed(np.asarray(mask), layout)


def lines(rng: np.random.Generator, shape: Shape) -> Array:
    """Pick whole columns and rows, the same in all matrices."""
    picked = np.zeros(shape, bool)
    for axis, extent in enumerate(shape[-2:], start=max(len(shape) - 2, 0)):
        if extent > 1:
            along_axis = (1,) * axis + (extent,) + (1,) * (len(shape) - axis - 1)
            picked = picked | (rng.random(extent) < rng.choice((0.0, 0.3))).reshape(along_axis)
    return picked


def draw_bias(rng: np.random.Generator, shape: Shape, dtype: str, layout: str) -> Strided:
    if dtype in INTEGERS:
        low = 0 if dtype.startswith("u") else -6
        return placed(np.asarray(rng.integers(low, 7, shape), INTEGERS[dtype]), layout)
    bias = rng.normal(0, 2, shape)
    if rng.random() < 0.5:
        hidden = (rng.random(shape) < 0.2) | lines(rng, shape)
        bias = np.where(hidden, -np.inf, bias)
    return placed(np.asarray(bias).astype(FLOATS[dtype]), layout)


def draw_slopes(rng: np.random.Generator, shape: Shape, dtype: str, layout: str) -> Strided:
    slopes = rng.choice((0.0, 0.5, 0.3, 1 / 256, 1.5, -0.125), shape)
    return placed(np.asarray(slopes).astype(FLOATS[dtype]), layout)


def draw_sinks(rng: np.random.Generator, shape: Shape, dtype: str, layout: str) -> Strided:
    sinks = rng.choice((-np.inf, -20.0, 0.0, 0.7, 3.0, 100.0), shape)
    return placed(np.asarray(sinks).astype(FLOATS[dtype]), layout)


def visible(
    leading: Shape, batch_axes: int, m: int, n: int, options: dict[str, Any], **without: None
) -> Array:
    """Return (leading..., m, n): which row sees which key, some options replaced by None."""
    options = {**options, **without}
    seen = np.zeros((*leading, m, n), bool)
    tables = {
        name: None if options.get(name) is None else np.broadcast_to(options[name], seen.shape)
        for name in ("mask", "bias")
    }
    limits = {
        name: None
        if options.get(name) is None
        else np.broadcast_to(options[name], leading[:batch_axes])
        for name in ("q_lengths", "k_lengths")
    }
    for index in np.ndindex(*leading):
        rows, keys = (
            limit if x is None else int(x[index[:batch_axes]])
            for x, limit in zip(limits.values(), (m, n), strict=True)
        )
        offset = keys - rows if options["offset"] is None else options["offset"]
        seen[index] = reference.visibility(
            m,
            n,
            causal=options["causal"],
            offset=offset,
            window=options.get("window"),
            rows=rows,
            keys=keys,
            **{name: None if x is None else x[index] for name, x in tables.items()},
        )
    return seen


def poison(x: Strided, needed: Array) -> None:
    """Put NaN wherever no index in `needed`, which broadcasts to x's shape, looks."""
    places = x.places()
    kept, named = np.zeros((2, x.buffer.size), bool)
    kept[places[np.broadcast_to(needed, x.shape)]] = True
    named[places] = True
    x.buffer[named & ~kept] = np.nan


def reduced(table: Array, shape: Shape, group_axis: int | None = None) -> Array:
    """Return `any` of a table over the axes along which an array of `shape` broadcasts.

    Along `group_axis`, counted from the end, consecutive indices share one of the array.
    """
    table = table.any(axis=tuple(range(table.ndim - len(shape))))
    for axis, extent in enumerate(shape):
        own = table.shape[axis]
        if extent == own:
            continue
        if axis - len(shape) == group_axis and extent > 0:
            grouped = (*table.shape[:axis], extent, own // extent, *table.shape[axis + 1 :])
            table = table.reshape(grouped).any(axis=axis + 1)
        else:
            table = table.any(axis=axis, keepdims=True)
    return table
