"""Sizes at the edges: nothing at all, very many heads, far apart elements, very long sequences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import launch, plan
from far_memory import FAR, Far, offsets, strides_of
from gpu_attention import assert_within_bounds, attention
from gpu_runtime import every_kernel
from problems import DTYPES, KERNEL_DTYPES, KERNELS, Case
from tolerance import check

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("entries", [65_535, 65_536, 100_000])
@pytest.mark.parametrize("axis", ["batch", "heads"])
@every_kernel
def test_every_one_of_many_heads_is_right(kernel: str, dtype: str, axis: str, entries: int) -> None:
    lead = (entries, 1) if axis == "batch" else (1, entries)
    m, n, d, p = 3, 2, 2, 3
    number = np.arange(entries).reshape(*lead, 1)
    # Each row picks one of two keys by the sign of its product; the other weighs exp(-120), nothing
    # beside 1. So each row is its key's row of v exactly, and that row says whose it is, in digits
    # that every dtype holds.
    row_sign = np.where((number >> np.arange(m)) & 1, 60.0, -60.0)
    key_sign = np.where((number // 3 + np.arange(n)) & 1, 1.0, -1.0)
    q, k = (np.zeros((*lead, rows, d), DTYPES[dtype]) for rows in (m, n))
    q[..., 1], k[..., 1] = row_sign, key_sign
    whose = (number * n + np.arange(n))[..., None]
    assert whose.max() < 128**p
    v = (whose // 128 ** np.arange(p) % 128).astype(DTYPES[dtype])
    picked = np.where(row_sign > 0, key_sign[..., 1:] > 0, key_sign[..., 1:] < 0).astype(int)
    want = np.take_along_axis(v, picked[..., None], axis=-2)
    out, lse = cupy_flash.attention(
        *map(cupy.asarray, (q, k, v)), scale=1.0, return_lse=True, kernel=kernel
    )
    wrong = np.argwhere((out.get() != want).any(axis=(-2, -1)))
    assert not len(wrong), f"{len(wrong)} heads are wrong, the first at {wrong[0]}"
    bound = 2.0**-24 * ((5 + 3 * math.sqrt(d)) * 60 + 64 + math.sqrt(n))  # that of `accuracy`
    assert np.abs(lse.get() - 60).max() <= bound


@pytest.mark.parametrize("axis", ["batch", "head", "row", "column"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_elements_may_lie_beyond_4_billion_elements(far: Far, kernel: str, axis: str) -> None:
    far_axis = ["batch", "head", "row", "column"].index(axis)
    shape = [2, 2, 5, 8]
    shape[far_axis] = 3
    shapes = {name: tuple(shape) for name in "qkv"}
    strides = strides_of(tuple(shape), far_axis)
    starts = {"q": 0, "k": 1_000, "v": 2_000}
    q, k, v = (far.view(far.numbers, shapes[x], strides, starts[x]) for x in "qkv")
    far.out.data.memset_async(0xFF, far.out.nbytes)
    out = far.view(far.out, shape, strides, 5)
    assert offsets(shape, strides, 0).max() > 2**32
    _, lse = cupy_flash.attention(q, k, v, out=(out, None), return_lse=True, kernel=kernel)
    hosts = (far.on_host(shapes[x], strides, starts[x]) for x in "qkv")
    got = far.read(offsets(shape, strides, 5))
    where = f"views with a {axis} stride of {FAR}"
    assert_within_bounds(*hosts, got, lse.get(), kernel, where)
    assert far.written() == math.prod(shape), "something beside out was written"


@pytest.mark.parametrize("kernel", KERNELS)
def test_arrays_may_have_more_than_4_billion_elements(far: Far, kernel: str) -> None:
    heads, rows, d = 16, 64, 64
    shape = (2**16 + 3, heads, rows, d)
    assert math.prod(shape) > 2**32
    strides = strides_of(shape, None)
    starts = {"q": 0, "k": 1_000, "v": 2_000}
    q, k, v = (far.view(far.numbers, shape, strides, start) for start in starts.values())
    far.out.data.memset_async(0xFF, far.out.nbytes)
    out = far.view(far.out, shape, strides, 0)
    _, lse = cupy_flash.attention(q, k, v, out=(out, None), return_lse=True, kernel=kernel)
    size = rows * d
    entries = math.prod(shape[:2])
    # Around the offsets where 31 and 32 bits end, and at both ends.
    edges = {edge // size + shift for edge in (2**31, 2**32) for shift in (-2, -1, 0, 1)}
    for entry in sorted(edges | {0, 1, entries - 2, entries - 1}):
        hosts = [far.on_host((rows, d), (d, 1), start + entry * size) for start in starts.values()]
        got = far.out[entry * size : (entry + 1) * size].get().reshape(rows, d)
        row_lse = lse.reshape(-1)[entry * rows : (entry + 1) * rows].get()
        assert_within_bounds(*hosts, got, row_lse, kernel, f"head {entry} of {entries}")
    assert far.written() == math.prod(shape), "not every element was written, or others were"


SMALL = Case(
    batch=(2,), heads=4, kv_heads=2, m=5, n=7, d=8, p=6, dtypes=("float32",) * 3, causal=True
)
EMPTY = {
    "batch": {"batch": (0,)},
    "second batch axis": {"batch": (2, 0)},
    "heads": {"heads": 0, "kv_heads": 0},
    "m": {"m": 0},
    "n": {"n": 0},
    "d": {"d": 0},
    "p": {"p": 0},
    "m and n": {"m": 0, "n": 0},
    "n and d": {"n": 0, "d": 0},
    "d and p": {"d": 0, "p": 0},
}


@pytest.mark.parametrize("axis", EMPTY)
@pytest.mark.parametrize("kernel", KERNELS)
def test_any_axis_may_be_empty(kernel: str, axis: str) -> None:
    # The smallest and the largest.
    for dtype in (KERNEL_DTYPES[kernel][0], KERNEL_DTYPES[kernel][-1]):
        arrays = replace(SMALL, dtypes=(dtype,) * 3, **EMPTY[axis]).build()
        check(arrays, *attention(arrays, kernel), kernel)


@every_kernel
def test_without_columns_and_lse_nothing_is_launched(
    kernel: str, dtype: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(launch, "kernel", lambda *args: pytest.fail("a kernel was launched"))
    arrays = replace(SMALL, p=0, dtypes=(dtype,) * 3).build()
    q, k, v = (x.cupy() for x in arrays.inputs().values())
    assert cupy_flash.attention(q, k, v, kernel=kernel).shape == (2, 4, 5, 0)


@every_kernel
def test_a_million_keys(kernel: str, dtype: str) -> None:
    n = 2**20
    arrays = Case((), None, None, m=1, n=n, d=8, p=8, dtypes=(dtype,) * 3).build()
    check(arrays, *attention(arrays, kernel), kernel)
    # A needle 60 above the rest, which weighs 2**20 exp(-60): nothing beside 1.
    q, k = (np.zeros((rows, 8), DTYPES[dtype]) for rows in (1, n))
    q[0, 3], k[-1, 3] = 60, 1
    v = arrays.v.numpy()
    out = cupy_flash.attention(*map(cupy.asarray, (q, k, v)), scale=1.0, kernel=kernel)
    assert (out.get() == v[-1:]).all(), f"got {out.get()}, the last key has {v[-1:]}"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_wide_heads_take_the_naive_kernel(dtype: str) -> None:
    case = Case((), None, None, m=70, n=90, d=1000, p=700, dtypes=(dtype,) * 3)
    explained = cupy_flash.explain(*((shape, dtype) for shape in case.shapes()))
    assert explained.kernel == "naive", explained
    arrays = replace(case, layouts=("transposed", "sliced", "unaligned")).build()
    check(arrays, *attention(arrays, None))


@every_kernel
def test_batch_axes_that_do_not_merge(kernel: str, dtype: str, monkeypatch: Any) -> None:
    batch = (2, 3, 2, 3, 2, 2)
    rng = np.random.default_rng(0)
    # q lies with its batch axes in the opposite order, so no two axes are one for all arrays.
    q, k, v = (
        rng.standard_normal(shape, np.float32).astype(DTYPES[dtype])
        for shape in ((*batch[::-1], 4, 5, 8), *[(*batch, 2, 6, 8)] * 2)
    )
    turned = (5, 4, 3, 2, 1, 0, 6, 7, 8)
    on_gpu = [cupy.asarray(q).transpose(turned), cupy.asarray(k), cupy.asarray(v)]
    q = q.transpose(turned)
    plan.forget()
    launches = []
    find = launch.kernel
    monkeypatch.setattr(launch, "kernel", lambda *args: launches.append(args) or find(*args))
    out, lse = cupy_flash.attention(*on_gpu, kernel=kernel, return_lse=True)
    assert len(launches) == batch[0] * batch[1], "one launch for each index of the outer two axes"
    assert_within_bounds(q, k, v, out.get(), lse.get(), kernel, "axes that do not merge")


def test_memory_grows_with_n_alone() -> None:
    arrays = [cupy.zeros((n, 64), np.float16) for n in (4_096, 65_536)]
    taken = []
    for x in arrays:
        pool = cupy.cuda.MemoryPool()
        with cupy.cuda.using_allocator(pool.malloc):
            results = cupy_flash.attention(x, x, x, causal=True, return_lse=True)
            cupy.cuda.Device().synchronize()
            taken.append(pool.total_bytes())
            assert taken[-1] == sum(result.nbytes for result in results)
            del results
    assert taken[1] == 16 * taken[0]
