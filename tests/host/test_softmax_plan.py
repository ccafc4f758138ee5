"""Softmax calls on a CuPy that only remembers: launches, workspace, and what is planned once."""

from __future__ import annotations

import numpy as np
import pytest

from cupy_flash import launch, softmax, standard_attention, unfused
from fake_cupy import DriverError, installed, on_gpu

LONG = 40_000


@pytest.fixture
def fake(monkeypatch):
    yield from installed(monkeypatch)


def names(fake):
    return [call.function.name.removeprefix("cupy_flash_softmax_") for call in fake.calls]


@pytest.mark.parametrize(
    ("n", "method", "launches"),
    [
        (8, "online", ["online_row"]),
        (8, "three_pass", ["three_pass_row"]),
        (LONG, "online", ["online_reduce", "online_write"]),
        (LONG, "three_pass", ["three_pass_maximum", "three_pass_sum", "three_pass_write"]),
    ],
)
def test_each_pass_is_a_launch(fake, n, method, launches):
    x = on_gpu((3, n))
    out = softmax(x, method=method)
    assert names(fake) == launches
    for call in fake.calls:
        assert call.params["x"]["data"] == x.data.ptr
        assert call.params["o"]["data"] == out.data.ptr
        assert call.params["rows"] == 3
        assert call.params["columns"] == n
        assert (call.params["parts"] > 1) == (n == LONG)
        assert (call.params["m"]["data"] != 0) == (n == LONG)
    assert len({(int(c.params["m"]["data"]), int(c.params["l"]["data"])) for c in fake.calls}) == 1


def test_a_warm_call_compiles_and_plans_nothing(fake):
    x = on_gpu((3, LONG))
    softmax(x)
    kernels = len(fake.functions)
    again = on_gpu((3, LONG))
    out = softmax(again)
    assert len(fake.functions) == kernels
    assert fake.calls[-1].params["x"]["data"] == again.data.ptr
    assert fake.calls[-1].params["o"]["data"] == out.data.ptr
    softmax(again, method="three_pass")
    assert len(fake.functions) == kernels + 3
    softmax(again, 0)
    assert fake.calls[-1].params["columns"] == 3


def test_in_place_is_warm_and_another_overlap_is_refused(fake):
    for _ in range(2):
        x = on_gpu((3, 8))
        assert softmax(x, out=x) is x
        assert fake.calls[-1].params["o"]["data"] == x.data.ptr
    assert len(fake.functions) == 1
    y = on_gpu((3, 8))
    softmax(x, out=y)
    shifted = on_gpu((4, 8))
    first, second = (type(x)(shifted.host[rows], 0) for rows in (np.s_[:3], np.s_[1:]))
    calls = len(fake.calls)
    with pytest.raises(ValueError, match="shares memory with x"):
        softmax(first, out=second)
    assert len(fake.calls) == calls


def test_in_place_under_another_name_leaves_no_plan_for_other_overlaps(fake):
    host = on_gpu((4, 8)).host
    x, same, shifted = (type(on_gpu((1, 8)))(host[r : r + 3], 0) for r in (0, 0, 1))
    for _ in range(2):
        assert softmax(x, out=same) is same
    calls = len(fake.calls)
    with pytest.raises(ValueError, match="shares memory with x"):
        softmax(x, out=shifted)
    assert len(fake.calls) == calls


def test_a_thread_without_a_context_launches_through_rawkernel(fake):
    fake.refusing = True
    softmax(on_gpu((3, 8)))
    assert names(fake) == ["online_row"]
    assert DriverError is fake.cuda.driver.CUDADriverError


def test_a_graph_keeps_its_workspace(fake, monkeypatch):
    kept = []
    monkeypatch.setattr(launch, "_captured", kept)
    x = on_gpu((3, LONG))
    softmax(x)
    assert kept == []
    fake.capturing = True
    softmax(x)
    addresses = {int(fake.calls[-1].params[name]["data"]) for name in ("m", "l")}
    assert {memory.ptr for memory in kept[0]} == addresses


def test_nothing_is_launched_for_no_elements(fake):
    assert softmax(on_gpu((0, 8))).shape == (0, 8)
    assert softmax(on_gpu((3, 0))).shape == (3, 0)
    assert fake.calls == []


def test_arrays_of_two_places_are_refused(fake):
    x = on_gpu((3, 8))
    with pytest.raises(TypeError, match=r"softmax: .*cupy\.asarray\(out\)"):
        softmax(x, out=np.empty((3, 8), np.float32))
    with pytest.raises(ValueError, match="softmax: x is on device 0 and out on device 1"):
        softmax(x, out=on_gpu((3, 8), index=1))
    assert fake.calls == []


def test_a_capture_needs_the_kernel_first(fake):
    fake.capturing = True
    with pytest.raises(RuntimeError, match="softmax: softmax_online_row float32"):
        softmax(on_gpu((3, 8)))


def test_standard_attention_without_cublas_launches_no_softmax(fake, monkeypatch):
    monkeypatch.setattr(unfused, "cublas_problem", lambda: "needs cuBLAS: pip install it")
    x = on_gpu((3, 8))
    with pytest.raises(unfused.CublasMissing, match="pip install"):
        standard_attention(x, x, x)
    assert fake.calls == []
