"""What the pictures share: figures that say where they were measured, bars, legends."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any


def where(*runs: dict[str, Any]) -> str:
    """Say on what, with which versions and when something was measured, each thing once."""
    words: list[str] = []
    for results in runs:
        machine = results["machine"]
        words += [machine["gpu"], f"cupy_flash {machine['cupy_flash']}", f"CuPy {machine['cupy']}"]
    words += [f"NVRTC {results['machine']['nvrtc']}" for results in runs]
    for results in runs:
        for name, versions in results.get("peers", {}).items():
            # Files differ: {"torch": version} or {word of a peer: {package: version}}.
            known = {name: versions} if isinstance(versions, str) else versions
            words += [f"{k} {version}" for k, version in known.items() if k != "not_usable"]
    words += [results["machine"]["date"].split()[0] for results in runs]
    return textwrap.fill(", ".join(dict.fromkeys(words)), 120)


def new_figure(width: float, height: float, title: str, subtitle: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure = Figure(figsize=(width, height), layout=layout)
    figure.suptitle(f"{title}\n{subtitle}", fontsize=10)
    return figure


def grouped_bars(
    axis: Any, labels: Sequence[str], bars: dict[str, tuple[Sequence[float], str]]
) -> None:
    """Draw groups of bars: for each group a label, for each bar in it its values and colour."""
    width = 0.8 / len(bars)
    for number, (name, (values, colour)) in enumerate(bars.items()):
        places = [group - 0.4 + (number + 0.5) * width for group in range(len(labels))]
        axis.bar(places, values, width * 0.92, color=colour, label=name)
    axis.set_xticks(range(len(labels)), labels)
    axis.grid(axis="y", color="#dddddd")
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def common_legend(figure: Any, axis: Any, columns: int = 6) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False
    )
