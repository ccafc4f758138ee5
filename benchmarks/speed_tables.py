"""Print the tables of docs/speed.md from benchmarks/results, as Markdown.

python benchmarks/speed_tables.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from readme_table import load

FLASH2 = "torch FA2"
HOST_CALLS = {
    "attention, out given": "`attention`, with `out=`",
    "attention, out allocated": "`attention`",
    "torch SDPA": "PyTorch's `scaled_dot_product_attention`",
}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def where(name: str) -> str:
    """Say on what a file of results was measured."""
    machine = load(name)["machine"]
    date = machine["date"].split()[0]
    return f"{machine['gpu']}, {date}, CuPy {machine['cupy']}, NVRTC {machine['nvrtc']}"


def losses() -> str:
    """Return every measured point at which something else is faster, the worst first."""
    found: list[tuple[float, list[str]]] = []

    def add(point: dict[str, Any], ours: float, other: str, theirs: float) -> None:
        if ours < theirs:
            causal = ", causal" if point["causal"] else ""
            call = f"{point['dtype']}, d = {point['d']}, n = {point['n']:,}{causal}"
            ratio = ours / theirs
            found.append((ratio, [call, other, f"{ours:.1f}", f"{theirs:.1f}", f"{ratio:.2f}"]))

    for point in load("time_attention")["points"]:
        ours, theirs = (point["candidates"][name]["tflops"] for name in ("auto", "unfused"))
        add(point, ours, "unfused CuPy", theirs)
    for point in load("time_peers")["points"]:
        rates = point["tflops"]
        add(point, rates["ours"], "FlashAttention-2", rates[FLASH2])
    rows = [row for _, row in sorted(found)]
    return markdown(["call", "faster", "ours, TFLOP/s", "its TFLOP/s", "ours / its"], rows)


def peers() -> str:
    """Return TFLOP/s of ours and of PyTorch's FlashAttention-2, for each sequence length."""
    points = load("time_peers")["points"]
    rates = {(p["dtype"], p["d"], p["causal"], p["n"]): p["tflops"] for p in points}
    lengths = sorted({n for *_, n in rates})
    rows = []
    for dtype, d, causal in dict.fromkeys(key[:3] for key in rates):
        found = [rates[dtype, d, causal, n] for n in lengths]
        name = f"{dtype}, d = {d}{', causal' if causal else ''}"
        rows.append([name, *(f"{rate['ours']:.0f} / {rate[FLASH2]:.0f}" for rate in found)])
    header = ["TFLOP/s, ours / FlashAttention-2", *(f"n = {n:,}" for n in lengths)]
    return markdown(header, rows)


def first_calls() -> str:
    """Return the seconds of first calls: slowest and fastest kernel of each family."""
    calls = load("first_call")["first_calls"]

    def seconds(family: str, cache: str) -> str:
        found = [call[cache]["first"] for call in calls if call["family"] == family]
        return f"{min(found):.2f} to {max(found):.2f}"

    families = dict.fromkeys(call["family"] for call in calls)
    rows = [
        [f"`{name}`", *(seconds(name, cache) for cache in ("cold", "warm"))] for name in families
    ]
    return markdown(["first call, s", "compiled", "found in CuPy's cache on disk"], rows)


def host_costs() -> str:
    """Return the host's microseconds of warm calls."""
    results = load("time_host")
    micro = results["microseconds"]
    rows = [
        [text, *(f"{calls[name]['host_median']:.1f}" for calls in micro.values())]
        for name, text in HOST_CALLS.items()
    ]
    return markdown(["warm call, us of the host", *micro], rows)


# What docs/speed.md calls each table, and the files of results that it is made from.
TABLES = {
    "losses": (losses, ["time_attention", "time_peers"]),
    "peers": (peers, ["time_peers"]),
    "first_calls": (first_calls, ["first_call"]),
    "host_costs": (host_costs, ["time_host"]),
}


def texts() -> dict[str, str]:
    """Return every table by its name, with where it was measured."""
    return {
        name: f"{table()}\n\n({'; '.join(dict.fromkeys(map(where, files)))})"
        for name, (table, files) in TABLES.items()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        print(f"{name}\n\n{text}\n")
