"""Plots as plain text, for terminals and where matplotlib isn't installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cupy_flash.commands.bench_results import (
    Line,
    Results,
    lines,
    tflops,
    title,
    total_bytes,
)
from cupy_flash.commands.bench_table import memory, time

WIDTH, HEIGHT = 64, 16
MARKERS = "ox+*#@%&ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Write = Callable[[float], str]


def plots(results: Results) -> str:
    """Return TFLOP/s, time and memory against the size that the sweep varies."""
    x = results["x"]
    parts = [
        f"sweep {results['sweep']}: {title(results)}",
        plot("TFLOP/s", x, lines(results, tflops), lambda value: f"{value:.3g}"),
        plot("time", x, lines(results, lambda p, name: p["candidates"][name]["seconds"]), time),
        plot("memory with q, k, v and out", x, lines(results, total_bytes), memory),
    ]
    return "\n\n".join(parts)


def plot(what: str, x_name: str, drawn: Sequence[Line], write: Write) -> str:
    """Draw lines with both axes logarithmic; a later line covers an earlier one.

    Parameters
    ----------
    what, x_name : str
        Names of the axes.
    drawn : sequence of Line
        Positive values only.
    write : callable
        Writes a value of the y axis.

    Returns
    -------
    str
    """
    if not drawn:
        return f"{what}: nothing was measured"
    x = _Axis([value for line in drawn for value in line.x], WIDTH)
    y = _Axis([value for line in drawn for value in line.y], HEIGHT)
    canvas = [[" "] * WIDTH for _ in range(HEIGHT)]
    for marker, line in zip(_markers(len(drawn)), drawn, strict=True):
        for at, value in zip(line.x, line.y, strict=True):
            canvas[HEIGHT - 1 - y.cell(value)][x.cell(at)] = marker
    ticks = {HEIGHT - 1 - y.cell(value): write(value) for value in y.ends}
    width = max(map(len, ticks.values()))
    rows = [
        f"{ticks.get(number, ''):>{width}} |{''.join(row)}".rstrip()
        for number, row in enumerate(canvas)
    ]
    first, last = (f"{value:g}" for value in x.ends)
    gap = WIDTH - len(first) - len(last)
    legend = [
        f"{'':{width}}  {marker} {line.label}"
        for marker, line in zip(_markers(len(drawn)), drawn, strict=True)
    ]
    return "\n".join(
        [
            f"{what} against {x_name}, both logarithmic",
            *rows,
            f"{'':{width}} +{'-' * WIDTH}",
            f"{'':{width}}  {first}{x_name:^{gap}}{last}",
            *legend,
        ]
    )


def _markers(count: int) -> str:
    return (MARKERS * (count // len(MARKERS) + 1))[:count]


class _Axis:
    """A logarithmic axis of some cells from the least to the largest value."""

    def __init__(self, values: Sequence[float], cells: int) -> None:
        self.ends = (min(values), max(values))
        self.cells = cells

    def cell(self, value: float) -> int:
        low, high = map(math.log, self.ends)
        if high == low:
            return (self.cells - 1) // 2
        return round((math.log(value) - low) / (high - low) * (self.cells - 1))
