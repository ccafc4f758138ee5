"""Draw the pictures of README.md and docs from the committed results.

    pip install -e '.[bench]'
    python benchmarks/make_pictures.py

Every picture names in its metadata the results that it shows, with their digests; a test compares
them, so that no picture shows results which have since been measured again. Results that aren't
there yet are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupy_flash.commands import bench_pictures
from cupy_flash.commands.bench_pictures import COLOURS
from picture_parts import common_legend, grouped_bars, new_figure, where
from pictures_memory import softmaxes, traffic

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"

OURS, OTHER, LIGHT_OURS, LIGHT_OTHER = COLOURS[0], COLOURS[1], "#7FB8D8", "#EFAE7F"
PEER_COLOURS = COLOURS[1:]
MASKS = {False: "full", True: "causal"}


@dataclass(frozen=True)
class Picture:
    """A picture, the results that it is drawn from, and what draws them."""

    name: str
    results: tuple[str, ...]
    figure: Callable[..., Any]


def digest(name: str) -> str:
    """Say which results these are."""
    return f"{name}.json sha256:{hashlib.sha256(path(name).read_bytes()).hexdigest()}"


def path(name: str) -> Path:
    return RESULTS / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path(name).read_text(encoding="utf-8"))
    return results


def beside_fa2(results: dict[str, Any]) -> Any:
    """Draw sm80 and PyTorch's FlashAttention-2 for each dtype, head dim, mask and length."""
    points = {(p["dtype"], p["d"], p["causal"], p["n"]): p["tflops"] for p in results["points"]}
    dtypes, dims, _, lengths = (list(dict.fromkeys(values)) for values in zip(*points, strict=True))
    figure = new_figure(
        10.5,
        6.2,
        "Forward of sm80 and of PyTorch's FlashAttention-2: 16,384 tokens, heads x d = 2,048",
        where(results),
    )
    axes = figure.subplots(2, len(dims), sharey=True)
    colours = {("ours", "float16"): OURS, ("ours", "bfloat16"): LIGHT_OURS}
    colours |= {("torch FA2", "float16"): OTHER, ("torch FA2", "bfloat16"): LIGHT_OTHER}
    for row, causal in zip(axes, MASKS, strict=True):
        for axis, d in zip(row, dims, strict=True):
            bars = {
                f"{'sm80' if who == 'ours' else 'FlashAttention-2'}, {dtype}": (
                    [points[dtype, d, causal, n][who] for n in lengths],
                    colours[who, dtype],
                )
                for dtype in dtypes
                for who in ("ours", "torch FA2")
            }
            grouped_bars(axis, [f"{n:,}" for n in lengths], bars)
            axis.set_title(f"d = {d}, {MASKS[causal]}", fontsize=10)
            axis.set_xlabel("rows and keys n")
        row[0].set_ylabel("TFLOP/s")
    common_legend(figure, axes[0][0])
    return figure


def ratio_to_fa2(*runs: dict[str, Any]) -> Any:
    """Draw our speed over FlashAttention-2's of every point, for each run's compiler."""
    figure = new_figure(
        10.5,
        4.2,
        "Speed of sm80 over PyTorch's FlashAttention-2: forward, float16, 16,384 tokens, "
        "heads x d = 2,048",
        where(*runs),
    )
    axis = figure.subplots()
    labels: list[str] = []
    styles = zip(runs, (OURS, COLOURS[4]), "os", (-0.12, 0.12), strict=False)
    for results, colour, marker, shift in styles:
        points = [p for p in results["points"] if p["dtype"] == "float16"]
        labels = [f"{p['n']:,}" for p in points]
        ratios = [p["tflops"]["ours"] / p["tflops"]["torch FA2"] for p in points]
        places = [number + shift for number in range(len(points))]
        name = f"NVRTC {results['machine']['nvrtc']}"
        axis.plot(places, ratios, marker, color=colour, label=name, markersize=6)
    axis.axhline(1, color="#444444", linewidth=1)
    axis.set_xticks(range(len(labels)), labels, fontsize=8)
    # Points come in groups of one head dim and mask.
    groups = [(p["d"], p["causal"]) for p in points]
    for first in (i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]):
        d, causal = groups[first]
        count = groups.count(groups[first])
        if first:
            axis.axvline(first - 0.5, color="#bbbbbb", linewidth=0.8)
        axis.text(
            first + (count - 1) / 2,
            1.02,
            f"d = {d}, {MASKS[causal]}",
            transform=axis.get_xaxis_transform(),
            ha="center",
            fontsize=9,
        )
    axis.set_xlabel("rows and keys n")
    axis.set_ylabel("speed over FlashAttention-2")
    axis.grid(axis="y", color="#dddddd")
    axis.set_axisbelow(True)
    common_legend(figure, axis)
    return figure


def beside_unfused(results: dict[str, Any]) -> Any:
    """Draw attention and unfused CuPy for each dtype and head dim, on a logarithmic axis."""
    points = {(p["dtype"], p["d"], p["causal"]): p["candidates"] for p in results["points"]}
    dtypes, dims, _ = (list(dict.fromkeys(values)) for values in zip(*points, strict=True))
    figure = new_figure(
        10.5,
        4.6,
        "Attention and unfused CuPy (matmul, softmax, matmul): forward, n = 4,096, "
        "heads x d = 1,024",
        where(results),
    )
    axes = figure.subplots(1, len(dtypes), sharey=True)
    candidates = (("auto", "cupy_flash"), ("unfused", "unfused CuPy"))
    shades = ((OURS, OTHER), (LIGHT_OURS, LIGHT_OTHER))
    for axis, dtype in zip(axes, dtypes, strict=True):
        bars = {
            f"{label}, {MASKS[causal]}": (
                [points[dtype, d, causal][name].get("tflops", 0.0) for d in dims],
                colours[number],
            )
            for causal, colours in zip(MASKS, shades, strict=True)
            for number, (name, label) in enumerate(candidates)
        }
        grouped_bars(axis, [str(d) for d in dims], bars)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        kernels = dict.fromkeys(points[dtype, d, False]["auto"]["kernel"] for d in dims)
        axis.set_title(f"{dtype} ({', '.join(kernels)})", fontsize=10)
        axis.set_xlabel("head dim d")
    axes[0].set_ylabel("TFLOP/s (causal counts half)")
    common_legend(figure, axes[0])
    return figure


def beside_peers(results: dict[str, Any]) -> Any:
    """Draw attention and every peer along the length for each head dim and mask."""
    points = [p for p in results["points"] if p["heads"] == p["kv_heads"]]
    dtype = points[0]["dtype"]
    points = [p for p in points if p["dtype"] == dtype]
    names = list(dict.fromkeys(name for p in points for name in p["candidates"]))
    dims = sorted({p["d"] for p in points})
    figure = new_figure(
        10.5,
        6.4,
        f"Forward, {dtype}, 16,384 tokens, heads x d = 2,048, candidates taking turns",
        where(results),
    )
    axes = figure.subplots(2, len(dims), sharex=True, sharey=True)
    for row, causal in zip(axes, MASKS, strict=True):
        for axis, d in zip(row, dims, strict=True):
            chosen = [p for p in points if (p["d"], p["causal"]) == (d, causal)]
            for number, name in enumerate(names):
                able = [p for p in chosen if "tflops" in p["candidates"].get(name, {})]
                axis.plot(
                    [p["n"] for p in able],
                    [p["candidates"][name]["tflops"] for p in able],
                    color=COLOURS[number % len(COLOURS)],
                    marker=bench_pictures.MARKERS[number % len(bench_pictures.MARKERS)],
                    markersize=4,
                    linewidth=2 if number == 0 else 1,
                    label="cupy_flash" if name == "auto" else name,
                )
            axis.set_xscale("log", base=2)
            axis.set_xticks([p["n"] for p in chosen], [f"{p['n']:,}" for p in chosen], rotation=45)
            axis.minorticks_off()
            axis.set_title(f"d = {d}, {MASKS[causal]}", fontsize=10)
            axis.grid(color="#dddddd")
        row[0].set_ylabel("TFLOP/s")
    # They share it, so it is set once all lines are there.
    axes[0][0].set_ylim(bottom=0)
    for axis in axes[1]:
        axis.set_xlabel("rows and keys n")
    common_legend(figure, axes[0][0])
    return figure


ALL = (
    Picture("sm80_and_fa2", ("time_peers",), beside_fa2),
    Picture("sm80_over_fa2", ("time_peers", "time_peers_cuda12"), ratio_to_fa2),
    Picture("fused_and_unfused", ("time_attention",), beside_unfused),
    Picture("peers", ("compare_peers",), beside_peers),
    Picture("growth", ("cost_growth",), bench_pictures.figure),
    Picture("length", ("bench_length",), bench_pictures.figure),
    Picture("traffic", ("traffic",), traffic),
    Picture("softmaxes", ("time_softmax",), softmaxes),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=PICTURES, help="default: docs/pictures")
    parser.add_argument("--format", choices=("svg", "png"), default="svg")
    args = parser.parse_args()
    import matplotlib

    # The same results give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "cupy_flash"
    args.folder.mkdir(parents=True, exist_ok=True)
    for picture in ALL:
        absent = [name for name in picture.results if not path(name).exists()]
        if absent:
            print(f"{picture.name}: no results {', '.join(absent)}")
            continue
        target = args.folder / f"{picture.name}.{args.format}"
        source = ", ".join(map(digest, picture.results))
        figure = picture.figure(*map(load, picture.results))
        figure.savefig(target, dpi=110, metadata=bench_pictures.metadata(target, Source=source))
        print(f"{target}: {target.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
