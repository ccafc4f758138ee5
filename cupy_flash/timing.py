"""Time calls that take turns: from CUDA graphs, one after another, or by the host's clock.

A *sample* is a function that measures once and returns the seconds of one call. `replayed`,
`called` and `waited` make samples of calls; `interleaved` lets the samples of all candidates take
turns. Comparisons hold only within one such run: a GPU at its power limit gives the next candidate
the clock that the last one left it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from cupy_flash.device import import_cupy

Call = Callable[[], Any]
Sample = Callable[[], float]

# A sample should last this long: the resolution of an event is 0.5 us.
SAMPLE_SECONDS = 2e-3
MOST_CALLS = 100


def replayed(call: Call, stream: Any, calls: int) -> Sample:
    """Sample a CUDA graph of some calls between two events, so that the host's cost doesn't count.

    Parameters
    ----------
    call : callable
        Works on the current stream and neither allocates nor waits. It is called once before the
        capture, so that it may compile.
    stream : cupy.cuda.Stream
        Not the default stream, which can't be captured.
    calls : int
        In one graph.

    Returns
    -------
    callable
        The sample.
    """
    with stream:
        call()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(calls):
            call()
        graph = stream.end_capture()
    return between_events(lambda: graph.launch(stream), stream, calls)


def called(call: Call, stream: Any, calls: int) -> Sample:
    """Sample some calls in a row between two events; the host's cost counts where it is larger.

    Parameters and result as for `replayed`, but `call` may do anything.
    """

    def run() -> None:
        for _ in range(calls):
            call()

    return between_events(run, stream, calls)


def between_events(run: Callable[[], Any], stream: Any, calls: int) -> Sample:
    """Sample what makes `calls` calls on a stream, the current one while it runs."""
    cuda = import_cupy().cuda

    def sample() -> float:
        start, stop = cuda.Event(), cuda.Event()
        with stream:
            start.record()
            run()
            stop.record()
        stop.synchronize()
        milliseconds: float = cuda.get_elapsed_time(start, stop)
        return milliseconds * 1e-3 / calls

    return sample


def waited(call: Call, calls: int, wait: Callable[[Any], Any] = lambda result: None) -> Sample:
    """Sample some calls by the host's clock, until `wait` returns from the last result."""

    def sample() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            result = call()
        wait(result)
        return (time.perf_counter() - begin) / calls

    return sample


def calls_that_fill(seconds: float, sample_seconds: float = SAMPLE_SECONDS) -> int:
    """Return how many calls of so many seconds fill a sample, at most `MOST_CALLS`."""
    return min(max(math.ceil(sample_seconds / max(seconds, 1e-9)), 1), MOST_CALLS)


def interleaved(
    samples: Mapping[str, Sample],
    *,
    rounds: int = 9,
    pause: float = 0.0,
    warm_up: float = 0.2,
    most_seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Let candidates take turns, each once in every round.

    Parameters
    ----------
    samples : mapping of str to callable
    rounds : int, optional
        How many count. Default 9.
    pause : float, optional
        Seconds of idling before every sample. Default 0: sustained load.
    warm_up : float, optional
        Rounds that don't count, at least one, go on for so many seconds.
    most_seconds : float, optional
        No round that counts begins later than this, but one is always made.

    Returns
    -------
    dict of str to list of float
        Seconds per call, in the order of the rounds.
    """
    begin = time.perf_counter()
    while True:
        for sample in samples.values():
            sample()
        if time.perf_counter() - begin >= warm_up:
            break
    times: dict[str, list[float]] = {name: [] for name in samples}
    begin = time.perf_counter()
    for done in range(rounds):
        if done and time.perf_counter() - begin > most_seconds:
            break
        for name, sample in samples.items():
            if pause:
                time.sleep(pause)
            times[name].append(sample())
    return times
