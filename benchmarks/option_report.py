"""What `time_options.py` prints: a row for each option of a point, and the time along n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from option_cases import CAUSAL, OPTIONS, WINDOW

Point = dict[str, Any]


def table(points: Sequence[Point], ours: str, peers: Sequence[str]) -> list[list[str]]:
    """Return one row for each option of each point."""
    header = ["dtype", "d", "n", "option", "visible", "ms", "cost", "of causal's TFLOP/s"]
    header += ["error/bound", *(f"{name}, ms (cost)" for name in peers)]
    rows = [[*header, *["best peer", "ours / its speed"] * bool(peers)]]
    for point in points:
        for word, found in point["options"].items():
            mine = found["candidates"][ours]
            row = [point["dtype"], *(str(point[name]) for name in ("d", "n"))]
            row += [OPTIONS[word].text, f"{found['visible']:.1%}", f"{mine['seconds'] * 1e3:.3f}"]
            row += [f"{mine[key]:.3f}" if key in mine else "" for key in ("cost", "of_causal")]
            row.append(f"{mine['error_over_bound']:.3f}")
            row += [_peer(found["candidates"].get(name, {})) for name in peers]
            if peers:
                row += [found.get("beside", "-")]
                row.append(f"{found['ratio']:.2f}" if "ratio" in found else "-")
            rows.append(row)
    return rows


def _peer(found: dict[str, Any]) -> str:
    if "seconds" not in found:
        return "-"
    cost = f" ({found['cost']:.3f})" if "cost" in found else ""
    called = ", called" if "not_captured" in found else ""
    return f"{found['seconds'] * 1e3:.3f}{cost}{called}{' WRONG' if found.get('wrong') else ''}"


def reasons(points: Sequence[Point]) -> list[str]:
    """Say each reason why a peer couldn't compute an option, or not from a graph, once."""
    said = {
        f"{name}, {OPTIONS[word].text}: {one[key]}"
        for point in points
        for word, found in point["options"].items()
        for name, one in found["candidates"].items()
        for key in ("not_possible", "not_captured")
        if key in one
    }
    return sorted(said)


def growth_table(growth: Mapping[str, Any]) -> list[list[str]]:
    rows = [["n", "window (1024, 0), ms", "ns a row", "causal, ms", "errors/bound"]]
    for point in growth["points"]:
        seconds = [point[word]["seconds"] for word in (WINDOW, CAUSAL)]
        errors = " ".join(f"{point[word]['error_over_bound']:.3f}" for word in (WINDOW, CAUSAL))
        a_row = f"{seconds[0] / point['n'] * 1e9:.3f}"
        rows.append(
            [str(point["n"]), f"{seconds[0] * 1e3:.4f}", a_row, f"{seconds[1] * 1e3:.4f}", errors]
        )
    return rows
