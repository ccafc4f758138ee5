"""Warm calls on a GPU: the bits of cold ones, in graphs, streams, threads and on other devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cupy_flash
from cupy_flash import launch, plan
from gpu_attention import attention
from gpu_runtime import (
    SHAPE,
    captured,
    drawn,
    every_fast_kernel,
    fill_with_nan,
    inputs,
    same_bits,
    spin,
)
from problems import DTYPES, Case
from strategies import cases, few_kinds, own_draws

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
REPLAYS = 1000
OPTIONS = {"causal": True, "return_lse": True}


@pytest.fixture
def planned(monkeypatch: Any) -> list[Any]:
    """Record every call that is planned."""
    plan.forget()
    found: list[Any] = []
    make = launch.make_plan

    def recorded(*args: Any) -> Any:
        found.append(args)
        return make(*args)

    monkeypatch.setattr(launch, "make_plan", recorded)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_warm_call_gives_the_bits_of_a_cold_one(dtype: str, planned: list[Any]) -> None:
    @own_draws(dtype)
    @settings(max_examples=50)
    # Few kinds of options: each is a kernel to compile.
    @given(cases(dtype, dims=(64, 300), options=few_kinds(lengths=(None, "both")), mixed=False))
    def one(case: Case) -> None:
        plan.forget()
        planned.clear()
        # Built twice: the second call's arrays lie elsewhere.
        both = [case.build(), case.build()]
        cold, warm = (attention(arrays, None) for arrays in both)
        assert len(planned) == 1, "the second call was planned anew"
        for x, y in zip(cold, warm, strict=True):
            assert x.tobytes() == y.tobytes()

    one()


def test_a_graph_of_a_warm_call_is_replayed_a_thousand_times(planned: list[Any]) -> None:
    warm, ours = inputs(), inputs()
    results = [
        (cupy.empty(SHAPE, np.float32), cupy.empty(SHAPE[:-1], np.float32)) for _ in range(3)
    ]
    banks = [
        [cupy.asarray(drawn(10 * bank + seed)) for seed in range(period)]
        for bank, period in enumerate((7, 5, 3))
    ]
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy_flash.attention(*warm, out=results[0], **OPTIONS)
        graph = captured(stream, lambda: cupy_flash.attention(*ours, out=results[1], **OPTIONS))
        assert len(planned) == 1, "the captured call was cold"
        before: set[bytes] = set()
        for replay in range(REPLAYS):
            for x, bank in zip(ours, banks, strict=True):
                cupy.copyto(x, bank[replay % len(bank)])
            fill_with_nan(*results[1])
            graph.launch(stream)
            # The plan's next addresses must not reach the graph.
            cupy_flash.attention(*warm, out=results[0], **OPTIONS)
            cupy_flash.attention(*ours, out=results[2], **OPTIONS)
            for got, want in zip(results[1], results[2], strict=True):
                assert same_bits(got, want), f"replay {replay}"
            before.add(results[1][0].get().tobytes())
    assert len(before) == 7 * 5 * 3, "the inputs didn't change"


@pytest.mark.parametrize("given", [False, True])
def test_a_warm_call_returns_before_the_gpu_has_computed_it(
    given: bool, planned: list[Any]
) -> None:
    q, k, v = inputs()
    out = cupy.empty_like(q) if given else None
    with cupy.cuda.Stream(non_blocking=True) as stream:
        spin(1)
        # The freed result of this call is the memory of the next one's.
        cupy_flash.attention(q, k, v, out=out)
        stream.synchronize()
        spin(500)
        result = cupy_flash.attention(q, k, v, out=out)
        returned_early = not stream.done
        stream.synchronize()
    assert returned_early, "a warm call waited for the GPU"
    assert len(planned) == 1
    assert same_bits(result, cupy_flash.attention(q, k, v))


def test_two_streams_share_a_plan(planned: list[Any]) -> None:
    calls = [inputs(), [cupy.asarray(drawn(seed)) for seed in (5, 6, 7)]]
    want = [cupy_flash.attention(*arrays) for arrays in calls]
    results = [cupy.empty_like(x) for x in want]
    fill_with_nan(*results)
    spin(1)
    cupy.cuda.Device().synchronize()
    planned.clear()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in calls]
    for stream, arrays, out in zip(streams, calls, results, strict=True):
        with stream:
            spin(50)
            cupy_flash.attention(*arrays, out=out)
    for stream in streams:
        stream.synchronize()
    assert len(planned) == 1
    for got, expected in zip(results, want, strict=True):
        assert same_bits(got, expected)


def test_two_threads_share_a_plan(planned: list[Any]) -> None:
    calls = [inputs(), [cupy.asarray(drawn(seed)) for seed in (5, 6, 7)]]
    want = [cupy_flash.attention(*arrays) for arrays in calls]
    cupy.cuda.Device().synchronize()
    planned.clear()
    together = threading.Barrier(2)

    def work(number: int) -> int:
        wrong = 0
        with cupy.cuda.Stream(non_blocking=True):
            out = cupy.empty_like(want[number])
            together.wait(30)
            for _ in range(300):
                fill_with_nan(out)
                cupy_flash.attention(*calls[number], out=out)
                fresh = cupy_flash.attention(*calls[number])
                wrong += not (same_bits(out, want[number]) and same_bits(fresh, want[number]))
        return wrong

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [0, 0]
    # Both threads may have come first.
    assert len(planned) <= 2


@pytest.mark.parametrize("given_stream", [False, True])
def test_a_thread_may_begin_with_a_warm_call(given_stream: bool, planned: list[Any]) -> None:
    # It has no CUDA context yet, and with a result given nothing before the launch makes one.
    arrays = inputs()
    want, out = cupy_flash.attention(*arrays), cupy.empty_like(arrays[0])
    cupy_flash.attention(*arrays, out=out)
    fill_with_nan(out)
    stream = cupy.cuda.Stream(non_blocking=True) if given_stream else cupy.cuda.Stream.null
    cupy.cuda.Device().synchronize()
    planned.clear()

    def work() -> None:
        with stream:
            cupy_flash.attention(*arrays, out=out)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    stream.synchronize()
    assert not planned
    assert same_bits(out, want)


def test_a_warm_call_refuses_an_overlap_and_writes_nothing(planned: list[Any]) -> None:
    q, k, v = inputs()
    apart = cupy.empty_like(q)
    want = cupy_flash.attention(q, k, v, out=apart).copy()
    buffer = cupy.empty(2 * q.size - 4, q.dtype)
    first, last = buffer[: q.size].reshape(SHAPE), buffer[-q.size :].reshape(SHAPE)
    cupy.copyto(first, q)
    cupy.copyto(last, q)
    before = buffer.get()
    for inside, out in ((first, last), (last, first)):
        for name, arrays in (("q", (inside, k, v)), ("k", (q, inside, v)), ("v", (q, k, inside))):
            with pytest.raises(ValueError, match=f"out shares memory with {name}"):
                cupy_flash.attention(*arrays, out=out)
    assert buffer.get().tobytes() == before.tobytes()
    assert len(planned) == 1
    assert same_bits(cupy_flash.attention(q, k, v, out=apart), want)
    assert len(planned) == 1


def test_two_devices_from_two_threads_at_once(planned: list[Any]) -> None:
    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"needs two GPUs, this machine has {count}")
    arrays = {}
    for index in (0, 1):
        with cupy.cuda.Device(index):
            arrays[index] = [*inputs(), cupy.empty(SHAPE, np.float32)]
    together = threading.Barrier(2)

    def work(index: int) -> set[bytes]:
        q, k, v, out = arrays[index]
        found = set()
        # The other device is current.
        with cupy.cuda.Device(1 - index):
            together.wait(30)
            for _ in range(100):
                cupy_flash.attention(q, k, v, out=out)
                fresh = cupy_flash.attention(q, k, v)
                assert cupy.cuda.runtime.getDevice() == 1 - index
                assert fresh.device.id == index
                with cupy.cuda.Device(index):
                    found |= {out.get().tobytes(), fresh.get().tobytes()}
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, (0, 1)))
    assert [len(bits) for bits in found] == [1, 1]
    assert {args[0].device for args in planned} == {0, 1}
    assert len(planned) == 4


# What a fresh process does from a cold start, 16 threads at once on streams of the kind given; the
# arguments are kernel and dtype.
THREADS = """
import hashlib, json, sys, threading
import cupy, numpy as np
import cupy_flash
from cupy_flash import launch

planned, make = [], launch.make_plan
launch.make_plan = lambda *args: planned.append(args) or make(*args)
rng = np.random.default_rng(0)
kernel, dtype = sys.argv[1:]
hosts = [[rng.standard_normal((2, 3, 150, 64), np.float32) for _ in "qkv"] for _ in range(4)]
calls = [[cupy.asarray(x.astype(dtype)) for x in host] for host in hosts]
cupy.cuda.Device().synchronize()
together, guard = threading.Barrier(16), threading.Lock()
digests, errors, streams = {}, [], set()

def work(number):
    try:
        together.wait(60)
        with guard:
            streams.add(cupy.cuda.get_current_stream().ptr)
        for call in range(40):
            which = (number + call) % 4
            out, lse = cupy_flash.attention(*calls[which], return_lse=True, kernel=kernel)
            bits = hashlib.sha256(out.get().tobytes() + lse.get().tobytes()).hexdigest()
            with guard:
                digests.setdefault(which, set()).add(bits)
    except Exception as error:
        errors.append(repr(error))

workers = [threading.Thread(target=work, args=(number,)) for number in range(16)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
found = {which: sorted(bits) for which, bits in sorted(digests.items())}
print(json.dumps({
    "digests": found, "errors": errors, "planned": len(planned), "streams": sorted(streams),
    "per thread": cupy.cuda.Stream.ptds.ptr,
}))
"""


@every_fast_kernel
def test_sixteen_threads_on_the_default_streams(kernel: str, dtype: str, tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    reports = {}
    for per_thread in ("0", "1"):
        variables = {
            "PYTHONPATH": path,
            "CUPY_CACHE_DIR": str(tmp_path),
            "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": per_thread,
        }
        result = subprocess.run(
            [sys.executable, "-c", THREADS, kernel, dtype],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, **variables},
        )
        assert result.returncode == 0, result.stderr
        report = reports[per_thread] = json.loads(result.stdout.splitlines()[-1])
        assert not report["errors"], report["errors"]
        assert [len(bits) for bits in report["digests"].values()] == [1] * 4, "threads disagree"
        # Each thread may have come before the first plan was kept.
        assert 1 <= report["planned"] <= 16
    assert reports["0"]["digests"] == reports["1"]["digests"]
    assert reports["1"]["streams"] == [reports["1"]["per thread"]]
    assert reports["0"]["streams"] != reports["1"]["streams"]
