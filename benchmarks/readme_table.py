"""Print README.md's performance tables from benchmarks/results, as Markdown, or put them there.

python benchmarks/readme_table.py
python benchmarks/readme_table.py --write
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
# What 16-bit gradients, and others, are timed beside.
BASELINES = {"float16": "torch FA2", "bfloat16": "torch FA2"}
UNFUSED = "unfused"
# Of gradients' table, as of the forward pass'.
N = 4096


def load(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return results


def measured(*names: str) -> bool:
    """Whether there are results of these names."""
    return all((RESULTS / f"{name}.json").is_file() for name in names)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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


def beside(point: dict[str, Any], part: str = "backward") -> tuple[float, float | None]:
    """Return TFLOP/s of our gradients at a point, and of what they are timed beside, if it ran."""
    candidates = point["parts"][part]["candidates"]
    other = candidates.get(BASELINES.get(point["dtype"], UNFUSED), {})
    right = "tflops" in other and "wrong" not in other
    return candidates["auto"]["tflops"], other["tflops"] if right else None


def backward() -> str:
    """Return TFLOP/s of gradients and the ratio to what they are timed beside; "" unmeasured."""
    if not measured("time_backward"):
        return ""
    points = {
        (p["dtype"], p["causal"], p["d"]): beside(p)
        for p in load("time_backward")["points"]
        if p["n"] == N
    }
    dims = sorted({d for *_, d in points})
    rows = []
    for dtype, causal in sorted(dict.fromkeys(key[:2] for key in points), key=lambda key: key[1]):
        row = [f"{dtype}, causal" if causal else dtype]
        for d in dims:
            ours, other = points.get((dtype, causal, d), (None, None))
            ratio = f" ({ours / other:.2f})" if ours and other else ""
            row.append("" if ours is None else f"{ours:.1f}{ratio}")
        rows.append(row)
    header = (
        f"gradients, n = {N:,}: TFLOP/s (over FlashAttention-2's; 32 and 64 bits unfused CuPy's)"
    )
    return markdown([header, *(f"d = {d}" for d in dims)], rows)


# What README.md calls each table.
TABLES = {"forward": table, "backward": backward}


def with_tables(text: str) -> str:
    """Return a page with each table between its two comments."""
    for name, make in TABLES.items():
        begin, end = f"<!-- table: {name} -->\n", f"<!-- end of table: {name} -->"
        made = make()
        new = f"{begin}\n{made}\n\n{end}" if made else f"{begin}{end}"
        text, found = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=new: new, text, flags=re.DOTALL
        )
        if found != 1:
            raise ValueError(f"{begin.strip()} and its end are there {found} times, not once")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put the tables into README.md")
    if parser.parse_args().write:
        README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(*(made for make in TABLES.values() if (made := make())), sep="\n\n")


if __name__ == "__main__":
    main()
