"""The sizes that the roofline's formulas take, checked; and which keys a row sees."""

from __future__ import annotations

import operator
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Sizes(NamedTuple):
    """Checked sizes of an attention problem."""

    m: int
    n: int
    d: int
    p: int
    itemsize: int
    query_heads: int  # over the batch
    kv_heads: int  # over the batch
    left: int | None
    right: int | None
    offset: int

    def begin(self, row: int) -> int:
        """Return the first key that a row may see, at most n."""
        return 0 if self.left is None else self._clipped(row + self.offset - self.left)

    def end(self, row: int) -> int:
        """Return the key behind the last one that a row may see."""
        return self.n if self.right is None else self._clipped(row + self.offset + self.right + 1)

    def _clipped(self, key: int) -> int:
        return max(0, min(self.n, key))

    def tiles(self, first: int, last: int, width: int) -> tuple[int, int]:
        """Return the first tile of keys that rows first to last see, and the one behind the last.

        Bounds move by one key from row to row and no row's range is inverted, so some row sees each
        tile between.
        """
        begin, end = self.begin(first), self.end(last)
        return (begin // width, -(-end // width)) if begin < end else (0, 0)

    @property
    def pairs(self) -> int:
        """Visible pairs of one head."""
        before = 0 if self.left is None else self._keys_before(self.offset - self.left)
        if self.right is None:
            return self.m * self.n - before
        return self._keys_before(self.offset + self.right + 1) - before

    def _keys_before(self, start: int) -> int:
        """Sum over the rows i of the keys before key i + start."""
        return _ramp(self.m, start) - _ramp(self.m, start - self.n)


def _ramp(m: int, start: int) -> int:
    """Sum of max(0, i + start) for i in range(m)."""
    below, last = max(0, start - 1), max(0, start + m - 1)
    return (last * (last + 1) - below * (below + 1)) // 2 if m else 0


def check_sizes(
    m: int,
    n: int,
    d: int,
    p: int | None,
    dtype: DTypeLike,
    batch: int,
    heads: int,
    kv_heads: int | None,
    causal: bool,
    offset: int | None,
    window: tuple[int | None, int | None] | None,
) -> Sizes:
    """Check every size of an attention problem; p, kv_heads and offset get their defaults."""
    m, n, d = check_size("m", m), check_size("n", n), check_size("d", d)
    p = d if p is None else check_size("p", p)
    batch, heads = check_size("batch", batch), check_size("heads", heads)
    kv_heads = heads if kv_heads is None else check_size("kv_heads", kv_heads)
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(
            f"kv_heads is {kv_heads}, which does not divide heads = {heads}; "
            "each key head serves the same number of query heads"
        )
    left, right = _check_window(window)
    offset = n - m if offset is None else _integer("offset", offset)
    if not heads:
        kv_heads = 0  # nobody reads them
    return Sizes(
        m,
        n,
        d,
        p,
        ITEMSIZE[dtype_name(dtype)],
        batch * heads,
        batch * kv_heads,
        left,
        0 if check_flag("causal", causal) else right,
        offset,
    )


def _check_window(window: tuple[int | None, int | None] | None) -> tuple[int | None, ...]:
    if window is None:
        return None, None
    if not isinstance(window, tuple) or len(window) != 2:
        raise TypeError(
            f"window is {window!r}; it must be a pair (left, right), each an int >= 0 or None"
        )
    return tuple(
        None if bound is None else check_size(f"window's {side} bound", bound)
        for side, bound in zip(("left", "right"), window, strict=True)
    )


def _integer(name: str, value: SupportsIndex) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value}; it must be an integer")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a {type(value).__name__}; it must be an integer") from None


def check_size(name: str, value: SupportsIndex, least: int = 0) -> int:
    """Return an integer argument that is at least `least`, or name it in the error."""
    size = _integer(name, value)
    if size < least:
        raise ValueError(f"{name} is {size}; it must be at least {least}")
    return size


def check_flag(name: str, value: bool) -> bool:
    """Return an argument that is a bool, or name it in the error."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be True or False")
    return bool(value)


def dtype_name(dtype: DTypeLike) -> str:
    """Name one of the four element types; "bfloat16" works without ml_dtypes loaded."""
    if isinstance(dtype, str) and dtype in ITEMSIZE:
        return dtype
    allowed = f"dtype must be one of {', '.join(ITEMSIZE)}"
    if dtype is None:
        raise TypeError(f"dtype is None; {allowed}")
    try:
        name = np.dtype(dtype).name
    except TypeError:
        raise TypeError(f"dtype is {dtype!r}; {allowed}") from None
    if name not in ITEMSIZE:
        raise TypeError(f"dtype is {name}; {allowed}")
    return name
