"""Warm calls: they launch what a cold call launches, where and on what they should."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_flash import CompileError, attention, launch, plan
from cupy_flash.arrays import describe, to_dtype
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.params import launches
from cupy_flash.problem import SMALL_ARRAYS, make_problem
from cupy_flash.select import choose
from fake_cupy import (
    SHAPE,
    DriverError,
    FakeArray,
    FakeFunction,
    call,
    installed,
    lengths,
    on_gpu,
    planned,
    qkv,
)
from layouts import strided
from problems import DTYPES
from strategies import cases


@pytest.fixture
def cupy(monkeypatch):
    yield from installed(monkeypatch)


@pytest.fixture
def cold(monkeypatch):
    return planned(monkeypatch)


def arguments_of(case, with_lse):
    """Build a case's arrays anew: its arguments of `attention`, all of them on the fake GPU."""
    arrays = case.build()
    options = {
        name: FakeArray(x) if isinstance(x, np.ndarray) else x
        for name, x in arrays.options().items()
    }
    inputs = [FakeArray(x.numpy()) for x in arrays.inputs().values()]
    infos = [describe("x", x) for x in inputs]
    problem = make_problem(*infos, check_options(return_lse=True))
    out = lse = None
    if case.out_layout is not None:
        made = strided(problem.out_shape, to_dtype(problem.dtype), case.out_layout)
        out = FakeArray(made.numpy())
    if with_lse == "given":
        lse = FakeArray(np.empty(problem.lse_shape, problem.accumulate))
    return inputs, options | {"out": (out, lse), "return_lse": with_lse != "no"}


def expected(inputs, options, out, lse):
    """Return the structs of a call without plans, for its results `out` and `lse`."""
    checked = check_options(**{name: x for name, x in options.items() if name != "out"})
    given_out, given_lse = (None if x is None else describe("out", x) for x in options["out"])
    infos = [describe("x", x) for x in inputs]
    problem = make_problem(*infos, checked, given_out, given_lse)
    arrays = dict(zip("qkv", inputs, strict=True)) | {"o": out}
    arrays |= {name: options[name] for name in SMALL_ARRAYS if options.get(name) is not None}
    if lse is not None:
        arrays["lse"] = lse
    pointers = {name: x.data.ptr for name, x in arrays.items()}
    variant = choose(problem, assumed(90)).variant
    return [(x.params.tobytes(), (x.grid, 1, 1)) for x in launches(problem, variant, pointers)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_warm_call_launches_what_a_cold_one_does(cupy, cold, dtype):
    seen = Counter()

    @settings(max_examples=60)
    @given(cases(dtype), st.sampled_from(("no", "fresh", "given")))
    def check(case, with_lse):
        plan.forget()
        kept_alive, results = [], []
        for times_planned in (1, 1):
            inputs, options = arguments_of(case, with_lse)
            kept_alive.append(inputs)
            cupy.calls.clear()
            result = attention(*inputs, **options)
            assert len(cold) == times_planned, "the second call was planned anew"
            out, lse = result if options["return_lse"] else (result, None)
            made = [(x.params.tobytes(), x.grid) for x in cupy.calls]
            assert made == expected(inputs, options, out, lse)
            results.append([(x.shape, x.strides, x.dtype) for x in (out, lse) if x is not None])
            seen[case.out_layout is None, with_lse, case.lengths] += 1
        assert results[0] == results[1]
        cold.clear()

    check()
    fresh, lse, given_lengths = (set(kind) for kind in zip(*seen, strict=True))
    assert (fresh, lse) == ({True, False}, {"no", "fresh", "given"})
    assert given_lengths == {None, "q", "k", "both"}


def test_several_launches_stay_apart(cupy, cold):
    def wide():
        return FakeArray(np.zeros((4,) * 6 + (1, 2, 3))[::2, ::2, ::2, ::2, ::2, ::2])

    shifts = []
    for _ in range(2):
        x = wide()
        cupy.calls.clear()
        out = attention(x, x, x)
        assert len(cupy.calls) == 4
        for name, array in (("q", x), ("o", out)):
            shifts.append([int(c.params[name]["data"]) - array.data.ptr for c in cupy.calls])
    assert len(cold) == 1
    assert shifts[:2] == shifts[2:]
    assert len(set(shifts[0])) == len(set(shifts[1])) == 4


def test_negative_shifts(cupy, cold):
    for _ in range(2):
        x = FakeArray(np.zeros((4,) * 6 + (1, 2, 3))[::-2, ::2, ::-2, ::2, ::2, ::2])
        cupy.calls.clear()
        attention(x, x, x)
        shifts = [int(c.params["k"]["data"]) - x.data.ptr for c in cupy.calls]
        assert min(shifts) < 0
        assert len(set(shifts)) == len(shifts) > 1
    assert len(cold) == 1


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("current", [0, 1])
def test_a_warm_call_runs_on_the_device_of_its_arrays(cupy, cold, current, index):
    cupy.current = current
    for _ in range(2):
        out = attention(*qkv(index=index))
        assert out.index == index
        assert cupy.calls[-1].function.loaded_on == index
        assert cupy.current == current
    assert len(cold) == 1


def test_a_current_device_is_not_entered_again(cupy, monkeypatch):
    call({})

    def refuse(index):
        raise AssertionError("a warm call entered the device that is current")

    monkeypatch.setattr(cupy.cuda, "Device", refuse)
    call({})


@pytest.mark.parametrize("index", [0, 1])
def test_a_call_launches_on_the_current_stream_of_its_device(cupy, index):
    for stream, wanted in ((0, 1), (50, 50), (60, 60), (0, 1)):
        cupy.streams = [7, 7]
        cupy.streams[index] = stream
        attention(*qkv(index=index))
        assert cupy.calls[-1].stream == wanted


def test_a_launch_that_the_driver_refuses_is_left_to_rawkernel(cupy, cold):
    arrays, out = qkv(), on_gpu()
    for cupy.refusing in (False, True, True, False):
        attention(*arrays, out=out, causal=True)
    assert len(cold) == 1
    assert [launched.stream is None for launched in cupy.calls] == [False, True, True, False]
    first, *others = cupy.calls
    for launched in others:
        for name in ("params", "function", "grid", "block", "shared_mem"):
            assert getattr(launched, name) == getattr(first, name)


def test_what_rawkernel_refuses_too_is_raised(cupy, monkeypatch):
    call({})

    def refuse(*args, **kwargs):
        raise DriverError("an illegal memory access was encountered")

    monkeypatch.setattr(FakeFunction, "__call__", refuse)
    cupy.refusing = True
    with pytest.raises(DriverError, match="illegal memory access"):
        call({})
    cupy.refusing = False
    call({})
    assert len(cupy.calls) == 2


def test_a_call_within_a_launch_has_a_struct_of_its_own(cupy, cold):
    outer, inner = qkv(), qkv()
    attention(*outer)
    results = []

    def interrupt():
        cupy.while_launching = lambda: None
        results.append(attention(*inner))

    cupy.while_launching = interrupt
    cupy.calls.clear()
    results.append(attention(*outer))
    assert len(cold) == 1
    for launched, (q, _, _), out in zip(cupy.calls, (inner, outer), results, strict=True):
        assert launched.params["q"]["data"] == q.data.ptr
        assert launched.params["o"]["data"] == out.data.ptr


def test_warm_calls_can_be_captured_and_cold_ones_not(cupy):
    call({"out": on_gpu()})
    cupy.capturing = True
    call({"out": on_gpu()})
    assert len(cupy.calls) == 2
    with pytest.raises(RuntimeError, match="make the same call once before the capture"):
        call({"out": on_gpu(), "causal": True})


def test_a_call_that_fails_to_compile_is_not_kept(cupy, cold):
    cupy.broken = True
    for _ in range(2):
        with pytest.raises(CompileError):
            call({})
    assert not plan._plans
    cupy.broken = False
    call({})
    call({})
    assert (len(cupy.calls), len(cold)) == (2, 3)


def test_empty_results_are_warm_and_launch_nothing(cupy, cold):
    for _ in range(2):
        out, lse = attention(*qkv(shape=(2, 0, 5, 8)), return_lse=True)
        assert (out.shape, lse.shape) == ((2, 0, 5, 8), (2, 0, 5))
    assert len(cold) == 1
    assert cupy.modules == cupy.calls == []


def test_the_oldest_plan_makes_room(cupy, cold, monkeypatch):
    monkeypatch.setattr(plan, "MOST_PLANS", 3)
    for offset in (1, 2, 3, 3, 4, 4, 2, 3, 1, 1):
        call({"offset": offset})
        assert len(plan._plans) <= 3
    assert [int(c.params["offset"]) for c in cupy.calls] == [1, 2, 3, 3, 4, 4, 2, 3, 1, 1]
    assert [args[0].offset for args in cold] == [1, 2, 3, 4, 1]


@pytest.mark.parametrize("most", [3, 4])
def test_a_call_of_too_many_launches_is_not_kept(cupy, cold, monkeypatch, most):
    monkeypatch.setattr(launch, "MOST_STEPS", most)
    x = FakeArray(np.zeros((4,) * 6 + (1, 2, 3))[::2, ::2, ::2, ::2, ::2, ::2])
    pointers = []
    for _ in range(2):
        cupy.calls.clear()
        attention(x, x, x)
        pointers.append([int(c.params["v"]["data"]) for c in cupy.calls])
    assert pointers[0] == pointers[1]
    assert len(set(pointers[0])) == 4
    assert len(cold) == (2 if most < 4 else 1)


def test_forgotten_calls_are_planned_anew(cupy, cold):
    call({})
    plan.forget()
    call({})
    assert len(cold) == 2


def test_a_plan_keeps_no_array_alive(cupy):
    q, k, v = qkv()
    out, lse = on_gpu(), on_gpu(SHAPE[:-1])
    count = lengths(6, 6)
    fresh = attention(q, k, v, k_lengths=count)
    attention(q, k, v, out=(out, lse), return_lse=True)
    cupy.calls.clear()
    arrays = [weakref.ref(x) for x in (q, k, v, out, lse, count, fresh)]
    del q, k, v, out, lse, count, fresh
    gc.collect()
    assert [x() for x in arrays] == [None] * 7
    assert len(plan._plans) == 2


def test_sixteen_threads_from_a_cold_start(cupy, monkeypatch):
    monkeypatch.setattr(plan, "MOST_PLANS", 5)
    barrier = threading.Barrier(16)

    def work(_):
        arrays = [qkv() for _ in range(4)]
        barrier.wait(10)
        made = []
        for offset in [*range(8)] * 4:
            q, k, v = arrays[offset % 4]
            made.append((q, offset, attention(q, k, v, offset=offset)))
        return arrays, made

    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(work, range(16)))
    assert len(cupy.modules) == 1
    assert len(plan._plans) == 5
    want = Counter(
        (q.data.ptr, offset, out.data.ptr) for _, made in done for q, offset, out in made
    )
    got = Counter(
        (int(c.params["q"]["data"]), int(c.params["offset"]), int(c.params["o"]["data"]))
        for c in cupy.calls
    )
    assert got == want
    assert sum(got.values()) == 16 * 32
