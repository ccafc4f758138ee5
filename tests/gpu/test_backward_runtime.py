"""Streams, graphs, threads and workspaces of backward calls, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import launch, plan
from gpu_gradients import PATTERN, assert_guarded, guarded_workspace
from gpu_runtime import (
    captured,
    drawn,
    every_kernel,
    fill_with_nan,
    inputs,
    same_bits,
    spin,
)
from gradient_paths import QKV
from problems import KERNELS_AND_DTYPES
from test_runtime import STREAMS

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

REPLAYS = 20
SENTINEL = 7.0
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all passes": {"causal": True, "wrt": (*QKV, "bias", "sinks", "alibi_slopes", "scale")},
}


class Call:
    """A backward call whose results and workspace are its own; `again` computes on fresh ones."""

    def __init__(self, kernel: str, dtype: str, kind: str = "plain") -> None:
        self.q, self.k, self.v = inputs(dtype)
        self.do = cupy.asarray(drawn(9, dtype))
        self.options = {"kernel": kernel} | OPTIONS[kind]
        self.wrt = self.options.pop("wrt", QKV)
        if kind == "all passes":
            rng = np.random.default_rng(5)
            self.options |= {
                "bias": cupy.asarray(rng.standard_normal((200, 200), np.float32)),
                "sinks": cupy.asarray(rng.standard_normal(3, np.float32)),
                "alibi_slopes": cupy.asarray(rng.standard_normal(3, np.float32) / 64),
            }
        self.forward()
        cupy.cuda.Device().synchronize()
        matrices = (self.q, self.k, self.v)
        self.size = cupy_flash.workspace_size(*matrices, wrt=self.wrt, **self.options)
        self.workspace, self.memory = guarded_workspace(self.size)
        self.out = tuple(cupy.empty_like(x) for x in self.again())
        cupy.cuda.Device().synchronize()

    def forward(self) -> None:
        results = cupy_flash.attention(self.q, self.k, self.v, return_lse=True, **self.options)
        if hasattr(self, "o"):
            cupy.copyto(self.o, results[0])
            cupy.copyto(self.lse, results[1])
        else:
            self.o, self.lse = results

    def again(self, **given: Any) -> Any:
        arrays = (self.do, self.q, self.k, self.v, self.o, self.lse)
        return cupy_flash.attention_backward(*arrays, wrt=self.wrt, **self.options, **given)

    def in_place(self) -> Any:
        return self.again(out=self.out, workspace=self.workspace)

    def assert_results(self, want: Any, what: str) -> None:
        for name, got, expected in zip(self.wrt, self.out, want, strict=True):
            assert same_bits(got, expected), f"{what}: d{name}"
        assert_guarded(self.memory, self.size)


@pytest.mark.parametrize("stream", STREAMS)
@every_kernel
def test_a_call_waits_for_its_own_stream(kernel: str, dtype: str, stream: str) -> None:
    call = Call(kernel, dtype)
    want = call.again()
    given, late = call.do, cupy.empty_like(call.do)
    fill_with_nan(late, *call.out)
    call.do = late
    with STREAMS[stream]() as producer:
        spin(1)
        cupy.cuda.Device().synchronize()
        spin(100)
        cupy.copyto(late, given)
        fresh = call.again()
        assert all(a is b for a, b in zip(call.in_place(), call.out, strict=True))
        producer.synchronize()
    call.assert_results(want, "in place")
    assert all(same_bits(a, b) for a, b in zip(fresh, want, strict=True))


@every_kernel
def test_a_call_does_not_wait(kernel: str, dtype: str) -> None:
    call = Call(kernel, dtype)
    spin(1)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as busy:
        spin(500)
        pause_ends = busy.record()
    with cupy.cuda.Stream(non_blocking=True) as ours:
        call.in_place()
        ours.synchronize()
    still_busy = not pause_ends.done
    pause_ends.synchronize()
    assert still_busy, "the call ended only when another stream's 500 ms were over"
    with cupy.cuda.Stream(non_blocking=True) as stream:
        spin(500)
        call.in_place()
        returned_early = not stream.done
        stream.synchronize()
    assert returned_early, "the call waited for the GPU"


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_replayed_graphs_give_the_bits_of_calls(kernel: str, dtype: str, kind: str) -> None:
    call = Call(kernel, dtype, kind)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        graph = captured(stream, call.in_place)
        for replay in range(REPLAYS):
            for place, array in enumerate((call.do, call.q, call.k, call.v)):
                array.set(drawn(100 + 4 * replay + place, dtype))
            call.forward()
            fill_with_nan(*call.out, call.workspace)
            graph.launch(stream)
            want = call.again()
            stream.synchronize()
            call.assert_results(want, f"replay {replay}")


@pytest.mark.parametrize("missing", ["out", "one of out", "workspace"])
@every_kernel
def test_a_capture_needs_memory_of_the_callers(kernel: str, dtype: str, missing: str) -> None:
    call = Call(kernel, dtype)
    want = call.again()
    copy = cupy.empty_like(call.q)
    given = {"out": call.out, "workspace": call.workspace}
    if missing == "one of out":
        given["out"] = (*call.out[:2], None)
    else:
        given[missing] = None
    what = "workspace" if missing == "workspace" else "out"
    state = {}

    def capture() -> None:
        says = rf"captured and {what} is None.*{call.size} bytes"
        with pytest.raises(ValueError, match=f"(?s){says}"):
            call.again(**given)
        state["capturing"] = stream.is_capturing()
        cupy.copyto(copy, call.q)

    with cupy.cuda.Stream(non_blocking=True) as stream:
        fill_with_nan(copy, *call.out)
        graph = captured(stream, capture)
        assert state["capturing"], "the refused call ended the capture"
        graph.launch(stream)
        stream.synchronize()
        assert same_bits(copy, call.q), "what was captured after the refused call didn't run"
        assert all(np.isnan(x.get().astype(float)).all() for x in call.out)
        again = captured(stream, call.in_place)
        again.launch(stream)
        stream.synchronize()
        call.assert_results(want, "captured after a refusal")


@every_kernel
def test_threads_on_streams_of_their_own(kernel: str, dtype: str) -> None:
    calls = [Call(kernel, dtype, kind) for kind in ("plain", "all passes") * 2]
    want = [[x.get().tobytes() for x in call.again()] for call in calls]
    together, errors = threading.Barrier(len(calls)), []

    def work(call: Call, expected: list[bytes]) -> None:
        try:
            together.wait()
            with cupy.cuda.Stream(non_blocking=True):
                for _ in range(10):
                    assert [x.get().tobytes() for x in call.again()] == expected
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(calls, want, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("kind", OPTIONS)
@every_kernel
def test_a_workspace_is_as_large_as_it_must_be(kernel: str, dtype: str, kind: str) -> None:
    call = Call(kernel, dtype, kind)
    want = call.again()
    call.in_place()
    call.assert_results(want, "a workspace of exactly the size")
    larger = cupy.full(call.size + 100, PATTERN, np.uint8)
    call.again(out=call.out, workspace=larger)
    call.assert_results(want, "a larger one")
    assert (larger.get()[call.size :] == PATTERN).all()
    for x in call.out:
        x.fill(SENTINEL)
    call.memory.fill(PATTERN)
    for size in (call.size - 1, 0):
        says = rf"workspace has {size} bytes.* take {call.size} "
        with pytest.raises(ValueError, match=f"(?s){says}"):
            call.again(out=call.out, workspace=call.workspace[:size])
    assert (call.memory.get() == PATTERN).all()
    assert all((x.get().astype(float) == SENTINEL).all() for x in call.out)


@pytest.fixture
def launches(monkeypatch: Any) -> list[Any]:
    """Record every kernel that a call is about to launch."""
    plan.forget()
    found: list[Any] = []
    find = launch.kernel
    monkeypatch.setattr(launch, "kernel", lambda *args: found.append(args) or find(*args))
    return found


def small(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(shape)
    return cupy.asarray(rng.standard_normal(shape).astype(dtype))


# name: (what replaces or joins the arguments; the exception; what it must say)
REFUSALS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "do on the host": ({"do": lambda: np.ones((2, 6, 8), np.float32)}, TypeError, "do is a numpy"),
    "do of another shape": ({"do": lambda: small(2, 5, 8)}, ValueError, "do has shape"),
    "do of another dtype": ({"do": lambda: small(2, 6, 8, dtype="float16")}, TypeError, "astype"),
    "o of another shape": ({"o": lambda: small(2, 6, 7)}, ValueError, "o has shape"),
    "lse of another shape": ({"lse": lambda: small(2, 7)}, ValueError, "lse has shape"),
    "lse of heads last": ({"lse": lambda: small(6, 2)}, ValueError, "lse has shape"),
    "dlse of another dtype": ({"dlse": lambda: small(2, 6, dtype="float64")}, TypeError, "dlse"),
    "an unknown name": ({"wrt": lambda: ("q", "mask")}, ValueError, "wrt names 'mask'"),
    "a bias not given": ({"wrt": lambda: ("bias",)}, ValueError, "bias is None"),
    "a number of outs": ({"out": lambda: (None,)}, ValueError, "out is a tuple of 1"),
    "an out of another shape": (
        {"out": lambda: (small(2, 6, 7), None, None)},
        ValueError,
        "the q array in out",
    ),
    "a workspace of floats": ({"workspace": lambda: small(4096)}, TypeError, "must be uint8"),
    "a workspace off its alignment": (
        {"workspace": lambda: cupy.zeros(8200, np.uint8)[8:]},
        ValueError,
        "multiple of 16",
    ),
    "a workspace with gaps": (
        {"workspace": lambda: cupy.zeros(8200, np.uint8)[::2]},
        ValueError,
        "contiguous",
    ),
    "a kernel for other dtypes": ({"kernel": lambda: "sm80"}, ValueError, "float16 and bfloat16"),
    "keys and values of different number": ({"v": lambda: small(2, 5, 8)}, ValueError, "rows"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_launch_and_write_nothing(name: str, launches: list[Any]) -> None:
    changed, error, says = REFUSALS[name]
    q, k, v = small(2, 6, 8), small(2, 7, 8), small(2, 7, 8)
    o, lse = cupy_flash.attention(q, k, v, return_lse=True)
    given = {"do": small(2, 6, 8), "q": q, "k": k, "v": v, "o": o, "lse": lse}
    given["out"] = tuple(cupy.full(x.shape, SENTINEL, x.dtype) for x in (q, k, v))
    given |= {argument: make() for argument, make in changed.items()}
    watched = [x for x in (*given.values(), *(given["out"] or ())) if isinstance(x, cupy.ndarray)]
    before = [x.get().tobytes() for x in watched]
    launches.clear()
    positional = [given.pop(argument) for argument in ("do", "q", "k", "v", "o", "lse")]
    with pytest.raises(error, match=f"(?s)attention_backward: .*{says}"):
        cupy_flash.attention_backward(*positional, **given)
    assert not launches
    assert [x.get().tobytes() for x in watched] == before, "the refused call wrote to an array"


def test_the_counter_counts(launches: list[Any]) -> None:
    x = small(2, 6, 8)
    o, lse = cupy_flash.attention(x, x, x, return_lse=True)
    launches.clear()
    cupy_flash.attention_backward(x, x, x, x, o, lse)
    assert len(launches) >= 3
