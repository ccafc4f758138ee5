"""Problems of sm80's backward pass that between them take every form of its tiles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from problems import Case

HALF = ("float16",) * 3
BRAIN = ("bfloat16",) * 3
# More than one tile on each side, and no multiple of anything.
PLAIN = Case((), None, None, 141, 150, 20, 24, HALF, scale=0.3, seed=1)
QKV = ("q", "k", "v")


@dataclass(frozen=True)
class Directed:
    """A problem: the GPU that decides on its tiles, head dims, what is asked for, options."""

    arch: int
    d: int
    p: int
    wrt: tuple[str, ...] = QKV
    options: dict[str, Any] = field(default_factory=dict)

    def case(self) -> Case:
        return replace(PLAIN, d=self.d, p=self.p, **self.options)

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"sm_{self.arch} {self.d} {self.p} {' '.join(self.wrt)} {options}"


def _pairs(**options: Any) -> dict[str, Any]:
    return {"mask": "pairs", "bias": "pairs", **options}


HEADS = {"batch": (2,), "heads": 4, "kv_heads": 2, "m": 70, "n": 75}
WINDOW = {"window": (60, 20), "offset": -5}

DIRECTED = (
    # What a GPU with much shared memory and without wgmma takes without arrays, in every bucket;
    # units of 16, 4 and 2 bytes.
    Directed(100, 32, 32, QKV, {"dtypes": BRAIN, "causal": True, "offset": 9, "m": 300, "n": 270}),
    Directed(100, 64, 48, QKV, {"window": (130, 20), "offset": -5, "m": 290, "n": 280}),
    Directed(100, 72, 96, QKV, {"dtypes": BRAIN, "alibi": "one", "softcap": 1.5}),
    Directed(100, 128, 120, QKV, {**HEADS, "causal": True, "lengths": "both"}),
    Directed(100, 158, 130, QKV, {"dtypes": BRAIN, **WINDOW, "scale": -0.4}),
    Directed(100, 30, 23, ("k",), {"lengths": "both", **HEADS}),
    Directed(100, 100, 100, ("k",), {"causal": True, "dtypes": BRAIN}),
    Directed(100, 30, 23, ("v",), {"causal": True, "offset": -40}),
    Directed(100, 64, 65, ("v",), {"alibi": "one", **WINDOW}),
    Directed(100, 128, 128, ("v",), {"softcap": 2.0, "dtypes": BRAIN}),
    Directed(100, 256, 256, ("v",), {"causal": True, **HEADS}),
    # Head dims of two buckets, where warps share rows or keys.
    Directed(100, 118, 55, ("k", "v"), {"causal": True}),
    # With arrays of every element type that a tile holds otherwise.
    Directed(100, 32, 24, (*QKV, "bias"), _pairs(dtypes=BRAIN, causal=True, n=300)),
    Directed(100, 64, 64, (*QKV, "bias"), _pairs(bias_dtype="float16", **WINDOW)),
    Directed(100, 121, 128, (*QKV, "bias"), _pairs(bias_dtype="float64", softcap=2.0)),
    Directed(100, 192, 150, QKV, _pairs(bias_dtype="int8", mask="keys")),
    Directed(100, 96, 90, ("v",), _pairs(mask="rows", bias="keys")),
    # Of GPUs with less shared memory.
    Directed(80, 50, 64, QKV, {"bias": "rows", "bias_dtype": "float16", "n": 280}),
    Directed(80, 96, 96, QKV, {"bias": "pairs", **WINDOW}),
    Directed(80, 192, 192, QKV, _pairs(**HEADS)),
    Directed(86, 32, 32, QKV, {"bias": "pairs", "dtypes": BRAIN}),
    Directed(86, 96, 80, QKV, {"mask": "pairs", **WINDOW}),
    Directed(86, 96, 80, ("k",), {"mask": "keys"}),
    Directed(86, 96, 80, ("v",), {"mask": "rows", "causal": True}),
    Directed(86, 224, 256, ("q", "k"), {"window": (40, None), "offset": 7}),
    Directed(100, 97, 128, ("k",), _pairs()),
    Directed(100, 160, 160, ("k",), WINDOW),
    Directed(80, 160, 160, ("k",), _pairs(bias="keys")),
    Directed(80, 45, 60, ("k",), _pairs(bias_dtype="float16")),
    Directed(80, 60, 45, ("v",), _pairs()),
    Directed(100, 256, 256, ("k", "v"), {"mask": "pairs"}),
    Directed(100, 64, 64, ("k", "v"), {"bias": "pairs", "bias_dtype": "float16"}),
    # Scores alone: sums of rows, or of keys.
    Directed(86, 256, 256, ("scale",), {"mask": "pairs"}),
    Directed(100, 100, 128, ("bias",), {"bias": "keys", "mask": "pairs"}),
    Directed(86, 64, 64, ("bias",), {"bias": "keys", "mask": "pairs", "bias_dtype": "float32"}),
    Directed(100, 24, 20, ("scale",), {"causal": True, "scale": -0.4}),
    Directed(80, 64, 64, ("scale",), _pairs()),
    Directed(100, 128, 128, ("scale", "alibi_slopes"), _pairs(alibi="one")),
    Directed(86, 256, 256, ("scale",), {"bias": "pairs", "bias_dtype": "float16"}),
    Directed(100, 24, 20, ("bias",), {"bias": "keys", "softcap": 1.5}),
    Directed(80, 64, 64, ("bias",), {"bias": "keys", "bias_dtype": "float16"}),
    Directed(86, 256, 256, ("bias",), {"bias": "keys", "bias_dtype": "float16", **WINDOW}),
    # Warpgroups: every tile, with and without arrays.
    Directed(90, 64, 48, QKV, {"window": (130, 20), "offset": -5, "m": 290, "n": 280}),
    Directed(90, 72, 96, QKV, {"dtypes": BRAIN, "alibi": "one", "softcap": 1.5}),
    Directed(90, 128, 120, QKV, {**HEADS, "causal": True, "lengths": "both"}),
    Directed(90, 40, 128, QKV, {**WINDOW, "scale": -0.4}),
    Directed(90, 64, 64, (*QKV, "bias"), _pairs(bias_dtype="float16", **WINDOW)),
    Directed(90, 50, 64, ("q",), _pairs(bias_dtype="float64", **HEADS)),
    Directed(90, 121, 128, (*QKV, "bias"), _pairs(bias_dtype="float64", softcap=2.0)),
    Directed(90, 64, 64, QKV, {"mask": "pairs", "causal": True}),
    Directed(90, 121, 128, ("k",), _pairs(bias_dtype="float64")),
    Directed(90, 128, 128, ("v",), _pairs(bias_dtype="float64", dtypes=BRAIN)),
    Directed(90, 64, 40, ("k",), {"lengths": "both", **HEADS}),
    Directed(90, 100, 100, ("k",), {"causal": True, "dtypes": BRAIN}),
    Directed(90, 64, 65, ("v",), {"alibi": "one", **WINDOW}),
    Directed(90, 40, 64, ("v",), {"causal": True, "offset": -40}),
    Directed(90, 64, 64, ("scale",), {"causal": True, "scale": -0.4}),
    Directed(90, 128, 128, ("scale", "alibi_slopes"), _pairs(alibi="one")),
    Directed(90, 64, 64, ("bias",), {"bias": "keys", "mask": "pairs", "softcap": 1.5}),
    Directed(90, 64, 64, ("k", "bias"), {"bias": "keys", **WINDOW}),
    Directed(90, 64, 64, ("bias",), {"bias": "pairs", **HEADS}),
    Directed(90, 128, 100, ("bias",), {"bias": "pairs", **HEADS}),
    Directed(90, 64, 64, ("bias",), {"bias": "pairs", "bias_dtype": "float16", **HEADS}),
    # Sums beside gradients, where warps share rows or keys too.
    Directed(100, 256, 250, (*QKV, "bias"), {"bias": "keys", "causal": True, "softcap": 2.0}),
    Directed(100, 32, 32, ("q", "bias"), {"bias": "rows", "softcap": 2.0}),
)
