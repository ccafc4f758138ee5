"""Samples divide by the calls they made, and candidates take turns."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from cupy_flash import timing


class FakeStream(contextlib.AbstractContextManager):
    """Records what happens on a stream; a graph replays what was called while capturing."""

    def __init__(self):
        self.log, self.capturing = [], False

    def __exit__(self, *_):
        pass

    def call(self):
        self.log.append("captured" if self.capturing else "called")

    def synchronize(self):
        self.log.append("synchronized")

    def begin_capture(self):
        self.capturing = True

    def end_capture(self):
        self.capturing = False
        return SimpleNamespace(launch=lambda stream: self.log.append("replayed"))


@pytest.fixture
def stream(monkeypatch):
    stream = FakeStream()

    class Event:
        def record(self):
            stream.log.append("event")

        def synchronize(self):
            pass

    cuda = SimpleNamespace(Event=Event, get_elapsed_time=lambda start, stop: 6.0)
    monkeypatch.setattr(timing, "import_cupy", lambda: SimpleNamespace(cuda=cuda))
    return stream


def test_a_graph_is_captured_after_a_call_and_replayed_between_events(stream):
    sample = timing.replayed(stream.call, stream, 3)
    assert stream.log == ["called", "synchronized", *["captured"] * 3]
    stream.log.clear()
    assert sample() == pytest.approx(2e-3)
    assert stream.log == ["event", "replayed", "event"]


def test_calls_in_a_row_lie_between_events(stream):
    assert timing.called(stream.call, stream, 4)() == pytest.approx(1.5e-3)
    assert stream.log == ["event", *["called"] * 4, "event"]


def test_the_host_waits_for_the_last_result(monkeypatch):
    now, results, waited = [0.0], iter(range(5)), []

    def call():
        now[0] += 1
        return next(results)

    def wait(result):
        now[0] += 5
        waited.append(result)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    assert timing.waited(call, 5, wait)() == pytest.approx(2.0)
    assert waited == [4]


def test_a_sample_lasts_long_enough():
    assert [timing.calls_that_fill(s) for s in (1.0, 1e-3, 0.9e-3, 1e-9, 0)] == [1, 2, 3, 100, 100]


def test_candidates_take_turns(monkeypatch):
    now, log = [0.0], []

    def sample(name, seconds):
        def run():
            log.append(name)
            now[0] += seconds
            return seconds

        return run

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: log.append(seconds))
    samples = {"a": sample("a", 1.0), "b": sample("b", 2.0)}
    assert timing.interleaved(samples, rounds=2, pause=0.5) == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    # One round warms up.
    assert log == ["a", "b", *[0.5, "a", 0.5, "b"] * 2]
    log.clear()
    times = timing.interleaved(samples, rounds=9, warm_up=5.0, most_seconds=5.0)
    assert len(times["a"]) == 2
    assert log == ["a", "b"] * 4
    assert len(timing.interleaved(samples, most_seconds=0.0)["a"]) == 1
