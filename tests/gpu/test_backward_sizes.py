"""Gradients of larger problems, of many small ones, and beyond 32 bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import reference
from far_memory import FAR, FLOAT16, Far, cupy, demand, offsets, strides_of
from gpu_runtime import every_fast_kernel
from gradient_paths import QKV, assert_right
from gradient_statistics import check_statistics
from problems import DTYPES, KERNELS

pytestmark = pytest.mark.gpu

ACCURATE = [
    *itertools.product(("sm80", "simt"), ("float16", "bfloat16")),
    ("simt", "float32"),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("n", [512, 1000, 2048, 4096])
@pytest.mark.parametrize(("kernel", "dtype"), ACCURATE)
def test_errors_are_those_of_an_unfused_computation(
    kernel: str,
    dtype: str,
    n: int,
    d: int,
    causal: bool,
    record_property: Callable[[str, object], None],
) -> None:
    rng = np.random.default_rng(n + d)
    shapes = (2, n, d), (2, n, d), (1, n, d), (1, n, d)
    arrays = [rng.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for shape in shapes]
    do, q, k, v = map(cupy.asarray, arrays)
    options = {"causal": causal, "kernel": kernel}
    o, lse = cupy_flash.attention(q, k, v, return_lse=True, **options)
    found = cupy_flash.attention_backward(do, q, k, v, o, lse, **options)
    numbers = {
        name: cupy.asarray(x.get().astype(np.float32)) for name, x in zip(QKV, found, strict=True)
    }
    given = [cupy.asarray(x.astype(np.float32)) for x in arrays]
    ratios = check_statistics(cupy, numbers, given, dtype, 1 / np.sqrt(d), causal)
    text = ", ".join(f"d{name} {a:.2f} {b:.2f}" for name, (a, b) in ratios.items())
    record_property("drawn", f"largest and rms error over the baseline's: {text}")


def on_gpu(dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(3)
    # CuPy's bfloat16 comes from the host; blocks of numbers repeat, so that it takes no minutes.
    arrays = []
    for shape in shapes:
        block = rng.standard_normal((257, *shape[1:]), np.float32).astype(dtype)
        arrays.append(cupy.resize(cupy.asarray(block).view(f"u{block.itemsize}"), shape))
    return [x.view(dtype) for x in arrays]


# Entries, heads, rows and columns: more than 65,535 batch * heads, and products beyond 32 bits.
MANY = {
    "092, many short sequences": (8300, 16, 1, 128),
    "093, many small sequences": (1600, 16, 729, 72),
    "096, many entries": (100_000, 1, 10, 16),
    "096, many entries and heads": (65_536, 8, 4, 64),
    "096, entries alone": (262_144, 1, 1, 40),
}


@pytest.mark.parametrize("name", MANY)
@every_fast_kernel
def test_many_small_problems(alone: None, kernel: str, dtype: str, name: str) -> None:
    shape = MANY[name]
    if dtype == "float32" and shape[2] == 729:
        shape = (400, *shape[1:])
    demand(12 * int(np.prod(shape)) * DTYPES[dtype].itemsize)
    do, q, k, v = on_gpu(DTYPES[dtype], *[shape] * 4)
    o, lse = cupy_flash.attention(q, k, v, causal=True, return_lse=True, kernel=kernel)
    found = cupy_flash.attention_backward(do, q, k, v, o, lse, causal=True, kernel=kernel)
    last = shape[0] - 1
    for entry in sorted({0, 1, last // 2, last - 1, last, min(65_535, last), min(65_536, last)}):
        own = np.s_[entry, -1:]
        arrays = tuple(x[own].get() for x in (do, q, k, v))
        part = {n: x[own].get() for n, x in zip(QKV, found, strict=True)}
        assert_right(part, arrays, {"causal": True}, kernel)
    del do, q, k, v, o, lse, found
    cupy.get_default_memory_pool().free_all_blocks()


@every_fast_kernel
def test_a_quarter_of_a_million_keys(kernel: str, dtype: str) -> None:
    """Rows that see few keys of many, at both ends of the keys."""
    n, d = 2**18 + 1, 64
    do, q, k, v = on_gpu(DTYPES[dtype], *[(n, d)] * 4)
    options = {"window": (100, 0)}
    o, lse = cupy_flash.attention(q, k, v, return_lse=True, kernel=kernel, **options)
    found = cupy_flash.attention_backward(do, q, k, v, o, lse, kernel=kernel, **options)
    for begin in (0, 2**17, n - 400):
        part = slice(begin, begin + 400)
        arrays = tuple(x[part].get() for x in (do, q, k, v))
        # Rows from 100 on, and keys up to 300, have all that they see, or that sees them, here.
        exact = reference.attention_backward(*arrays, **options)
        for name, x in zip(QKV, found, strict=True):
            inner = np.s_[101:] if name == "q" else np.s_[101:299]
            want = getattr(exact, name)[inner].astype(float)
            few = 2.0**-6 if dtype != "float32" else 2.0**-16
            np.testing.assert_allclose(
                x[part].get()[inner].astype(float), want, rtol=few, atol=few * np.abs(want).max()
            )


@pytest.mark.parametrize("axis", ["batch", "head", "row", "column"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_elements_may_lie_beyond_4_billion_elements(far: Far, kernel: str, axis: str) -> None:
    far_axis = ["batch", "head", "row", "column"].index(axis)
    shape = [2, 2, 5, 8]
    shape[far_axis] = 3
    strides = strides_of(tuple(shape), far_axis)
    assert offsets(shape, strides, 0).max() > 2**32
    starts = {"do": 0, "q": 1_000, "k": 2_000, "v": 3_000}
    views = [far.view(far.numbers, shape, strides, start) for start in starts.values()]
    hosts = tuple(far.on_host(shape, strides, start) for start in starts.values())
    far.out.data.memset_async(0xFF, far.out.nbytes)
    places = {"q": 5, "k": 1_005, "v": 2_005}
    out = tuple(far.view(far.out, shape, strides, start) for start in places.values())
    o, lse = cupy_flash.attention(*views[1:], return_lse=True, kernel=kernel)
    do, q, k, v = views
    cupy_flash.attention_backward(do, q, k, v, o, lse, out=out, kernel=kernel)
    found = {name: far.read(offsets(shape, strides, start)) for name, start in places.items()}
    assert all(x.dtype == FLOAT16 for x in found.values())
    assert_right(found, hosts, {}, kernel)
    assert far.written() == 3 * int(np.prod(shape)), f"stride {FAR}: something else was written"


def test_the_workspace_is_linear_in_n() -> None:
    def size(n: int, wrt: tuple[str, ...] = QKV, dtype: str = "float16", **options: Any) -> int:
        x = (2, 4, n, 64), dtype
        return cupy_flash.workspace_size(x, x, x, wrt=wrt, **options)

    assert size(1 << 20) <= 1024 * size(1 << 10) + 4096
    everything = (*QKV, "scale", "alibi_slopes", "sinks")
    numbers = {"alibi_slopes": ((4,), "float32"), "sinks": ((4,), "float32")}
    assert (
        size(1 << 20, everything, **numbers) <= 1024 * size(1 << 10, everything, **numbers) + 4096
    )
    n = 1 << 12
    # A shared bias of 16 bits is summed in a float32 array, but for sm80's in registers.
    shared = {"bias": ((n, n), "float16"), "kernel": "simt"}
    assert 4 * n * n <= size(n, ("bias",), **shared) <= 4 * n * n + size(n) + 4096
    assert size(n, ("bias",), bias=((n, n), "float16")) <= 64 * 8 * n
    for shape, dtype in (((n, n), "float32"), ((2, 4, n, n), "float16"), ((n,), "float16")):
        assert size(n, ("bias",), bias=(shape, dtype)) <= 64 * 8 * n


@every_fast_kernel
def test_a_call_takes_its_results_and_the_workspace_alone(kernel: str, dtype: str) -> None:
    for n in (4_096, 16_384):
        x = cupy.zeros((n, 64), DTYPES[dtype])
        o, lse = cupy_flash.attention(x, x, x, return_lse=True, kernel=kernel)
        cupy_flash.attention_backward(x, x, x, x, o, lse, kernel=kernel)
        size = cupy_flash.workspace_size(x, x, x, kernel=kernel)
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            found = cupy_flash.attention_backward(x, x, x, x, o, lse, kernel=kernel)
            cupy.cuda.Device().synchronize()
            sizes = (*(gradient.nbytes for gradient in found), size)
            assert pool.total_bytes() == sum(-(-part // 512) * 512 for part in sizes)
            del found
