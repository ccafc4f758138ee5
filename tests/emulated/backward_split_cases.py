"""Problems of float32 gradients by warpgroups: what is wanted, options, shapes, layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from backward_problems import Backward
from cover import Row, cover
from problems import Case

FLOAT = ("float32",) * 3
# More than a tile on each side, 128 or 64 x 64, and no multiple of anything.
PLAIN = Case((), None, None, 141, 150, 50, 60, FLOAT, scale=0.3, seed=1)
QKV = ("q", "k", "v")
# What is wanted, and what a call must have for it.
WANTED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "q": (("q",), {}),
    "k": (("k",), {}),
    "v": (("v",), {}),
    "k, v": (("k", "v"), {}),
    "q, k, v": (QKV, {}),
    "q and pairs": (("q", "bias"), {"bias": "full"}),
    "shared pairs": (("bias", "v"), {"bias": "pairs"}),
    "k and a bias of keys": (("k", "bias"), {"bias": "keys"}),
    "k, v and a bias of keys": (("k", "v", "bias"), {"bias": "keys"}),
    "q and a bias of rows": (("bias", "q"), {"bias": "rows", "bias_dtype": "float64"}),
    "q and one bias": (("q", "bias"), {"bias": "one"}),
    "q and numbers": (
        ("q", "scale", "alibi_slopes", "sinks"),
        {"alibi": "one", "sinks": "one"},
    ),
    "all": (
        (*QKV, "bias", "sinks", "alibi_slopes", "scale"),
        {"bias": "full", "alibi": "one", "sinks": "one"},
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "offset": 9},
    "causal, few rows": {"causal": True, "offset": -60},
    "window": {"window": (60, 20), "offset": -5},
    "left": {"window": (70, None), "offset": 30},
    "mask": {"mask": "pairs"},
    "mask of keys": {"mask": "keys", "causal": True, "offset": 20},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": "one", "window": (None, 15), "offset": 3},
}
# Head dims of 33 to 128, and one of less beside one of more.
DIMS = ((64, 64), (50, 60), (33, 128), (128, 40), (128, 128), (100, 120), (96, 7))
SHAPES: dict[str, dict[str, Any]] = {
    "one head": {},
    "grouped heads": {"batch": (2,), "heads": 4, "kv_heads": 2, "m": 70, "n": 75},
    "lengths": {"batch": (2,), "m": 100, "n": 150, "lengths": "both"},
    "keys of all": {"batch": (2,), "m": 66, "n": 130, "squeeze": True},
    "a few": {"m": 3, "n": 70},
}
LAYOUTS = ("contiguous", "transposed", "odd pitch", "odd address", "sliced", "negative")
AXES = {
    "wanted": tuple(WANTED),
    "options": tuple(OPTIONS),
    "dims": DIMS,
    "shape": tuple(SHAPES),
    "layout": LAYOUTS,
    "precision": (None, None, "tf32"),
    "poison": (False, True),
}


@dataclass(frozen=True)
class SplitProblem:
    row: Row

    def call(self) -> Backward:
        row = self.row
        wrt, needed = WANTED[row["wanted"]]
        d, p = row["dims"]
        given = OPTIONS[row["options"]] | needed | SHAPES[row["shape"]]
        case = replace(PLAIN, d=d, p=p, layouts=(row["layout"],) * 3, poison=row["poison"], **given)
        return Backward.of(case, wrt)

    def __str__(self) -> str:
        return " / ".join(str(x) for x in self.row.values())


# Every two settings meet.
PROBLEMS = [SplitProblem(row) for row in cover(AXES)]
