"""A sweep as a table, and how its amounts are written."""

from __future__ import annotations

from typing import Any

from cupy_flash.commands.bench_measure import OURS
from cupy_flash.commands.bench_results import Results, known_gpu, share_of_limit, tflops
from cupy_flash.commands.table import aligned

_HEADER = ("dtype", "batch", "heads", "m", "n", "d", "mask", "", "time", "spread")
_FIGURES = ("TFLOP/s", "of limit", "memory", "max error", "error/bound")


def table(results: Results) -> list[str]:
    """Return the lines of the table and of what it means."""
    gpu = known_gpu(results)
    rows: list[tuple[str, ...]] = [(*_HEADER, *_FIGURES)]
    reasons: dict[str, None] = {}
    for point in results["points"]:
        for candidate, found in point["candidates"].items():
            label = f"{candidate} ({found['kernel']})" if "kernel" in found else candidate
            row = [*_problem(point), label]
            if "seconds" not in found:
                rows.append((*row, "not possible", *["-"] * (len(_FIGURES) + 1)))
                reasons.setdefault(f"{candidate}: {found['not_possible']}")
                continue
            share = "-" if gpu is None else f"{share_of_limit(point, candidate, gpu):.0%}"
            ratio = f"{found['error_over_bound']:.3f}" if candidate == OURS else "-"
            rows.append(
                (
                    *row,
                    time(found["seconds"]),
                    f"{(found['most'] - found['least']) / found['seconds']:.0%}",
                    f"{tflops(point, candidate):.3g}",
                    share,
                    memory(found["extra_bytes"]),
                    f"{found['max_error']:.1e}",
                    ratio,
                )
            )
    return [*aligned(rows), *(f"not possible, {reason}" for reason in reasons)]


def legend(results: Results) -> list[str]:
    """Explain the columns."""
    rounds = max(
        (found.get("rounds", 0) for p in results["points"] for found in p["candidates"].values()),
        default=0,
    )
    gpu = known_gpu(results)
    limit = (
        "no limits are known for this machine"
        if gpu is None
        else f"least time by the roofline of {gpu.name} with measured ceilings / time"
    )
    return [
        f"time: median of up to {rounds} samples, candidates taking turns; spread: (most - least) "
        "/ median.",
        "TFLOP/s: the two products over visible pairs.",
        f"of limit: {limit}.",
        "memory: allocated besides q, k, v and the result.",
        "max error: of sampled rows against exact attention; a right kernel has error/bound <= 1.",
    ]


def _problem(point: Results) -> list[str]:
    heads, kv_heads = point["heads"], point["kv_heads"]
    return [
        point["dtype"],
        str(point["batch"]),
        f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}",
        *(str(point[name]) for name in ("m", "n", "d")),
        "causal" if point["causal"] else "full",
    ]


def time(seconds: float) -> str:
    """Write a time with its unit."""
    return _with_unit(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)), ".2f")


def memory(size: float) -> str:
    """Write an amount of memory with its unit."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
    return _with_unit(size, units, ".1f" if size >= 2**10 else ".0f")


def _with_unit(value: float, units: Any, form: str) -> str:
    unit, factor = next((u for u in units if value >= u[1]), units[-1])
    return f"{value / factor:{form}} {unit}"
