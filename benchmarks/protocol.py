"""How the candidates of a case are compared: errors first, then taking turns, then after pauses.

An H200 is limited by its power: what runs without a break runs at a lower clock than a single call
after a pause. So there are two figures, and a comparison holds within one of them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cupy

from cupy_flash import timing
from cupy_flash.commands import sampled
from cupy_flash.commands.machine import one_line
from peers import Arrays, Candidate, Case, Ours, make_arrays

# A candidate whose error is so many times that of ours computes something else.
WRONG = 10
CLOCK = "SM clock"
Key = TypeVar("Key", bound=Hashable)
_CLOCK_SOURCE = """
extern "C" __global__ void sm_clock(double* mhz) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    const long long first = clock64();
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < 100000);
    *mhz = (clock64() - first) * 1e3 / (now - begin);
}
"""


@dataclass(frozen=True)
class Protocol:
    """How often and how long.

    Attributes
    ----------
    rounds : int
        Samples of each candidate; their median counts.
    calls : int or None
        Calls in a sample; None: as many as fill 2 ms, at most 100.
    pause : float
        Seconds before each of the single calls of the second figure; 0: no such figure.
    """

    rounds: int = 9
    calls: int | None = None
    pause: float = 0.0


@dataclass(frozen=True)
class Entry:
    """A candidate on one case: what takes turns with other entries.

    `exact` is what its result is compared with, here some rows as `sampled.exact_rows` has them.
    """

    candidate: Candidate
    case: Case
    arrays: Arrays
    exact: Any

    def errors(self, call: Callable[[], Any]) -> dict[str, float]:
        """Call once; the errors of what came, "max_error" among them."""
        # Else a candidate that writes nothing would be judged by what another one left.
        spoil(self.arrays.out)
        result = self.candidate.once(call)
        family = self.candidate.family(self.case, self.arrays)
        return sampled.errors(result, self.exact, family, self.candidate.to_host)


def spoil(x: Any) -> None:
    """Set all bits, which is NaN in every dtype."""
    x.view(f"int{8 * x.itemsize}").fill(-1)


def measure(case: Case, candidates: Sequence[Candidate], protocol: Protocol) -> dict[str, Any]:
    """Compare candidates on one case.

    Returns
    -------
    dict
        The fields of the case, "sm_clock_mhz", and "candidates": for each one its errors, "seconds"
        (the median), "least", "most", "tflops", "calls", with pauses also "paused_seconds" and
        "paused_tflops"; or "not_possible", why it can't run.
    """
    arrays = make_arrays(case)
    exact = sampled.exact_rows(
        arrays.q, arrays.k, arrays.v, case.causal, sampled.places(case.n), cupy.asnumpy
    )
    entries = {c.name: Entry(c, case, arrays, exact) for c in candidates}
    found, clock = compare(entries, protocol)
    judge(found)
    return {**dataclasses.asdict(case), "sm_clock_mhz": clock, "candidates": found}


def compare(
    entries: Mapping[Key, Entry], protocol: Protocol
) -> tuple[dict[Key, dict[str, Any]], float]:
    """Check entries one after another, then let those that can run take turns.

    Returns
    -------
    found : dict
        What `measure` says of a candidate, for each entry.
    clock : float
        The median clock in MHz.
    """
    found: dict[Key, dict[str, Any]] = {}
    calls: dict[Key, Callable[[], Any]] = {}
    for key, entry in entries.items():
        candidate, case, arrays = entry.candidate, entry.case, entry.arrays
        why = candidate.why_not(case)
        if why is not None:
            found[key] = {"not_possible": why}
            continue
        try:
            call = candidate.call(case, arrays)
            errors = entry.errors(call)
        except Exception as error:
            # What a peer can't do is a result; a failure of ours must be seen.
            if isinstance(candidate, Ours):
                raise
            found[key] = {"not_possible": one_line(error)}
            continue
        calls[key] = call
        found[key] = candidate.describe(case, arrays) | errors
    able = {key: entry for key, entry in entries.items() if key in calls}
    return found, _time(able, calls, protocol, found)


def _time(
    entries: Mapping[Key, Entry],
    calls: Mapping[Key, Callable[[], Any]],
    protocol: Protocol,
    found: dict[Key, dict[str, Any]],
) -> float:
    """Add the times to what was found; the median clock in MHz."""
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    samples = {}
    for key, entry in entries.items():
        candidate, call = entry.candidate, calls[key]
        count = protocol.calls or timing.calls_that_fill(candidate.eager(call, stream, 1)())
        samples[key] = _sample(candidate, call, stream, count, found[key])
        found[key]["calls"] = count
    clocked = {**samples, CLOCK: _clock(stream)}
    times = timing.interleaved(clocked, rounds=protocol.rounds)
    clock = statistics.median(times.pop(CLOCK))
    for key, seconds in times.items():
        median = statistics.median(seconds)
        found[key] |= {"seconds": median, "least": min(seconds), "most": max(seconds)}
        found[key]["tflops"] = entries[key].case.flops / median / 1e12
    if protocol.pause:
        single = {
            key: _sample(entry.candidate, calls[key], stream, 1, found[key])
            for key, entry in entries.items()
        }
        paused = timing.interleaved(single, rounds=protocol.rounds, pause=protocol.pause)
        for key, seconds in paused.items():
            median = statistics.median(seconds)
            tflops = entries[key].case.flops / median / 1e12
            found[key] |= {"paused_seconds": median, "paused_tflops": tflops}
    return clock


def _sample(
    candidate: Candidate,
    call: Callable[[], Any],
    stream: Any,
    count: int,
    found: dict[str, Any],
) -> timing.Sample:
    """Replay a graph; a peer that can't be captured is called, and the result says why."""
    try:
        return candidate.sample(call, stream, count)
    except RuntimeError as error:
        if isinstance(candidate, Ours):
            raise
        found["not_captured"] = one_line(error)
        return candidate.eager(call, stream, count)


def _clock(stream: Any) -> timing.Sample:
    """Sample the clock of a multiprocessor in MHz, right after what ran before."""
    kernel = cupy.RawKernel(_CLOCK_SOURCE, "sm_clock")
    mhz = cupy.empty(1)

    def sample() -> float:
        with stream:
            kernel((1,), (1,), (mhz,))
            return float(mhz.get(stream=stream)[0])

    return sample


def judge(found: Mapping[Any, dict[str, Any]]) -> None:
    """Mark who computes something else than ours, whose speed then says nothing."""
    ours = next((f["max_error"] for f in found.values() if "kernel" in f), None)
    if ours is None:
        return
    for one in found.values():
        # Written so that NaN is wrong.
        if "max_error" in one and not one["max_error"] <= WRONG * ours:
            one["wrong"] = True


def best_peer(point: dict[str, Any], peers: Sequence[str], figure: str = "tflops") -> str | None:
    """Return the name of the fastest peer whose result is right; None without one."""
    able = {
        name: point["candidates"][name][figure]
        for name in peers
        if figure in point["candidates"].get(name, {})
        and not point["candidates"][name].get("wrong")
    }
    return max(able, key=lambda name: able[name]) if able else None
