"""Compiling and launching, with a CuPy that only remembers what it was asked for."""

from __future__ import annotations

import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cupy_flash import CompileError, attention, compile, device
from cupy_flash.arrays import planned, to_dtype
from cupy_flash.options import check_options
from cupy_flash.problem import make_problem
from cupy_flash.select import DEFAULT_SHARED_MEMORY, choose
from cupy_flash.source import source
from fake_cupy import LOG, CompileException, FakeArray, installed


@pytest.fixture
def cupy(monkeypatch):
    yield from installed(monkeypatch)


def variant_of(d=64, dtype="float32", **options):
    x = planned((2, 3, 33, d), to_dtype(dtype))
    return choose(make_problem(x, x, x, check_options(**options)), device.assumed(90)).variant


def on_gpu(*shapes, dtype=np.float32, index=0):
    return [FakeArray(np.zeros(shape, dtype), index) for shape in shapes]


def test_one_text_with_one_option_tuple_is_compiled(cupy):
    variant = variant_of()
    function = compile.kernel(variant, 0)
    # wgmma, by which float32 is multiplied there, is in no other target.
    options = ("--std=c++17", "-arch=sm_90a")
    assert cupy.modules == [{"code": source(variant), "options": options}]
    assert function.name == variant.entry
    assert compile.kernel(variant, 0) is function
    assert len(cupy.modules) == 1


def test_only_more_than_48_kib_of_shared_memory_opts_in(cupy):
    variants = [
        variant_of(d, dtype, kernel=kernel)
        for d in (32, 64, 128, 256)
        for dtype in ("float32", "float64")
        for kernel in ("naive", "simt")
    ]
    above = [variant for variant in variants if variant.shared_memory > DEFAULT_SHARED_MEMORY]
    assert 0 < len(above) < len(variants)
    for variant in variants:
        wanted = variant.shared_memory if variant in above else None
        assert compile.kernel(variant, 0).max_dynamic_shared_size_bytes == wanted


@pytest.mark.parametrize("more", [0, 1])
def test_exactly_48_kib_needs_no_opt_in(cupy, monkeypatch, more):
    variant = variant_of()
    monkeypatch.setattr(type(variant), "shared_memory", DEFAULT_SHARED_MEMORY + more)
    function = compile.kernel(variant, 0)
    wanted = DEFAULT_SHARED_MEMORY + 1 if more else None
    assert function.max_dynamic_shared_size_bytes == wanted


def test_each_device_loads_its_own_kernel(cupy):
    variant = variant_of()
    assert compile.kernel(variant, 0) is not compile.kernel(variant, 1)
    assert len(cupy.modules) == 2


def test_a_refusal_of_nvrtc_says_what_was_compiled_and_with_what(cupy):
    cupy.broken = True
    variant = variant_of(causal=True)
    with pytest.raises(CompileError) as caught:
        compile.kernel(variant, 0)
    error = caught.value
    options = compile.options_of(variant)
    assert (error.variant, error.options, error.nvrtc) == (str(variant), options, "12.9")
    assert error.log == LOG
    assert isinstance(error.__cause__, CompileException)
    for word in (str(variant), "NVRTC 12.9", "--std=c++17", LOG, "python -m cupy_flash info"):
        assert word in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.log) == (str(error), error.log)


def test_an_unusable_cache_of_cupy_names_the_way_out(cupy, monkeypatch):
    def refuse(name):
        raise PermissionError(13, "Permission denied", "/read/only/kernel_cache")

    monkeypatch.setattr(cupy, "get_function", refuse)
    with pytest.raises(CompileError, match=r"/read/only/kernel_cache'\n.*set CUPY_CACHE_DIR"):
        compile.kernel(variant_of(), 0)


def test_after_a_failure_the_next_call_compiles_again(cupy):
    cupy.broken = True
    with pytest.raises(CompileError):
        compile.kernel(variant_of(), 0)
    cupy.broken = False
    assert compile.kernel(variant_of(), 0).name == "cupy_flash_forward_simt"
    assert len(cupy.modules) == 2


def test_sixteen_threads_compile_once(cupy):
    barrier = threading.Barrier(16)
    # Hold the first compilation until the others had time to start one.
    cupy.while_compiling = lambda: threading.Event().wait(0.05)

    def call(_):
        barrier.wait(10)
        return compile.kernel(variant_of(), 0)

    with ThreadPoolExecutor(16) as pool:
        functions = list(pool.map(call, range(16)))
    assert len(cupy.modules) == 1
    assert len({id(function) for function in functions}) == 1


def test_different_kernels_compile_at_the_same_time(cupy):
    both_compile = threading.Barrier(2)
    cupy.while_compiling = lambda: both_compile.wait(10)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda d: compile.kernel(variant_of(d), 0), (64, 128)))
    assert len(cupy.modules) == 2


def test_a_capturing_stream_compiles_nothing(cupy):
    cupy.capturing = True
    with pytest.raises(RuntimeError, match=r"being captured.*same call once before the capture"):
        compile.kernel(variant_of(), 0)
    assert cupy.modules == []
    cupy.capturing = False
    function = compile.kernel(variant_of(), 0)
    cupy.capturing = True
    assert compile.kernel(variant_of(), 0) is function


def test_a_compilation_is_logged_and_a_warm_call_is_not(cupy, caplog):
    caplog.set_level(logging.INFO, logger="cupy_flash")
    variant = variant_of()
    compile.kernel(variant, 0)
    first, second = caplog.records
    assert {first.name, second.name} == {"cupy_flash"}
    assert first.getMessage().startswith(f"compiling {variant}")
    assert f"compiled {variant} in " in second.getMessage()
    assert f"128 registers, {variant.shared_memory} bytes" in second.getMessage()
    compile.kernel(variant, 0)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("kernel", ["naive", "simt"])
def test_a_launch(cupy, kernel):
    q, k, v = on_gpu((2, 6, 70, 40), (2, 3, 50, 40), (2, 3, 50, 24))
    out, lse = attention(q, k, v, causal=True, return_lse=True, kernel=kernel)
    (call,) = cupy.calls
    assert call.function.name == f"cupy_flash_forward_{kernel}"
    rows, threads = (4, 128) if kernel == "naive" else (128, 384)
    assert call.grid == (-(-70 // rows) * 6 * 2, 1, 1)
    assert call.block == (threads, 1, 1)
    assert (call.shared_mem > 0) == (kernel == "simt")
    for name, array in {"q": q, "k": k, "v": v, "o": out, "lse": lse}.items():
        assert call.params[name]["data"] == array.data.ptr
    assert (out.shape, lse.shape) == ((2, 6, 70, 24), (2, 6, 70))
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize(
    ("dtype", "lse_dtype"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64")],
)
def test_results_are_allocated_in_qs_memory_order(cupy, dtype, lse_dtype):
    x = FakeArray(np.zeros((2, 9, 3, 8), to_dtype(dtype)).swapaxes(1, 2))
    out, lse = attention(x, x, x, return_lse=True)
    assert out.dtype == to_dtype(dtype)
    assert lse.dtype == lse_dtype
    assert out.host.swapaxes(1, 2).flags.c_contiguous
    strides = [int(cupy.calls[0].params["o"][name]) for name in ("head", "row", "column")]
    assert strides == [8, 24, 1]


def test_given_results_are_written_in_place(cupy):
    q, k, v, out = on_gpu((5, 8), (7, 8), (7, 8), (5, 8))
    assert attention(q, k, v, out=out) is out
    (call,) = cupy.calls
    assert call.params["o"]["data"] == out.data.ptr
    assert call.params["lse"]["data"] == 0


def test_lengths_stay_on_the_device(cupy):
    q, k, v = on_gpu((2, 5, 8), (2, 7, 8), (2, 7, 8))
    (lengths,) = on_gpu((2,), dtype=np.int64)
    attention(q, k, v, k_lengths=lengths)
    params = cupy.calls[0].params
    assert params["k_lengths"]["data"] == lengths.data.ptr
    assert params["q_lengths"]["data"] == 0


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("index", [0, 1])
def test_arrays_decide_the_device_and_the_current_one_stays(cupy, current, index):
    cupy.current = current
    q, k, v = on_gpu((5, 8), (7, 8), (7, 8), index=index)
    out = attention(q, k, v)
    assert out.index == index
    assert cupy.calls[0].function.loaded_on == index
    assert cupy.current == current
    cupy.broken = True
    with pytest.raises(CompileError):
        attention(q, k, v, causal=True)
    assert cupy.current == current


def test_many_batch_axes_are_several_launches_of_one_kernel(cupy):
    wide = FakeArray(np.zeros((4,) * 6 + (1, 2, 3))[::2, ::2, ::2, ::2, ::2, ::2])
    out = attention(wide, wide, wide)
    assert len(cupy.modules) == 1
    pointers = [int(call.params["q"]["data"]) for call in cupy.calls]
    assert len(set(pointers)) == len(pointers) > 1
    assert {int(call.params["m"]) for call in cupy.calls} == {2}
    assert out.shape == (2,) * 6 + (1, 2, 3)


@pytest.mark.parametrize(
    ("q", "k"), [((0, 8), (7, 8)), ((0, 2, 5, 8), (0, 2, 7, 8)), ((2, 0, 5, 8), (2, 0, 7, 8))]
)
def test_empty_results_compile_and_launch_nothing(cupy, q, k):
    out, lse = attention(*on_gpu(q, k, k), return_lse=True)
    assert (out.shape, lse.shape) == (q, q[:-1])
    assert cupy.modules == cupy.calls == []


def test_a_refused_kernel_compiles_nothing(cupy):
    x, wide = on_gpu((5, 8), (5, 300))
    for arrays, kernel in (((x, x, x), "sm90"), ((wide, wide, x), "simt")):
        with pytest.raises(ValueError, match=f"kernel='{kernel}' can't compute this call"):
            attention(*arrays, kernel=kernel)
    assert cupy.modules == cupy.calls == []


def test_equal_kinds_share_a_kernel_and_other_kinds_do_not(cupy):
    for m, d in ((5, 33), (70, 48), (700, 64)):
        attention(*on_gpu((2, m, d), (2, m + 1, d), (2, m + 1, 40)))
    assert len(cupy.modules) == 1
    attention(*on_gpu((5, 40), (7, 40), (7, 40)), causal=True)
    assert len(cupy.modules) == 2
