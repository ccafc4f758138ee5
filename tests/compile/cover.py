"""Pairwise covers: few settings in which every two values of two axes meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Axes = Mapping[str, Sequence[Any]]
Row = dict[str, Any]


def cover(axes: Axes, first: Iterable[Row] = ()) -> list[Row]:
    """Return rows, one value per axis, in which every pair occurs: greedy, deterministic.

    `first` are rows to begin with; what they leave open is filled as in the others.
    """
    # A dict is a set that keeps its order.
    missing = dict.fromkeys(
        frozenset(((a, x), (b, y)))
        for a, b in itertools.combinations(axes, 2)
        for x, y in itertools.product(axes[a], axes[b])
    )

    def gain(setting: tuple[str, Any], row: Row) -> int:
        return sum(frozenset((setting, there)) in missing for there in row.items())

    # Long axes have the most pairs: chosen late, they would find most of them spoiled.
    longest_first = sorted(axes, key=lambda axis: len(axes[axis]), reverse=True)
    given = [dict(row) for row in first]
    rows = []
    while given or missing:
        row = given.pop(0) if given else dict(next(iter(missing)))
        for axis in longest_first:
            if axis not in row:
                gains = [gain((axis, value), row) for value in axes[axis]]
                row[axis] = axes[axis][gains.index(max(gains))]
        for pair in itertools.combinations(row.items(), 2):
            missing.pop(frozenset(pair), None)
        rows.append({axis: row[axis] for axis in axes})
    return rows
