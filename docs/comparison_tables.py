"""The tables of comparison.md, made from the committed results."""

from __future__ import annotations

from typing import Any

from readme_table import N, load, markdown
from speed_tables import where

NAMES = {"torch math": "MATH", "torch efficient": "EFFICIENT", "unfused": "unfused CuPy"}


def best(candidates: dict[str, Any]) -> tuple[str, float]:
    """Return the fastest of the others whose results are right, and its TFLOP/s."""
    others = {name: x for name, x in candidates.items() if name != "auto" and "wrong" not in x}
    rates = {name: x["tflops"] for name, x in others.items() if "tflops" in x}
    name = max(rates, key=rates.__getitem__)
    return name, rates[name]


def cells(candidates: dict[str, Any]) -> list[str]:
    """Return ours, the best other and the ratio."""
    ours = candidates["auto"]["tflops"]
    name, theirs = best(candidates)
    name = NAMES.get(name, name.removeprefix("torch "))
    return [f"{ours:.1f}", f"{name}, {theirs:.1f}", f"{ours / theirs:.2f}"]


def sixteen_bits() -> str:
    """Return bfloat16's results beside the fastest of cuDNN and FlashAttention-2, -3, -4."""
    results = load("compare_peers")["points"]
    points = [p for p in results if p["n"] == N and p["heads"] == p["kv_heads"]]
    rows = [[f"d = {p['d']}{', causal' * p['causal']}", *cells(p["candidates"])] for p in points]
    header = ["bfloat16, TFLOP/s", "ours", "the fastest other", "ours / its"]
    return f"{markdown(header, rows)}\n\n({where('compare_peers')})"


def wide() -> str:
    """Return float32 and float64, both passes, beside PyTorch's attention and unfused CuPy."""
    rows = []
    for point in load("time_backward")["points"]:
        if point["n"] != N or point["dtype"] == "bfloat16":
            continue
        call = f"{point['dtype']}, d = {point['d']}{', causal' * point['causal']}"
        parts = (point["parts"][part]["candidates"] for part in ("forward", "backward"))
        rows.append([call, *(cell for part in parts for cell in cells(part))])
    header = ["TFLOP/s", "results", "the fastest other", "ours / its"]
    header += ["gradients", *header[2:]]
    return f"{markdown(header, rows)}\n\n({where('time_backward')})"


def texts() -> dict[str, str]:
    """Return every table by its name."""
    return {"sixteen_bits": sixteen_bits(), "wide": wide()}
