"""Streams, graphs, devices and memory: how calls live in CuPy's runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import device, plan
from gpu_runtime import (
    SHAPE,
    captured,
    drawn,
    every_kernel,
    fill_with_nan,
    inputs,
    same_bits,
    spin,
)
from problems import KERNELS_AND_DTYPES

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

REPLAYS = 50
STREAMS = {
    "null": lambda: cupy.cuda.Stream.null,
    "per thread": lambda: cupy.cuda.Stream.ptds,
    "blocking": lambda: cupy.cuda.Stream(),
    "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
}


@pytest.mark.parametrize("stream", STREAMS)
@every_kernel
def test_a_call_waits_for_its_own_stream(kernel: str, dtype: str, stream: str) -> None:
    q, k, v = inputs(dtype)
    want = cupy_flash.attention(q, k, v, kernel=kernel)
    late, out, read = cupy.empty_like(q), cupy.empty_like(q), cupy.empty_like(q)
    fill_with_nan(late, out, read)
    with STREAMS[stream]() as producer:
        spin(1)
        cupy.cuda.Device().synchronize()
        spin(100)
        cupy.copyto(late, q)
        assert cupy_flash.attention(late, k, v, out=out, kernel=kernel) is out
        done = producer.record()
    with cupy.cuda.Stream(non_blocking=True) as reader:
        reader.wait_event(done)
        cupy.copyto(read, out)
        reader.synchronize()
    assert not np.isnan(read.get()).any(), "attention ran before what precedes it on its stream"
    assert same_bits(read, want)


@every_kernel
def test_a_call_does_not_wait_for_other_streams(kernel: str, dtype: str) -> None:
    q, k, v = inputs(dtype)
    out = cupy_flash.attention(q, k, v, kernel=kernel)
    spin(1)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as busy:
        spin(500)
        pause_ends = busy.record()
    with cupy.cuda.Stream(non_blocking=True) as ours:
        cupy_flash.attention(q, k, v, out=out, kernel=kernel)
        ours.synchronize()
    still_busy = not pause_ends.done
    pause_ends.synchronize()
    assert still_busy, "attention ended only when another stream's 500 ms were over"


@every_kernel
def test_a_call_returns_before_the_gpu_has_computed_it(kernel: str, dtype: str) -> None:
    q, k, v = inputs(dtype)
    options = {"k_lengths": cupy.asarray(np.array([50, 200], np.int32)), "kernel": kernel}
    out = cupy_flash.attention(q, k, v, **options)
    spin(1)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        spin(500)
        cupy_flash.attention(q, k, v, **options, out=out)
        returned_early = not stream.done
        stream.synchronize()
    assert returned_early, "attention waited for the GPU"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_replayed_graphs_give_the_bits_of_calls(kernel: str, dtype: str, causal: bool) -> None:
    q, k, v = inputs(dtype)
    options = {"kernel": kernel, "causal": causal, "return_lse": True}
    results = cupy_flash.attention(q, k, v, **options)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        graph = captured(stream, lambda: cupy_flash.attention(q, k, v, out=results, **options))
        for replay in range(REPLAYS):
            for array, seed in zip((q, k, v), range(3), strict=True):
                array.set(drawn(100 + 3 * replay + seed, dtype))
            fill_with_nan(*results)
            graph.launch(stream)
            want = cupy_flash.attention(q, k, v, **options)
            for name, got, expected in zip(("out", "lse"), results, want, strict=True):
                assert same_bits(got, expected), f"replay {replay} changed {name}"


@every_kernel
def test_a_graph_reads_lengths_when_it_is_replayed(kernel: str, dtype: str) -> None:
    q, k, v = inputs(dtype)
    rows, keys = (cupy.asarray(np.array([200, 200], np.int32)) for _ in range(2))
    options: dict[str, Any] = {"kernel": kernel, "causal": True, "return_lse": True}
    options |= {"q_lengths": rows, "k_lengths": keys}
    results = cupy_flash.attention(q, k, v, **options)
    rng = np.random.default_rng(0)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        graph = captured(stream, lambda: cupy_flash.attention(q, k, v, out=results, **options))
        for _ in range(REPLAYS):
            row_counts, key_counts = rng.integers(0, 201, (2, 2), np.int32)
            rows.set(row_counts)
            keys.set(key_counts)
            fill_with_nan(*results)
            graph.launch(stream)
            lengths = f"q_lengths {row_counts}, k_lengths {key_counts}"
            for got, want in zip(results, cupy_flash.attention(q, k, v, **options), strict=True):
                assert same_bits(got, want), lengths
            lse = results[1].get()
            for entry, (count, others) in enumerate(zip(row_counts, key_counts, strict=True)):
                sees = np.arange(200) < count
                sees &= np.arange(200) + int(others) - int(count) >= 0
                assert (np.isfinite(lse[entry]) == sees).all(), lengths


@every_kernel
def test_a_capture_of_a_first_call_is_refused_and_stays_whole(
    kernel: str, dtype: str, monkeypatch: Any
) -> None:
    q, k, v = inputs(dtype)
    out, copy = cupy.empty_like(q), cupy.empty_like(q)
    monkeypatch.setattr("cupy_flash.compile._kernels", {})
    plan.forget()
    state = {}

    def capture() -> None:
        with pytest.raises(RuntimeError, match="make the same call once before the capture"):
            cupy_flash.attention(q, k, v, out=out, kernel=kernel)
        state["capturing"] = stream.is_capturing()
        cupy.copyto(copy, q)

    with cupy.cuda.Stream(non_blocking=True) as stream:
        fill_with_nan(out, copy)
        graph = captured(stream, capture)
        assert state["capturing"], "the refused call ended the capture"
        graph.launch(stream)
        assert same_bits(copy, q), "what was captured after the refused call didn't run"
        assert np.isnan(out.get()).all(), "the refused call wrote to out"
        want = cupy_flash.attention(q, k, v, kernel=kernel)
        again = captured(stream, lambda: cupy_flash.attention(q, k, v, out=out, kernel=kernel))
        again.launch(stream)
        assert same_bits(out, want)


@pytest.fixture
def two_devices() -> None:
    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"needs two GPUs, this machine has {count}")


@pytest.mark.usefixtures("two_devices")
@every_kernel
def test_arrays_are_computed_on_their_device_whichever_is_current(kernel: str, dtype: str) -> None:
    arrays = {}
    for index in (0, 1):
        with cupy.cuda.Device(index):
            arrays[index] = inputs(dtype)
    options = {"kernel": kernel, "causal": True, "return_lse": True}
    results: dict[int, list[Any]] = {0: [], 1: []}
    for current, index in [(0, 1), (1, 0), (0, 0), (1, 1)] * 10:
        with cupy.cuda.Device(current):
            out, lse = cupy_flash.attention(*arrays[index], **options)
            assert cupy.cuda.runtime.getDevice() == current, "the current device changed"
        assert out.device.id == lse.device.id == index
        with cupy.cuda.Device(index):
            results[index].append((out.get().tobytes(), lse.get().tobytes()))
    if device.actual(0).name == device.actual(1).name:
        assert len(set(results[0] + results[1])) == 1, "the devices disagree"
    assert len(set(results[0])) == len(set(results[1])) == 1


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("moved", ["q", "k", "v", "out", "q_lengths", "k_lengths"])
def test_arrays_on_two_devices_are_refused(moved: str) -> None:
    lengths = np.array([3, 4], np.int32)
    host = dict(zip("qkv", (drawn(seed) for seed in range(3)), strict=True))
    host |= {"out": drawn(3), "q_lengths": lengths, "k_lengths": lengths}
    arrays = {}
    for name, array in host.items():
        with cupy.cuda.Device(1 if name == moved else 0):
            arrays[name] = cupy.asarray(array)
    q, k, v = (arrays.pop(name) for name in "qkv")
    with pytest.raises(ValueError, match=r"device [01] and \w+ on device [01]"):
        cupy_flash.attention(q, k, v, **arrays)


def test_out_is_what_comes_back() -> None:
    q, k, v = inputs()
    out, lse = cupy.empty_like(q), cupy.empty(SHAPE[:-1], "float32")
    want = cupy_flash.attention(q, k, v, return_lse=True)
    assert cupy_flash.attention(q, k, v, out=out) is out
    assert cupy_flash.attention(q, k, v, out=(out, None)) is out
    both = cupy_flash.attention(q, k, v, out=(out, lse), return_lse=True)
    assert both[0] is out
    assert both[1] is lse
    assert same_bits(out, want[0])
    assert same_bits(lse, want[1])
    fresh, given = cupy_flash.attention(q, k, v, out=(None, lse), return_lse=True)
    assert given is lse
    assert same_bits(fresh, want[0])


@pytest.mark.parametrize("lengths", [False, True])
@every_kernel
def test_a_call_allocates_its_results_alone(kernel: str, dtype: str, lengths: bool) -> None:
    q, k, v = inputs(dtype)
    options: dict[str, Any] = {"kernel": kernel, "causal": True, "return_lse": True}
    if lengths:
        options["k_lengths"] = cupy.asarray(np.array([7, 200], np.int64))
    out, lse = cupy_flash.attention(q, k, v, **options)
    # What was taken from the device counts, also if it went back to the pool before the call ended.
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        cupy_flash.attention(q, k, v, out=(out, lse), **options)
        assert pool.total_bytes() == 0, "a call with out= allocated"
        results = cupy_flash.attention(q, k, v, **options)
        rounded = sum(-(-x.nbytes // 512) * 512 for x in results)
        assert (pool.used_bytes(), pool.total_bytes()) == (rounded, rounded)
        del results
