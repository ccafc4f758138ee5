"""Pictures of a sweep by matplotlib: rate, memory, and the roofline with the kernels on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cupy_flash.commands.bench_measure import OURS
from cupy_flash.commands.bench_results import (
    Line,
    Results,
    cost,
    known_gpu,
    lines,
    measured,
    tflops,
    title,
    total_bytes,
)
from cupy_flash.commands.bench_table import memory
from cupy_flash.commands.roofline import default_unit
from cupy_flash.gpus import Gpu
from cupy_flash.roofline import rates, ridge_point

INSTALL = "pip install 'cupy-flash[bench]'"
SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D3B")
MARKERS = "osD^vP*X"
# A linear axis shows the smaller of two rates only within this ratio.
LINEAR = 10
_DASHES = ("-", "--", ":", "-.")
_NAMES = {"n": "keys n", "d": "head dim d", "kv_heads": "key heads"}


def missing() -> str | None:
    """Say what to install for pictures; None if nothing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return f"pictures need matplotlib: {INSTALL}"
    return None


def draw(results: Results, path: Path) -> None:
    """Write the picture of a sweep; the file's suffix is its format.

    Parameters
    ----------
    results : mapping
        As `bench --json` writes them.
    path : Path
        Ends in one of `SUFFIXES`.
    """
    figure(results).savefig(path, dpi=150, metadata=metadata(path))


def metadata(path: Path, **more: str) -> dict[str, Any]:
    """Return what a picture says of itself: no date, so that the same data give the same file."""
    return {"Date": None, **more} if path.suffix == ".svg" else {}


def figure(results: Results) -> Any:
    """Return the matplotlib figure: TFLOP/s, memory, and on a known GPU the roofline."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    gpu = known_gpu(results)
    panels = 2 if gpu is None else 3
    # Not pyplot, which would open windows and keep the figure.
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.03)
    whole = Figure(figsize=(5.2 * panels, 5.6), layout=layout)
    axes = whole.subplots(1, panels)
    whole.suptitle(f"Sweep {results['sweep']}\n{title(results)}", fontsize=11)
    styles = _Styles()
    rates_drawn = lines(results, tflops)
    _panel(axes[0], results, rates_drawn, styles)
    axes[0].set_ylabel("TFLOP/s (two products, visible pairs)")
    values = [value for line in rates_drawn for value in line.y]
    if values and max(values) > LINEAR * min(values):
        axes[0].set_yscale("log")
        axes[0].yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes[0].set_ylim(bottom=0)
    _panel(axes[1], results, lines(results, total_bytes), styles)
    axes[1].set_ylabel("memory: q, k, v, out and workspace")
    axes[1].set_yscale("log", base=2)
    axes[1].yaxis.set_major_formatter(lambda value, _: memory(value).replace(".0", ""))
    if gpu is not None:
        _roofline(axes[2], results, gpu, styles)
    handles, labels = axes[0].get_legend_handles_labels()
    whole.legend(
        handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False
    )
    return whole


class _Styles:
    """A colour and a marker for each line, the same in every panel."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, line: Line) -> dict[str, Any]:
        # Lines that differ in the candidate only share their colour.
        rest = line.label.removeprefix(line.candidate)
        number = self._numbers.setdefault(rest, len(self._numbers))
        ours = line.candidate == OURS
        return {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 5,
            "linestyle": "-" if ours else "--",
            "markerfacecolor": None if ours else "white",
            "label": line.label,
        }


def _panel(
    axis: Any, results: Results, drawn: Sequence[Line], style: Callable[[Line], Any]
) -> None:
    for line in drawn:
        axis.plot(line.x, line.y, **style(line))
    axis.set_xscale("log", base=2)
    # One name every factor of two is too many for a million.
    ticks = sorted({value for line in drawn for value in line.x})
    axis.set_xticks(ticks[:: math.ceil(len(ticks) / 7)], minor=False)
    axis.xaxis.set_major_formatter(lambda value, _: _power(value))
    axis.minorticks_off()
    axis.set_xlabel(_NAMES.get(results["x"], results["x"]))
    axis.grid(color="#dddddd")
    axis.set_axisbelow(True)


def _power(value: float) -> str:
    """Write a size: 512, 4k, 1M, in powers of 1024."""
    for unit, factor in (("M", 2**20), ("k", 2**10)):
        if value >= factor and value % factor == 0:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _roofline(axis: Any, results: Results, gpu: Gpu, style: Callable[[Line], Any]) -> None:
    """Draw the roofs of the dtypes that were measured, with their ridge points, and the points."""

    def rate(point: Results, candidate: str) -> float:
        seconds: float = point["candidates"][candidate]["seconds"]
        return cost(point, candidate).flops / seconds / 1e12

    drawn = lines(results, rate, lambda point, candidate: cost(point, candidate).intensity)
    least = min((x for line in drawn for x in line.x), default=1.0) / 2
    largest = max((x for line in drawn for x in line.x), default=1.0) * 2
    memory_rate = gpu.memory.best_known.rate
    roofs: dict[float, list[str]] = {}
    for dtype in dict.fromkeys(point["dtype"] for point, _ in measured(results["points"])):
        unit = default_unit(gpu, dtype)
        roofs.setdefault(rates(gpu, dtype, unit)[1].rate, []).append(f"{dtype} on {unit}")
        ridge = ridge_point(gpu, dtype, unit)
        least, largest = min(least, ridge / 4), max(largest, ridge * 4)
    for dashes, (roof, names) in zip(_DASHES, roofs.items(), strict=False):
        ridge = roof / memory_rate
        axis.plot(
            [least, ridge, largest],
            [least * memory_rate / 1e12, roof / 1e12, roof / 1e12],
            color="#444444",
            linewidth=1.2,
            linestyle=dashes,
            marker="|",
            markersize=9,
            markevery=[1],
            label=f"{' and '.join(names)}: {roof / 1e12:.3g} TFLOP/s, ridge {ridge:.3g} FLOP/byte",
        )
    for line in drawn:
        axis.plot(line.x, line.y, **{**style(line), "linewidth": 0.7, "label": None})
    axis.set_xscale("log")
    axis.set_yscale("log")
    # Nothing can be above the roofs, so their names go there.
    axis.set_ylim(top=max(roofs, default=1e12) / 1e12 * 3 * 1.8 ** len(roofs))
    axis.legend(loc="upper left", fontsize=8, frameon=False)
    axis.set_xlabel(f"FLOP/byte at least traffic ({gpu.name}: {memory_rate / 1e12:.3g} TB/s)")
    axis.set_ylabel("TFLOP/s (products, softmax, rescaling)")
    axis.grid(color="#dddddd")
    axis.set_axisbelow(True)
