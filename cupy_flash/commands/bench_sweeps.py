"""The sweeps of `python -m cupy_flash bench`, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cupy_flash.arrays import FLOAT_NAMES

TOKENS = 16_384
WIDTH = 2_048


@dataclass(frozen=True)
class Point:
    """One problem: out of shape (batch, heads, m, d), k and v of (batch, kv_heads, n, d)."""

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    m: int
    n: int
    d: int
    causal: bool

    def __str__(self) -> str:
        """Say it in a few words."""
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        rows = f"n={self.n}" if self.m == self.n else f"m={self.m} n={self.n}"
        mask = " causal" if self.causal else ""
        return f"{self.dtype} batch={self.batch} heads={heads} {rows} d={self.d}{mask}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by their names."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Sweep:
    """Problems that differ mainly in one size, the field `x` of a `Point`."""

    about: str
    x: str
    points: tuple[Point, ...]


def _square(dtype: str, n: int, d: int, causal: bool, *, batch: int = 1, heads: int = 1) -> Point:
    return Point(dtype, batch, heads, heads, n, n, d, causal)


_BOTH = (False, True)

SWEEPS: Mapping[str, Sweep] = MappingProxyType(
    {
        "length": Sweep(
            f"float16, n = 512 to 16384 in batches of {TOKENS} tokens, heads x d = {WIDTH}",
            "n",
            tuple(
                _square("float16", n, d, causal, batch=TOKENS // n, heads=WIDTH // d)
                for d in (64, 128)
                for causal in _BOTH
                for n in (512, 1024, 2048, 4096, 8192, 16_384)
            ),
        ),
        "growth": Sweep(
            "float16, causal, d = 128, 8 heads, n = 512 to 1048576: how time and memory grow",
            "n",
            tuple(_square("float16", 2**k, 128, True, heads=8) for k in range(9, 21)),
        ),
        "head-dim": Sweep(
            "d = 32 to 256 in every dtype, n = 4096, heads x d = 1024",
            "d",
            tuple(
                _square(dtype, 4096, d, causal, heads=1024 // d)
                for dtype in FLOAT_NAMES
                for causal in _BOTH
                for d in (32, 64, 128, 256)
            ),
        ),
        "kv-heads": Sweep(
            "bfloat16, causal, n = 4096, d = 128, 64 query heads on 1 to 64 key heads",
            "kv_heads",
            tuple(
                Point("bfloat16", 1, 64, kv_heads, 4096, 4096, 128, True)
                for kv_heads in (1, 2, 4, 8, 16, 32, 64)
            ),
        ),
        "decode": Sweep(
            "bfloat16, one row, n = 1024 to 65536 keys, d = 128, 32/8 heads, batch 16",
            "n",
            tuple(Point("bfloat16", 16, 32, 8, 1, 2**k, 128, False) for k in range(10, 17)),
        ),
        "small": Sweep(
            "float32, n = 64 to 1024, d = 64, 2 heads: sizes for the NumPy path",
            "n",
            tuple(
                _square("float32", n, 64, causal, heads=2)
                for causal in _BOTH
                for n in (64, 128, 256, 512, 1024)
            ),
        ),
    }
)
