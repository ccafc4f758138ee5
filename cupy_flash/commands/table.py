"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], right: bool = True) -> list[str]:
    """Lay out rows of cells as lines.

    Parameters
    ----------
    rows : sequence of sequences of str
        All of one length.
    right : bool, optional
        Columns after the first are aligned to the right (default) or to the left.

    Returns
    -------
    list of str
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if right and column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
