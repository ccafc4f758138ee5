"""Sizes at the edges: nothing at all, very many heads, far apart elements, very long sequences."""

from __future__ import annotations

import fcntl
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import cupy_flash
from cupy_flash import accuracy, launch, plan, reference
from gpu_attention import attention
from gpu_runtime import every_kernel
from problems import DTYPES, KERNEL_DTYPES, KERNELS, Case
from tolerance import check

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


def release() -> None:
    cupy.get_default_memory_pool().free_all_blocks()


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
    bound = 2.0**-24 * ((4 + 3 * math.sqrt(d)) * 60 + 64 + math.sqrt(n))  # that of `accuracy`
    assert np.abs(lse.get() - 60).max() <= bound


# One buffer of 16-bit numbers, long enough for three steps of FAR.
FAR = 2**31 + 8
BUFFER = 2**32 + 2**21
# A prime: an offset that lost its 32nd bit, or was taken modulo 2**32, finds other numbers.
PERIOD = 1_000_003
FLOAT16 = np.dtype(np.float16)


@dataclass
class Far:
    """q, k and v are views of one buffer of known numbers, out of one buffer of NaN."""

    pattern: np.ndarray[Any, Any]
    numbers: Any
    out: Any

    def view(self, buffer: Any, shape: Any, strides: Any, start: int) -> Any:
        return cupy.ndarray(
            shape,
            FLOAT16,
            buffer.data + start * FLOAT16.itemsize,
            tuple(stride * FLOAT16.itemsize for stride in strides),
        )

    def on_host(self, shape: Any, strides: Any, start: int) -> np.ndarray[Any, Any]:
        return self.pattern[offsets(shape, strides, start) % PERIOD]

    def written(self) -> int:
        """Count the elements of out that aren't NaN; CuPy never indexes more than 2**30 at once."""
        words = self.out.view(np.uint16)
        parts = (words[begin : begin + 2**30] for begin in range(0, BUFFER, 2**30))
        return sum(int(cupy.count_nonzero(part != 0xFFFF)) for part in parts)

    def read(self, where: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Fetch elements of out by their offsets, each by itself: CuPy's indexing isn't tested."""
        values = [self.out[i : i + 1].get()[0] for i in where.ravel().tolist()]
        return np.array(values, FLOAT16).reshape(where.shape)


def offsets(shape: Any, strides: Any, start: int) -> np.ndarray[Any, Any]:
    total = np.full(shape, start, np.int64)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        total += steps.reshape((-1,) + (1,) * (len(shape) - 1 - axis))
    return total


def strides_of(shape: tuple[int, ...], far_axis: int | None) -> tuple[int, ...]:
    """Return C-order element strides, except of the axis whose elements lie FAR apart."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = FAR if axis == far_axis else step
        step *= 1 if axis == far_axis else shape[axis]
    return tuple(strides)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let one test process at a time hold the large buffers."""
    with open(tmp_path_factory.getbasetemp().parent / "large_buffers.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def far(alone: None) -> Iterator[Far]:
    free = cupy.cuda.runtime.memGetInfo()[0] + cupy.get_default_memory_pool().free_bytes()
    needed = 2 * BUFFER * FLOAT16.itemsize + 2**30
    if free < needed:
        pytest.skip(f"needs {needed:,} bytes of GPU memory, {free:,} are free")
    pattern = np.random.default_rng(0).standard_normal(PERIOD, np.float32).astype(FLOAT16)
    numbers = cupy.empty(BUFFER, FLOAT16)
    numbers[:PERIOD] = cupy.asarray(pattern)
    filled = PERIOD
    while filled < BUFFER:
        more = min(filled, BUFFER - filled)
        numbers[filled : filled + more] = numbers[:more]
        filled += more
    buffers = Far(pattern, numbers, cupy.empty(BUFFER, FLOAT16))
    del numbers
    yield buffers
    buffers.numbers = buffers.out = None
    release()


def assert_within_bounds(
    q: Any, k: Any, v: Any, out: Any, lse: Any, kernel: str, where: str
) -> None:
    exact = reference.attention(q, k, v)
    scale, dtype = reference.default_scale(q.shape[-1]), out.dtype.name
    bound = accuracy.out_bound(exact, dtype, q, k, v, scale, kernel)
    compared = accuracy.compare(out, exact.out, bound)
    assert compared.ok, f"out of {where}: {compared}"
    compared = accuracy.compare(lse, exact.lse, accuracy.lse_bound(exact, dtype, q, k, scale))
    assert compared.ok, f"lse of {where}: {compared}"


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
