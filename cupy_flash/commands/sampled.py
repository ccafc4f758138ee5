"""Errors of some rows of a result, for problems too large to be compared as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cupy_flash import reference
from cupy_flash.accuracy import Comparison, compare, out_bound
from cupy_flash.products import loosest

ToHost = Callable[[Any], Any]


@dataclass(frozen=True)
class Rows:
    """Some rows of one head: where they are, their inputs and their exact values."""

    where: tuple[Any, ...]
    inputs: tuple[Any, Any, Any]
    exact: reference.Reference

    def compare(self, out: Any, family: str | None, to_host: ToHost) -> Comparison:
        """Compare them with the exact ones, within the bound of the kernel that computed them."""
        q, k, v = self.inputs
        scale = reference.default_scale(q.shape[-1])
        bound = out_bound(self.exact, q.dtype.name, q, k, v, scale, family)
        return compare(to_host(out[self.where]), self.exact.out, bound)


def places(m: int, rows: int = 16) -> list[tuple[int, int, int]]:
    """Choose rows at the beginning, in the middle and at the end of the first and the last head.

    Returns
    -------
    list of (int, int, int)
        0 or -1 for the first or the last batch entry and head, the first row, the row behind.
    """
    rows = min(rows, m)
    begins = sorted({0, (m - rows) // 2, m - rows})
    return [(end, begin, begin + rows) for end in (0, -1) for begin in begins]


def exact_rows(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    where: Iterable[tuple[int, int, int]],
    to_host: ToHost,
    options: Mapping[str, Any] | None = None,
) -> list[Rows]:
    """Compute rows in float64 (those of float64 in long double).

    Parameters
    ----------
    q, k, v : arrays, (batch, heads, rows, columns)
        k and v may have fewer heads.
    causal : bool
        With the default offset of `cupy_flash.attention`.
    where : iterable of (int, int, int)
        As `places` returns them.
    to_host : callable
        Makes a NumPy array of a part of q, k or v, or of an option's array.
    options : mapping, optional
        window, mask, bias, softcap, alibi_slopes and sinks as `cupy_flash.attention` takes them.

    Returns
    -------
    list of Rows
    """
    offset = k.shape[-2] - q.shape[-2]
    options = options or {}
    found = []
    for end, begin, stop in where:
        # Keys that none of the rows sees would only cost time.
        keys = max(0, min(k.shape[-2], stop + offset)) if causal else k.shape[-2]
        rows = to_host(q[end, end, begin:stop])
        keys_and_values = [to_host(x[end, end, :keys]) for x in (k, v)]
        # Of any kernel: those of simt have the largest bound.
        # Row 0 of the part is row `begin`, so it stands as many keys further.
        exact = reference.attention(
            rows,
            *keys_and_values,
            causal=causal,
            offset=begin + offset,
            products=loosest("simt", rows.dtype.name),
            **{
                name: _part(name, x, (end, end, slice(begin, stop), slice(keys)), to_host)
                for name, x in options.items()
            },
        )
        inputs = (rows, keys_and_values[0], keys_and_values[1])
        found.append(Rows((end, end, slice(begin, stop)), inputs, exact))
    return found


def _part(name: str, x: Any, where: tuple[Any, ...], to_host: ToHost) -> Any:
    """Return what an option is for some rows and keys of one head."""
    axes = {"mask": 4, "bias": 4, "alibi_slopes": 2, "sinks": 2}.get(name)
    if axes is None or x is None:
        return x
    # Axes that are absent are those in front; one of a single element serves every index.
    places = zip(where[axes - x.ndim : axes], x.shape, strict=True)
    index = (slice(None) if isinstance(at, slice) and extent == 1 else at for at, extent in places)
    return to_host(x[tuple(index)])


def errors(out: Any, exact: list[Rows], family: str | None, to_host: ToHost) -> dict[str, float]:
    """Return the largest and the rms error, and the largest error / bound, over the rows."""
    compared = [rows.compare(out, family, to_host) for rows in exact]
    return {
        "max_error": max(one.max_error for one in compared),
        "rms_error": math.sqrt(sum(one.rms_error**2 for one in compared) / len(compared)),
        "error_over_bound": max(one.ratio for one in compared),
    }
