"""Pictures of what moves through memory: counted traffic, and softmaxes beside a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cupy_flash.commands.bench_pictures import COLOURS, MARKERS
from picture_parts import common_legend, new_figure, where

# Lines of the traffic picture: what, whether causal, heads; and their words.
TRAFFIC = (
    ("fused", False, 8, "attention, 8 heads"),
    ("fused", True, 8, "attention, 8 heads, causal"),
    ("fused", False, 1, "attention, 1 head"),
    ("standard", False, 8, "standard attention, 8 heads"),
    ("standard", True, 8, "standard attention, 8 heads, causal"),
)


def traffic(results: dict[str, Any]) -> Any:
    """Draw counted and predicted bytes, their ratio, and the L2 hit rate along n."""
    figure = new_figure(
        10.5,
        4.4,
        "Bytes to and from device memory, counted by the profiler: forward, float16, d = 128",
        where(results),
    )
    axes = figure.subplots(1, 3)
    for number, (what, causal, heads, label) in enumerate(TRAFFIC):
        points = [
            p
            for p in results["points"]
            if (p["what"], p["causal"], p["heads"]) == (what, causal, heads)
        ]
        lengths = [p["n"] for p in points]
        counted = [(p["read_bytes"] + p["written_bytes"]) / 1e6 for p in points]
        style = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 4}
        axes[0].plot(lengths, [p["predicted_bytes"] / 1e6 for p in points], "--", color="#999999")
        axes[0].plot(lengths, counted, label=label, **style)
        axes[1].plot(lengths, [p["counted_over_predicted"] for p in points], **style)
        axes[2].plot(lengths, [100 * p["l2_hit_rate"] for p in points], **style)
    axes[1].axhline(1, color="#999999", linestyle="--")
    titles = ("counted (dashed: predicted)", "counted / predicted", "L2 hits, %")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xscale("log", base=2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("rows and keys n")
        axis.grid(color="#dddddd")
    for axis in axes[:2]:
        axis.set_yscale("log")
    axes[0].set_ylabel("MB")
    common_legend(figure, axes[0], 3)
    return figure


def softmaxes(results: dict[str, Any]) -> Any:
    """Draw both softmaxes' bytes per second over a copy's, along the length of a row."""
    figure = new_figure(
        10.5,
        4.0,
        "Both softmaxes' bytes per second over a copy's, about 1 GB of rows",
        where(results),
    )
    axes = figure.subplots(1, 2, sharey=True)
    dtypes: Sequence[str] = list(dict.fromkeys(p["dtype"] for p in results["points"]))
    for axis, method in zip(axes, ("online", "three_pass"), strict=True):
        for number, dtype in enumerate(dtypes):
            points = [p for p in results["points"] if p["dtype"] == dtype]
            axis.plot(
                [p["n"] for p in points],
                [p["candidates"][method]["of_copy"] for p in points],
                color=COLOURS[number],
                marker=MARKERS[number],
                markersize=4,
                label=dtype,
            )
        axis.axhline(0.85, color="#999999", linestyle="--")
        axis.set_xscale("log", base=4)
        axis.set_ylim(bottom=0)
        axis.set_title(method, fontsize=10)
        axis.set_xlabel("elements of a row")
        axis.grid(color="#dddddd")
    axes[0].set_ylabel("speed over the copy's")
    common_legend(figure, axes[0])
    return figure
