"""Measure one problem of a sweep: errors first, then time and memory, beside unfused attention."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from cupy_flash import timing
from cupy_flash.api import attention
from cupy_flash.arrays import to_dtype
from cupy_flash.commands import measure, sampled
from cupy_flash.commands.bench_sweeps import Point
from cupy_flash.commands.machine import one_line
from cupy_flash.explanation import explain
from cupy_flash.unfused import standard_attention

OURS, UNFUSED = "ours", "unfused"
# So many different numbers are drawn; longer arrays repeat them. Odd, so that rows differ.
DRAWN = 2**22 + 3
# Rounds end early for calls that take seconds.
MOST_SECONDS = 10.0
# Rows compared with exact ones: computing those of a million keys takes the host seconds.
CHECKED_ROWS = 8
CHECKED_ELSEWHERE = 2**15


class Place(Protocol):
    """Where a sweep is measured."""

    def samples(
        self, calls: Mapping[str, timing.Call], replayable: tuple[str, ...]
    ) -> dict[str, timing.Sample]:
        """Make samples of calls; those named in `replayable` need no memory of their own."""

    def array(self, x: Any) -> Any:
        """Copy a NumPy array there."""

    def host(self, x: Any) -> Any:
        """Copy an array from there to NumPy."""

    def extra_bytes(self, call: timing.Call) -> int:
        """Return how many bytes a call needs at most, besides its arguments and result."""

    def free(self) -> None:
        """Give memory that nothing uses back."""


class Gpu(measure.Gpu):
    """The current GPU."""

    def samples(
        self, calls: Mapping[str, timing.Call], replayable: tuple[str, ...]
    ) -> dict[str, timing.Sample]:
        """Replay graphs of ours; CuPy can't capture cuBLAS, so unfused calls follow each other."""
        stream = self.cupy.cuda.Stream(non_blocking=True)
        # What the default stream has written is read on this one.
        self.cupy.cuda.Device().synchronize()
        samples = {}
        for name, call in calls.items():
            count = timing.calls_that_fill(timing.called(call, stream, 1)())
            make = timing.replayed if name in replayable else timing.called
            samples[name] = make(call, stream, count)
        return samples

    def free(self) -> None:
        """Empty CuPy's memory pool."""
        self.cupy.get_default_memory_pool().free_all_blocks()


class Cpu(measure.Cpu):
    """NumPy arrays."""

    def samples(
        self, calls: Mapping[str, timing.Call], replayable: tuple[str, ...]
    ) -> dict[str, timing.Sample]:
        """Time calls by the host's clock."""
        return {
            name: timing.waited(call, timing.calls_that_fill(timing.waited(call, 1)()))
            for name, call in calls.items()
        }

    def free(self) -> None:
        """Do nothing: NumPy keeps no memory."""


def normal(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Draw a normally distributed NumPy array that repeats itself after `DRAWN` numbers."""
    size = int(np.prod(shape))
    drawn = np.random.default_rng(seed).standard_normal(min(size, DRAWN), np.float32)
    return np.resize(drawn.astype(to_dtype(dtype)), shape)


def measure_point(point: Point, place: Place, rounds: int, unfused: bool) -> dict[str, Any]:
    """Measure every candidate on one problem.

    Parameters
    ----------
    point : Point
    place : Place
    rounds : int
        Samples of each candidate; their median counts.
    unfused : bool
        Measure unfused attention too.

    Returns
    -------
    dict
        The fields of `point` and "candidates": for each one "seconds" (the median), "least",
        "most", "rounds", "array_bytes" (q, k, v and out), "extra_bytes" and the errors; or
        "not_possible", why it can't run.
    """
    names = (OURS, UNFUSED) if unfused else (OURS,)
    try:
        candidates = _measure(point, place, rounds, names)
    except MemoryError as error:
        candidates = {name: {"not_possible": one_line(error)} for name in names}
    place.free()
    return {**point.as_dict(), "candidates": candidates}


def _measure(
    point: Point, place: Place, rounds: int, names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    keys = (point.batch, point.kv_heads, point.n, point.d)
    shapes = ((point.batch, point.heads, point.m, point.d), keys, keys)
    q, k, v = (place.array(normal(shape, point.dtype, seed)) for seed, shape in enumerate(shapes))
    out = place.array(np.zeros(shapes[0], to_dtype(point.dtype)))
    arrays = sum(int(x.nbytes) for x in (q, k, v, out))
    calls: dict[str, timing.Call] = {
        OURS: lambda: attention(q, k, v, causal=point.causal, out=out),
        UNFUSED: lambda: standard_attention(q, k, v, causal=point.causal),
    }
    allocating = {**calls, OURS: lambda: attention(q, k, v, causal=point.causal)}
    family = explain(q, k, v, causal=point.causal).kernel
    exact = sampled.exact_rows(q, k, v, point.causal, _checked(point), place.host)
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        described = {"kernel": family} if name == OURS else {}
        found[name] = described | _tried(
            calls[name], exact, family if name == OURS else None, place
        )
    able = {name: calls[name] for name in names if "not_possible" not in found[name]}
    times = timing.interleaved(
        place.samples(able, (OURS,)), rounds=rounds, most_seconds=MOST_SECONDS
    )
    for name, seconds in times.items():
        found[name] |= {
            "seconds": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "rounds": len(seconds),
            "array_bytes": arrays,
            "extra_bytes": place.extra_bytes(allocating[name]),
        }
    return found


def _tried(
    call: Callable[[], Any], exact: list[sampled.Rows], family: str | None, place: Place
) -> dict[str, Any]:
    """Call once: the errors, or for unfused attention why it can't be called."""
    try:
        return dict(sampled.errors(call(), exact, family, place.host))
    except Exception as error:
        # Ours may only run out of memory; a failure of its kernel must be seen.
        if family is not None and not isinstance(error, MemoryError):
            raise
        return {"not_possible": one_line(error)}


def _checked(point: Point) -> list[tuple[int, int, int]]:
    chosen = sampled.places(point.m, CHECKED_ROWS)
    return chosen if point.n <= CHECKED_ELSEWHERE else chosen[-1:]


def place(on_gpu: bool) -> Place:
    """Return the GPU or NumPy."""
    return Gpu() if on_gpu else Cpu()
