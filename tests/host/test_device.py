"""What the selection knows of a GPU, and the options that follow: who has wgmma, whose float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from backward_variants import PASSES, variant
from cupy_flash import (
    CompileError,
    PerformanceWarning,
    attention,
    attention_backward,
    compile,
    device,
)
from cupy_flash.arrays import planned, to_dtype
from cupy_flash.backward.select import with_tile
from cupy_flash.backward.variant import StatisticsVariant, SumVariant
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.select import choose
from fake_cupy import FakeArray, installed

ARCHS = tuple(device._KNOWN)
GROUPS = ("--std=c++17", "-arch=sm_90a")


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.delenv("CUPY_COMPILE_WITH_PTX", raising=False)
    yield from installed(monkeypatch)


def become(cupy, arch, nvrtc=(12, 9)):
    """Make the fake's GPUs ones of another compute capability, and its NVRTC another one."""
    cupy.cuda.runtime.getDeviceProperties(0).update(major=arch // 10, minor=arch % 10)
    cupy.cuda.nvrtc.getVersion = lambda: nvrtc


def of_keys(arch=90, d=64, dtype="float16", what="kv", options="plain"):
    """Return a pass of the backward pass, with the tile of a GPU that is assumed."""
    family = "sm80" if dtype.endswith("float16") else "simt"
    row = {"dtypes": (dtype,) * 3, "d": d, "p": d, "pass": what, "options": options, "arch": arch}
    return variant(family, row)


def test_an_actual_gpu_is_what_the_runtime_says(cupy):
    found = device.actual(0)
    assert found == device.Device(90, "NVIDIA H200", 232_448, 132, warpgroups=True)


@pytest.mark.parametrize(
    ("nvrtc", "has"),
    [((11, 8), False), ((12, 0), False), ((12, 8), False), ((12, 9), True), ((13, 0), True)],
)
def test_warpgroups_want_an_nvrtc_that_takes_two_targets(cupy, nvrtc, has):
    become(cupy, 90, nvrtc)
    assert device.actual(0).warpgroups is has


@pytest.mark.parametrize(("value", "has"), [("", True), ("0", True), ("1", False)])
def test_warpgroups_want_cupy_to_compile_to_machine_code(cupy, monkeypatch, value, has):
    monkeypatch.setenv("CUPY_COMPILE_WITH_PTX", value)
    assert device.actual(0).warpgroups is has


@pytest.mark.parametrize("arch", ARCHS)
def test_no_other_gpu_has_warpgroups(cupy, arch):
    become(cupy, arch)
    assert device.actual(0).arch == arch
    assert device.actual(0).warpgroups is (arch == 90)
    assert device.assumed(arch).warpgroups is (arch == 90)


@pytest.mark.parametrize("arch", [70, *ARCHS, 87, 103, 121])
def test_float64_is_multiplied_on_tensor_cores_where_they_are_faster(cupy, arch):
    become(cupy, arch)
    assert device.actual(0).float64_matrix is (arch in (80, 90))
    if arch in ARCHS:
        assert device.assumed(arch).float64_matrix is (arch in (80, 90))


# What kernels are compiled with.


@pytest.mark.parametrize("what", PASSES)
@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 120])
def test_kernels_of_groups_alone_are_compiled_for_sm_90a(arch, what):
    for d, options in (
        (64, "plain"),
        (96, "causal"),
        (128, "pairs"),
        (32, "plain"),
        (256, "plain"),
    ):
        chosen = of_keys(arch, d, what=what, options=options)
        assert chosen.tile.groups == (arch == 90 and d in (64, 96, 128))
        assert compile.options_of(chosen) == (GROUPS if chosen.tile.groups else compile.OPTIONS)


@pytest.mark.parametrize("arch", [80, 86, 90, 100])
@pytest.mark.parametrize("d", [24, 64, 128, 200])
def test_float32_is_compiled_for_sm_90a_where_warpgroups_multiply_it(arch, d):
    x = planned((33, d), to_dtype("float32"))
    variant = choose(make_problem(x, x, x, check_options()), device.assumed(arch)).variant
    assert variant.tile.groups == (arch == 90 and d <= 128)
    assert compile.options_of(variant) == (GROUPS if variant.tile.groups else compile.OPTIONS)


def test_a_gpu_whose_nvrtc_is_older_gets_other_kernels(cupy):
    chosen = of_keys()
    assert chosen.tile.groups
    become(cupy, 90, (12, 8))
    other = with_tile(chosen, device.actual(0))
    assert not other.tile.groups
    assert compile.options_of(other) == compile.OPTIONS
    become(cupy, 90, (12, 9))
    device.actual.cache_clear()
    device.nvrtc_version.cache_clear()
    assert with_tile(chosen, device.actual(0)) == chosen


def test_other_kernels_of_sm_90_have_one_set_of_options():
    variants = [
        of_keys(dtype="float64"),
        StatisticsVariant(90, "float16", None, 8, True),
        SumVariant(90, "float32", "float32", True),
    ]
    for dtype in ("float16", "float64"):
        x = planned((33, 64), to_dtype(dtype))
        problem = make_problem(x, x, x, check_options())
        variants.append(choose(problem, device.assumed(90)).variant)
    for one in variants:
        assert compile.options_of(one) == compile.OPTIONS


def test_cupy_is_given_the_options_and_a_refusal_names_them(cupy):
    chosen = of_keys()
    compile.kernel(chosen, 0)
    assert cupy.modules[-1]["options"] == GROUPS
    cupy.broken = True
    with pytest.raises(CompileError) as caught:
        compile.kernel(of_keys(what="k"), 0)
    assert caught.value.options == GROUPS
    assert "-arch=sm_90a" in str(caught.value)


@pytest.fixture
def without_warpgroups(cupy):
    """A Hopper GPU whose CuPy can't compile for sm_90a."""
    become(cupy, 90, (12, 4))
    device.warn_of_missing_warpgroups.cache_clear()
    yield cupy
    device.warn_of_missing_warpgroups.cache_clear()


def on_gpu(dtype, d=64):
    return FakeArray(np.zeros((1, 2, 16, d), to_dtype(dtype)), 0)


def test_who_would_have_warpgroups_by_another_nvrtc_is_warned_once(without_warpgroups):
    x = on_gpu("float32")
    with pytest.warns(PerformanceWarning, match=r"12\.9 or newer, CuPy has loaded 12\.4") as caught:
        attention(x, x, x)
    assert caught[0].filename == __file__
    # pytest makes errors of warnings.
    attention(x, x, x, causal=True)


def test_gradients_warn_too(without_warpgroups):
    x = on_gpu("float16")
    lse = FakeArray(np.zeros((1, 2, 16), np.float32), 0)
    with pytest.warns(PerformanceWarning, match="CUPY_COMPILE_WITH_PTX unset") as caught:
        attention_backward(x, x, x, x, x, lse)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("dtype", "d"), [("float64", 64), ("float16", 64), ("float32", 256)])
def test_who_would_not_isn_t(without_warpgroups, dtype, d):
    x = on_gpu(dtype, d)
    attention(x, x, x)


def test_other_gpus_lack_nothing(cupy):
    for arch in (80, 89, 100):
        assert device.assumed(arch).with_warpgroups is None
    assert device.assumed(90).with_warpgroups is None
    become(cupy, 90, (12, 8))
    found = device.actual(0)
    assert found.with_warpgroups == dataclasses.replace(found, warpgroups=True)
