"""What follows from a sweep's measured times: rates, shares of the limits, lines to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cupy_flash.commands.bench_measure import OURS
from cupy_flash.commands.roofline import default_unit
from cupy_flash.gpus import Gpu, gpu_of_driver
from cupy_flash.roofline import Cost, bound, flash_attention, standard_attention

# The version of the layout of the JSON files.
SCHEMA = 1
# Keys of a tile for the count of rescaling.
BLOCK_N = 128

Results = Mapping[str, Any]


def check(results: Any) -> str | None:
    """Say why something read from a JSON file isn't a sweep of this version; None if it is."""
    if not isinstance(results, dict) or "sweep" not in results:
        return "it isn't what `python -m cupy_flash bench --json` writes"
    if results.get("schema") != SCHEMA:
        return f"its schema is {results.get('schema')!r}; this version reads {SCHEMA}"
    return None


def cost(point: Results, candidate: str) -> Cost:
    """Count FLOPs over visible pairs and the least traffic of a candidate's algorithm."""
    sizes = {name: point[name] for name in ("dtype", "batch", "heads", "kv_heads", "causal")}
    shape = (point["m"], point["n"], point["d"])
    if candidate == OURS:
        return flash_attention(*shape, **sizes, block_n=BLOCK_N)
    return standard_attention(*shape, **sizes)


def tflops(point: Results, candidate: str) -> float:
    """Return 1e12 FLOPs of the two products, over visible pairs, per measured second."""
    seconds: float = point["candidates"][candidate]["seconds"]
    return cost(point, candidate).products / seconds / 1e12


def total_bytes(point: Results, candidate: str) -> int:
    """Return the bytes of q, k, v, out and of all that the candidate allocates besides."""
    found = point["candidates"][candidate]
    return int(found["array_bytes"]) + int(found["extra_bytes"])


def known_gpu(results: Results) -> Gpu | None:
    """Return the GPU that a sweep ran on, if its limits are known."""
    return gpu_of_driver(results["machine"].get("gpu", ""))


def share_of_limit(point: Results, candidate: str, gpu: Gpu) -> float:
    """Return the least time that the roofline allows, over the measured time."""
    unit = default_unit(gpu, point["dtype"])
    least = bound(cost(point, candidate), gpu, point["dtype"], unit).seconds
    return least / float(point["candidates"][candidate]["seconds"])


@dataclass(frozen=True)
class Line:
    """A line of a plot: one candidate along the sweep's size."""

    label: str
    candidate: str
    x: tuple[float, ...]
    y: tuple[float, ...]


def lines(
    results: Results,
    y: Callable[[Results, str], float],
    x: Callable[[Results, str], float] | None = None,
) -> list[Line]:
    """Collect the lines of a sweep; points that a candidate can't compute are left out.

    Parameters
    ----------
    results : mapping
        As `bench --json` writes them.
    y, x : callable
        Of a point and a candidate's name. Default of x: the size that the sweep varies.

    Returns
    -------
    list of Line
        One for each candidate and each combination of what else differs between the points.
    """
    varied: str = results["x"]
    points = results["points"]
    names = [name for name in ("dtype", "d", "causal") if name != varied]
    differing = [name for name in names if len({point[name] for point in points}) > 1]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for point, candidate in measured(points):
        words = [candidate, *(_word(name, point[name]) for name in differing)]
        at = point[varied] if x is None else x(point, candidate)
        found.setdefault((candidate, " ".join(words)), []).append((at, y(point, candidate)))
    return [
        Line(label, candidate, *zip(*pairs, strict=True))
        for (candidate, label), pairs in found.items()
    ]


def measured(points: list[Results]) -> Iterator[tuple[Results, str]]:
    """Iterate over points and the names of the candidates that have a time."""
    for point in points:
        for candidate, found in point["candidates"].items():
            if "seconds" in found:
                yield point, candidate


def _word(name: str, value: Any) -> str:
    if name == "causal":
        return "causal" if value else "full"
    return f"d={value}" if name == "d" else str(value)


def title(results: Results) -> str:
    """Say what was measured, where, when and with which versions, in one line."""
    machine = results["machine"]
    where = machine.get("gpu") or f"NumPy path on {machine['processor']}"
    versions = [
        f"{label} {machine[name]}"
        for name, label in (("cupy", "CuPy"), ("nvrtc", "NVRTC"), ("numpy", "NumPy"))
        if name in machine
    ]
    return ", ".join(
        [where, f"cupy_flash {machine['cupy_flash']}", *versions, machine["date"].split()[0]]
    )
