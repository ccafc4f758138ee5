"""The options of small problems for compute-sanitizer."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

# (numbers, arrays by (shape, dtype)); shapes in letters: b the 2 batch entries, h the 2 heads,
# m rows, n keys.
Kind = tuple[dict[str, Any], dict[str, tuple[str, Any]]]
BFLOAT16 = ml_dtypes.bfloat16
KINDS: dict[str, Kind] = {
    "none": ({}, {}),
    # No row reaches the first 25 keys.
    "window": ({"window": (5, 3), "offset": 30}, {}),
    "mask of keys": ({}, {"mask": ("b11n", bool)}),
    "mask of pairs": ({"causal": True}, {"mask": ("bhmn", bool)}),
    "mask of rows": ({}, {"mask": ("m1", bool)}),
    "bias of keys": ({}, {"bias": ("n", np.float16)}),
    "bias of pairs": ({}, {"bias": ("hmn", BFLOAT16)}),
    "bias in float64": ({}, {"bias": ("mn", np.float64)}),
    "bias in integers": ({}, {"bias": ("mn", np.int8)}),
    "changed scores": (
        {"softcap": 3.0},
        {"alibi_slopes": ("h", np.float32), "sinks": ("bh", np.float16)},
    ),
    "everything": (
        {"softcap": 3.0, "window": (40, 20)},
        {
            "mask": ("b11n", bool),
            "bias": ("bhmn", np.float32),
            "alibi_slopes": ("bh", np.float64),
            "sinks": ("h", np.float32),
        },
    ),
}


def values_of(kind: str, m: int, n: int) -> dict[str, Array]:
    """Draw the arrays of a kind; masks and biases hide the keys that `hidden_keys` says."""
    rng = np.random.default_rng(3)
    extents = {"b": 2, "h": 2, "m": m, "n": n, "1": 1}
    values = {}
    for name, (letters, dtype) in KINDS[kind][1].items():
        shape = tuple(extents[letter] for letter in letters)
        x = rng.normal(0, 1, shape) * (5 if dtype is np.int8 else 1)
        if name == "mask":
            x = x > -0.5
        if letters.endswith("n") and (name == "mask" or dtype is not np.int8):
            x[..., hidden_keys(n)] = False if name == "mask" else -np.inf
        values[name] = x.astype(dtype)
    return values


def hidden_keys(n: int) -> slice:
    """Return the keys that no row sees where a mask or a bias hides some."""
    return slice(n // 3, n // 3 + 4)
