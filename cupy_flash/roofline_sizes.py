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
    causal: bool
    offset: int

    def keys_of(self, row: int) -> int:
        """Count the leading keys that a row sees."""
        return max(0, min(self.n, row + self.offset + 1)) if self.causal else self.n

    @property
    def pairs(self) -> int:
        """Visible pairs of one head: a ramp that starts at 0 less the part of it above n."""
        if not self.causal:
            return self.m * self.n
        return _ramp(self.m, self.offset + 1) - _ramp(self.m, self.offset + 1 - self.n)


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
        check_flag("causal", causal),
        offset,
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
