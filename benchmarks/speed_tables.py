"""Print the tables of the docs from benchmarks/results, as Markdown.

python benchmarks/speed_tables.py
"""

from __future__ import annotations

from typing import Any

import gradient_tables
from readme_table import load, markdown, measured

FLASH2 = "torch FA2"
HOST_CALLS = {
    "attention, out given": "`attention`, with `out=`",
    "attention, out allocated": "`attention`",
    "torch SDPA": "PyTorch's `scaled_dot_product_attention`",
}


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


def fastest() -> str:
    """Return TFLOP/s of ours and of every peer on the points of the papers, and the ratio."""
    results = load("compare_peers")
    names = list(results["points"][0]["candidates"])
    rows = []
    for point in results["points"]:
        heads = f", {point['heads']}/{point['kv_heads']} heads" * (
            point["heads"] != point["kv_heads"]
        )
        call = f"d = {point['d']}, n = {point['n']:,}{', causal' if point['causal'] else ''}{heads}"
        rates = [f"{point['candidates'][name]['tflops']:.0f}" for name in names]
        paused = f"{point['paused_ratio']:.2f}" if "paused_ratio" in point else ""
        rows.append([call, *rates, f"{point['ratio']:.2f}", paused])
    peers = [name.removeprefix("torch ") for name in names[1:]]
    return markdown(["bfloat16", "ours", *peers, "ours / best", "after pauses"], rows)


def growth() -> str:
    """Return milliseconds and memory, fused and unfused, for each length."""
    rows = []
    for point in load("cost_growth")["points"]:
        cells = [f"{point['n']:,}"]
        for name in ("ours", "unfused"):
            found = point["candidates"][name]
            if "seconds" in found:
                total = (found["array_bytes"] + found["extra_bytes"]) / 2**20
                cells += [f"{found['seconds'] * 1e3:,.2f}", f"{total:,.0f}"]
            else:
                cells += ["out of memory", ""]
        rows.append(cells)
    header = ["n", "ours, ms", "ours, MiB", "unfused, ms", "unfused, MiB"]
    return markdown(header, rows)


def options() -> str:
    """Return each option's cost over the plain call, and our speed over the best peer's."""
    return _of_options("time over the plain call's / speed over the best peer's", "cost")


def windows() -> str:
    """Return TFLOP/s of windows over those of the causal call; and how their time grows."""
    title = "TFLOP/s over the causal call's / speed over the best peer's"
    growth = load("time_options")["growth"]
    calls = ("window-left", "causal")
    rows = []
    for point in growth["points"]:
        window, causal = (point[call]["seconds"] for call in calls)
        row = [f"{point['n']:,}", f"{window * 1e3:.3f}", f"{window / point['n'] * 1e9:.2f}"]
        rows.append([*row, f"{causal * 1e3:,.3f}"])
    window, causal = (f"n^{growth['exponents'][call]:.2f}" for call in calls)
    rows.append(["grows as", window, "", causal])
    header = ["n", "window (1024, 0), ms", "ns a row", "causal, ms"]
    return f"{_of_options(title, 'of_causal')}\n\n{markdown(header, rows)}"


def _of_options(title: str, figure: str) -> str:
    """Return a row for each option, a column for each float16 point; windows have a figure more."""
    results = load("time_options")
    points = [point for point in results["points"] if point["dtype"] == "float16"]
    rows: dict[str, list[str]] = {}
    for column, point in enumerate(points):
        for word, found in point["options"].items():
            ours = found["candidates"][results["kernel"]]
            if word in ("full", "causal") or ("of_causal" in ours) != (figure == "of_causal"):
                continue
            row = rows.setdefault(found["text"], [""] * len(points))
            row[column] = f"{ours[figure]:.2f}"
            if "ratio" in found:
                row[column] += f" / {found['ratio']:.2f}"
    header = [title, *(f"d = {point['d']}, n = {point['n']:,}" for point in points)]
    return markdown(header, ([text, *cells] for text, cells in rows.items()))


def softmaxes() -> str:
    """Return the speed of both softmaxes over a copy's of the same bytes."""
    points = load("time_softmax")["points"]
    dtypes = list(dict.fromkeys(p["dtype"] for p in points))
    found = {(p["dtype"], p["n"]): p["candidates"] for p in points}
    rows = [
        [
            f"{n:,}",
            *(
                " / ".join(
                    f"{found[dtype, n][method]['of_copy']:.2f}"
                    for method in ("online", "three_pass")
                )
                for dtype in dtypes
            ),
        ]
        for n in dict.fromkeys(p["n"] for p in points)
    ]
    return markdown(["elements of a row, online / three passes", *dtypes], rows)


def traffic() -> str:
    """Return predicted, read and written megabytes and the L2 hit rate of every point."""
    rows = [
        [
            f"{point['what']}{', causal' if point['causal'] else ''}",
            point["dtype"],
            str(point["heads"]),
            f"{point['n']:,}",
            str(point["kernels"]),
            f"{point['predicted_bytes'] / 1e6:,.1f}",
            f"{point['read_bytes'] / 1e6:,.1f}",
            f"{point['written_bytes'] / 1e6:,.1f}",
            f"{point['counted_over_predicted']:.2f}",
            f"{point['l2_hit_rate']:.1%}",
        ]
        for point in load("traffic")["points"]
    ]
    header = ["what", "dtype", "heads", "n", "kernels", "predicted MB", "read MB"]
    return markdown([*header, "written MB", "counted / predicted", "L2 hits"], rows)


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


# What the docs call each table, and the files of results that it is made from.
TABLES = {
    "losses": (losses, ["time_attention", "time_peers"]),
    "fastest": (fastest, ["compare_peers"]),
    "peers": (peers, ["time_peers"]),
    "growth": (growth, ["cost_growth"]),
    "options": (options, ["time_options"]),
    "windows": (windows, ["time_options"]),
    "softmaxes": (softmaxes, ["time_softmax"]),
    "traffic": (traffic, ["traffic"]),
    "first_calls": (first_calls, ["first_call"]),
    "host_costs": (host_costs, ["time_host"]),
    "backward": (gradient_tables.speeds, ["time_backward"]),
    "gradient_errors": (gradient_tables.errors, ["gradient_errors"]),
    "gradient_errors_of_data": (gradient_tables.errors_of_data, ["gradient_errors"]),
    "gradients_judged": (gradient_tables.judged, ["gradient_errors"]),
}


def texts() -> dict[str, str]:
    """Return every table by its name, with where it was measured, if it was."""
    return {
        name: f"{table()}\n\n({'; '.join(dict.fromkeys(map(where, files)))})"
        if measured(*files)
        else "(Not measured yet.)"
        for name, (table, files) in TABLES.items()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        print(f"{name}\n\n{text}\n")
