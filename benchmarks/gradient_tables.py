"""The tables of gradients in the docs: their speed, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from readme_table import BASELINES, beside, load, markdown

ORDER = ("q", "k", "v", "bias")
Point = dict[str, Any]


def speeds() -> str:
    """Return TFLOP/s of our gradients and their ratio to the baseline's, for each length."""
    points = {(p["dtype"], p["d"], p["causal"], p["n"]): p for p in load("time_backward")["points"]}
    lengths = sorted({n for *_, n in points})
    rows = []
    for dtype, d, causal in dict.fromkeys(key[:3] for key in points):
        name = f"{dtype}, d = {d}{', causal' if causal else ''}"
        row = [name, "FlashAttention-2" if dtype in BASELINES else "unfused CuPy"]
        for n in lengths:
            point = points.get((dtype, d, causal, n))
            row.append("" if point is None else _speed(point))
        rows.append(row)
    header = ["gradients, TFLOP/s (over the other's)", "beside"]
    return markdown([*header, *(f"n = {n:,}" for n in lengths)], rows)


def _speed(point: Point) -> str:
    ours, other = beside(point)
    return f"{ours:.0f}" if other is None else f"{ours:.0f} ({ours / other:.2f})"


def errors() -> str:
    """Return errors of each dtype and option on normally distributed data, d = 64 and 128."""
    points = [p for p in load("gradient_errors")["points"] if p["data"] == "normal"]
    return _worst(points, "option", ("q", "k", "v", "bias", "alibi_slopes", "sinks"))


def errors_of_data() -> str:
    """Return errors of each dtype and kind of data, the worst of all options and head dims."""
    return _worst(load("gradient_errors")["points"], "data", ORDER)


def judged() -> str:
    """Say how many gradients are within the rule, and list those that aren't."""
    rows, total = [], 0
    for point, name, one in _gradients(load("gradient_errors")["points"]):
        if "of_allowed_max" not in one:
            continue
        total += 1
        parts = one["of_allowed_max"], one["of_allowed_rms"]
        if not max(parts) <= 1 or np.isnan(parts).any():
            place = " ".join(str(point[key]) for key in ("dtype", "kernel", "option", "data"))
            cells = (f"{part:.2f}" for part in parts)
            rows.append([f"d{name}, {place}, d = {point['d']}", *cells])
    said = f"{total - len(rows)} of {total} gradients are within it."
    if not rows:
        return said
    header = ["the others", "max / allowed", "rms / allowed"]
    return f"{said}\n\n{markdown(header, rows)}"


def _gradients(points: Iterable[Point]) -> Iterator[tuple[Point, str, dict[str, float]]]:
    for point in points:
        for name, one in point["gradients"].items():
            yield point, name, one


def _worst(points: Iterable[Point], key: str, names: tuple[str, ...]) -> str:
    """Return a row for each dtype, kernel and value of `key`, the worst of each gradient there."""
    found: dict[tuple[str, str, str], dict[str, list[dict[str, float]]]] = {}
    for point, name, one in _gradients(points):
        place = point["dtype"], point["kernel"], point[key]
        found.setdefault(place, {}).setdefault(name, []).append(one)
    rows = [
        [f"{dtype} `{kernel}`", value, *(_cell(name, own.get(name, [])) for name in names)]
        for (dtype, kernel, value), own in found.items()
    ]
    return markdown(["", key, *(f"d{name}" for name in names)], rows)


def _cell(name: str, found: list[dict[str, float]]) -> str:
    """Return the largest error over the exact rms; of matrices also the ratios to unfused ones."""
    if not found:
        return ""
    # NumPy's maximum keeps NaN.
    relative = np.max([one["max_error"] / (one["exact_rms"] or 1) for one in found])
    if name not in ORDER:
        return f"{relative:.1e}"
    ratios = (np.max([one[f"{what}_ratio"] for one in found]) for what in ("max", "rms"))
    return f"{relative:.1e} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
