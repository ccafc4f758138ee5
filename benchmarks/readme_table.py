"""Print README.md's performance table from benchmarks/results, as Markdown.

python benchmarks/readme_table.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def load(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return results


def table() -> str:
    """Return TFLOP/s of ours and of unfused CuPy for each dtype and head dim."""
    results = load("time_attention")
    points = {(p["dtype"], p["d"], p["causal"]): p["candidates"] for p in results["points"]}
    dims = sorted({d for _, d, _ in points})
    lines = [
        "| TFLOP/s, ours / unfused CuPy | " + " | ".join(f"d = {d}" for d in dims) + " |",
        "|---|" + "---|" * len(dims),
    ]
    for causal in (False, True):
        for dtype in dict.fromkeys(dtype for dtype, _, _ in points):
            cells = []
            for d in dims:
                found = points[dtype, d, causal]
                ours, unfused = found["auto"]["tflops"], found["unfused"]["tflops"]
                cells.append(f"{ours:.1f} / {unfused:.1f}")
            name = f"{dtype}, causal" if causal else dtype
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
