"""What finds a plan: other calls don't, nor do invalid spellings and overlaps of a warm one."""

from __future__ import annotations

import math
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest

from cupy_flash import attention, plan
from fake_cupy import SHAPE, FakeArray, call, installed, lengths, on_gpu, planned, qkv, swapped


@pytest.fixture
def cupy(monkeypatch):
    yield from installed(monkeypatch)


@pytest.fixture
def cold(monkeypatch):
    return planned(monkeypatch)


# name: what differs from the call of q, k and v in SHAPE with no option.
DIFFERENT = {
    "rows of q": lambda: {"q": on_gpu((2, 4, 5, 8))},
    "keys": lambda: dict.fromkeys("kv", on_gpu((2, 4, 7, 8))),
    "columns of v": lambda: {"v": on_gpu((2, 4, 6, 9))},
    "heads": lambda: dict.fromkeys("kv", on_gpu((2, 2, 6, 8))),
    "axes": lambda: {"q": on_gpu((1, 2, 4, 6, 8))},
    "out": lambda: {"out": on_gpu()},
    "out, swapped": lambda: {"out": swapped(on_gpu((2, 6, 4, 8)))},
    "out, not aligned": lambda: {"out": on_gpu(shift=4)},
    "lse": lambda: {"out": (None, on_gpu(SHAPE[:-1])), "return_lse": True},
    "lse, swapped": lambda: {
        "out": (None, swapped(on_gpu((2, 6, 4)), -1, -2)),
        "return_lse": True,
    },
    "both results": lambda: {"out": (on_gpu(), on_gpu(SHAPE[:-1])), "return_lse": True},
    "all on another device": lambda: {name: on_gpu(index=1) for name in "qkv"},
    "all float64": lambda: {name: on_gpu(dtype="float64") for name in "qkv"},
    "all bfloat16": lambda: {name: on_gpu(dtype="bfloat16") for name in "qkv"},
    "all float16": lambda: {name: on_gpu(dtype="float16") for name in "qkv"},
    "return_lse": lambda: {"return_lse": True},
    "causal": lambda: {"causal": True},
    "offset 0": lambda: {"offset": 0},
    "offset 1": lambda: {"offset": 1},
    "causal and offset 1": lambda: {"causal": True, "offset": 1},
    "window": lambda: {"window": (2, 1)},
    "other window": lambda: {"window": (1, 2)},
    "left bound": lambda: {"window": (2, None)},
    "right bound": lambda: {"window": (None, 2)},
    "no bound": lambda: {"window": (None, None)},
    "softcap": lambda: {"softcap": 30.0},
    "other softcap": lambda: {"softcap": 50.0},
    "mask": lambda: {"mask": on_gpu((6, 6), "bool")},
    "mask of keys": lambda: {"mask": on_gpu((6,), "bool")},
    "mask of one row": lambda: {"mask": on_gpu((1, 6), "bool")},
    "mask of heads": lambda: {"mask": on_gpu((4, 6, 6), "bool")},
    "bias": lambda: {"bias": on_gpu((6, 6))},
    "bias of integers": lambda: {"bias": on_gpu((6, 6), "int8")},
    "bias and mask": lambda: {"bias": on_gpu((6, 6)), "mask": on_gpu((6, 6), "bool")},
    "slopes": lambda: {"alibi_slopes": on_gpu((4,))},
    "one slope": lambda: {"alibi_slopes": on_gpu(())},
    "sinks": lambda: {"sinks": on_gpu((4,))},
    "sinks of float16": lambda: {"sinks": on_gpu((4,), "float16")},
    "scale 1": lambda: {"scale": 1},
    "scale 0.5": lambda: {"scale": 0.5},
    "scale -0.5": lambda: {"scale": -0.5},
    "naive": lambda: {"kernel": "naive"},
    "simt": lambda: {"kernel": "simt"},
    "highest": lambda: {"precision": "highest"},
    "tf32": lambda: {"precision": "tf32"},
    "q_lengths": lambda: {"q_lengths": lengths(1, 2)},
    "k_lengths": lambda: {"k_lengths": lengths(1, 2)},
    "both lengths": lambda: {"q_lengths": lengths(1, 2), "k_lengths": lengths(1, 2)},
    "long lengths": lambda: {"k_lengths": lengths(1, 2, dtype=np.int64)},
    "one length": lambda: {"k_lengths": lengths(1)},
    "broadcast lengths": lambda: {"k_lengths": FakeArray(np.broadcast_to(np.int32(1), 2))},
}
for _name in "qkv":
    DIFFERENT |= {
        f"{_name} swapped": lambda name=_name: {name: swapped(on_gpu((2, 6, 4, 8)))},
        f"{_name} broadcast": lambda name=_name: {
            name: FakeArray(np.broadcast_to(on_gpu((1, 1, 6, 8)).host, SHAPE))
        },
        f"{_name} float64": lambda name=_name: {name: on_gpu(dtype="float64")},
    } | {
        f"{_name} {shift} bytes off": lambda name=_name, shift=shift: {name: on_gpu(shift=shift)}
        for shift in (4, 8, 12)
    }


def test_every_different_call_is_planned_once_and_launched_twice(cupy, cold):
    for _ in range(2):
        for count, make in enumerate(({}, *DIFFERENT.values()), 1):
            cupy.calls.clear()
            call(make() if make else {})
            assert len(cupy.calls) == 1
            assert len(cold) >= count
    assert len(cold) == len(DIFFERENT) + 1


@pytest.mark.parametrize("name", ["q", "k", "v", "out"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_stride_of_an_extent_of_one_is_no_difference(cupy, cold, name, axis):
    shape = tuple(1 if i == axis else extent for i, extent in enumerate(SHAPE))
    arrays = {name: on_gpu(shape) for name in ("q", "k", "v", "out")}
    host = arrays[name].host
    strides = [4 if i == axis else stride for i, stride in enumerate(host.strides)]
    for x in (host, np.lib.stride_tricks.as_strided(host, strides=strides)):
        call(arrays | {name: FakeArray(x)})
    first, second = cupy.calls
    assert first.params == second.params
    assert len(cold) == 1


class Bounds(NamedTuple):
    left: object
    right: object


# What may be warm, and spellings that equal it and must still be refused.
SPELLINGS = [
    ({"causal": True}, {"causal": 1}, TypeError),
    ({"causal": True}, {"causal": 1.0}, TypeError),
    ({"causal": True}, {"causal": np.int8(1)}, TypeError),
    ({}, {"causal": 0}, TypeError),
    ({}, {"causal": 0.0}, TypeError),
    ({}, {"causal": None}, TypeError),
    ({}, {"return_lse": 0}, TypeError),
    ({"return_lse": True}, {"return_lse": 1}, TypeError),
    ({"return_lse": True}, {"return_lse": np.float64(1)}, TypeError),
    ({"offset": 1}, {"offset": True}, TypeError),
    ({"offset": 1}, {"offset": 1.0}, TypeError),
    ({"offset": 1}, {"offset": np.True_}, TypeError),
    ({"offset": 0}, {"offset": False}, TypeError),
    ({"offset": 0}, {"offset": np.float32(0)}, TypeError),
    ({"scale": 1}, {"scale": True}, TypeError),
    ({"scale": 1.0}, {"scale": np.True_}, TypeError),
    ({"scale": 1}, {"scale": 1 + 0j}, TypeError),
    ({"scale": 0.5}, {"scale": [0.5]}, TypeError),
    ({"scale": 0.5}, {"scale": np.array([0.5])}, TypeError),
    ({"kernel": "simt"}, {"kernel": b"simt"}, ValueError),
    ({"precision": "tf32"}, {"precision": "TF32"}, ValueError),
    ({}, {"window": 0}, TypeError),
    ({}, {"softcap": 0}, ValueError),
    ({}, {"mask": False}, TypeError),
    ({}, {"bias": 0.0}, TypeError),
    ({}, {"k_lengths": 6}, TypeError),
    ({}, {"out": ()}, ValueError),
    ({}, {"out": (None, None, None)}, ValueError),
    ({}, {"out": ((None, None), None)}, TypeError),
    ({"window": (1, 0)}, {"window": (True, 0)}, TypeError),
    ({"window": (1, 0)}, {"window": (1, False)}, TypeError),
    ({"window": (1, 0)}, {"window": (1.0, 0)}, TypeError),
    ({"window": (1, 0)}, {"window": (np.int8(1), np.False_)}, TypeError),
    ({"window": (1, 0)}, {"window": [1, 0]}, TypeError),
    ({"window": (1, 0)}, {"window": ([1], 0)}, TypeError),
    ({"window": (1, 0)}, {"window": Bounds(1, 0.0)}, TypeError),
]


@pytest.mark.parametrize("spelling", range(len(SPELLINGS)))
def test_a_spelling_that_is_refused_never_finds_a_plan(cupy, spelling):
    valid, invalid, error = SPELLINGS[spelling]
    with pytest.raises(error) as first:
        call(invalid)
    call(valid)
    call(valid)
    launched = len(cupy.calls)
    for _ in range(2):
        with pytest.raises(error) as caught:
            call(invalid)
        assert str(caught.value) == str(first.value)
    assert len(cupy.calls) == launched


def test_spellings_of_the_same_options_launch_the_same(cupy):
    structs = []
    for scale, causal, offset in (
        (1, True, 2),
        (1.0, np.True_, np.int64(2)),
        (np.float32(1), np.True_, np.uint8(2)),
        (np.float64(1), True, np.int16(2)),
        (np.array(1.0), True, 2),
    ):
        for _ in range(2):
            call({"scale": scale, "causal": causal, "offset": offset})
            structs.append(cupy.calls[-1].params)
    # All but the array that can't be hashed.
    assert len(plan._plans) == 4
    for params in structs:
        for name in ("scale_q", "scale_s", "offset"):
            assert params[name] == structs[0][name]


def test_a_scale_of_zero_keeps_its_sign(cupy):
    for scale in (0.0, -0.0, 0.0, np.float64(-0.0), np.float64(0), 0):
        call({"scale": scale})
        made = cupy.calls[-1].params["scale_q"] * cupy.calls[-1].params["scale_s"]
        assert str(float(made)) == str(float(scale))


def test_a_number_that_can_change_is_read_by_every_call(cupy):
    class Dial(float):
        turned = 1.0

        def __float__(self):
            return self.turned

    scale = Dial(1.0)
    for scale.turned in (1.0, 2.0, 3.0):
        call({"scale": scale})
        assert cupy.calls[-1].params["scale_s"] == scale.turned


def test_a_subclass_of_cupys_array_is_computed_and_not_kept(cupy, cold):
    class Named(FakeArray):
        pass

    x = Named(on_gpu().host)
    for times in (1, 2):
        attention(x, x, x)
        assert len(cold) == len(cupy.calls) == times
    assert not plan._plans


def test_numpy_arrays_and_mixtures_pass_by(cupy):
    x = np.ones((4, 5))
    attention(x, x, x)
    call({})
    with pytest.raises(TypeError, match="k a numpy array"):
        call({"k": on_gpu().host})
    assert len(plan._plans) == 1


def test_numpy_arrays_are_computed_while_cupy_is_being_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    x = np.ones((4, 5))
    assert (attention(x, x, x) == 1).all()


# The inputs, of a multiple of 16 bytes each.
OTHERS = dict.fromkeys("qkv", lambda: on_gpu((4, 2, 6, 8))) | {
    "mask": lambda: on_gpu((4, 1, 6, 6), "bool"),
    "bias": lambda: on_gpu((6, 6), "float64"),
    "alibi_slopes": lambda: on_gpu((4, 1)),
    "sinks": lambda: on_gpu((4, 2)),
    "q_lengths": lambda: lengths(1, 2, 3, 4),
    "k_lengths": lambda: lengths(1, 2, 3, 4),
}


def overlapping(result, other, before):
    """Return arguments, and results that share 16 bytes with `other`'s beginning or end, or none.

    They are all equally aligned, as one key wants it.
    """
    shape = (4, 2, 6, 8)
    arrays = {name: on_gpu(shape) for name in "qkv"}
    arrays |= {name: make() for name, make in OTHERS.items() if name not in arrays}
    shared = shape if result == "out" else shape[:-1]
    ours, theirs = 4 * math.prod(shared), arrays[other].host.nbytes
    assert ours % 16 == theirs % 16 == 0
    buffer = np.zeros(2 * ours + theirs + 16, np.uint8)
    start = -buffer.__array_interface__["data"][0] % 16 + ours

    def at(shape, dtype, place):
        return FakeArray(np.ndarray(shape, dtype, buffer, place))

    arrays[other] = at(arrays[other].shape, arrays[other].dtype, start)
    apart, into = (start - ours, 16) if before else (start + theirs, -16)
    return arrays, at(shared, np.float32, apart + into), at(shared, np.float32, apart)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("other", list(OTHERS))
@pytest.mark.parametrize("result", ["out", "the lse array in out"])
def test_a_warm_call_refuses_an_overlap_in_the_words_of_a_cold_one(
    cupy, cold, result, other, before
):
    arrays, meeting, apart = overlapping(result, other, before)
    q, k, v = (arrays.pop(name) for name in "qkv")

    def attempt(x):
        out = (x, None) if result == "out" else (None, x)
        attention(q, k, v, out=out, return_lse=True, **arrays)

    with pytest.raises(ValueError, match=f"{result} shares memory with {other}") as first:
        attempt(meeting)
    attempt(apart)
    attempt(apart)
    assert len(cold) == 1
    with pytest.raises(ValueError, match="shares memory") as caught:
        attempt(meeting)
    assert str(caught.value) == str(first.value)
    assert (len(cold), len(cupy.calls)) == (1, 2), "what was refused was planned"


def test_a_warm_call_refuses_out_in_lse(cupy, cold):
    q, k, v = qkv()
    buffer = on_gpu((3, *SHAPE)).host
    out, lse = FakeArray(buffer[0]), FakeArray(buffer[1].ravel()[: 2 * 4 * 6].reshape(2, 4, 6))
    same = FakeArray(buffer[0].ravel()[: 2 * 4 * 6].reshape(2, 4, 6))
    attention(q, k, v, out=(out, lse), return_lse=True)
    attention(q, k, v, out=(out, lse), return_lse=True)
    assert len(cold) == 1
    with pytest.raises(ValueError, match="out and the lse array in out share memory"):
        attention(q, k, v, out=(out, same), return_lse=True)


def test_results_between_the_elements_of_an_input_are_warm(cupy, cold):
    _, k, v = qkv()
    both = on_gpu((2, 4, 6, 16)).host
    q, out = FakeArray(both[..., :8]), FakeArray(both[..., 8:])
    for _ in range(3):
        assert attention(q, k, v, out=out) is out
    assert len(cold) == 1
    assert len(cupy.calls) == 3
