"""Softmax on a GPU: the same problems and rules as elsewhere, real sizes, bits, streams, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import cupy_flash
from cupy_flash import accuracy, reference, unfused
from cupy_flash.unfused import cublas_problem
from gpu_runtime import captured, fill_with_nan, same_bits, spin
from layouts import OUT_LAYOUTS, strided
from problems import DTYPES
from softmaxes import (
    CAPACITIES,
    METHODS,
    SENTINEL,
    VALUES,
    SoftmaxCase,
    check_softmax,
    drawn,
    softmax_cases,
)
from strategies import own_draws

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu

EXAMPLES = 250
GIB = 2**30
every_method = pytest.mark.parametrize("method", METHODS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def upload(x: np.ndarray[Any, Any]) -> Any:
    array = cupy.asarray(x)
    # A non-blocking stream would not wait for the copy.
    cupy.cuda.Device().synchronize()
    return array


def rows_of(dtype: str, shape: tuple[int, ...], values: str = "normal") -> np.ndarray[Any, Any]:
    return drawn(shape, dtype, values, sum(shape)).astype(DTYPES[dtype])


def run(case: SoftmaxCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Run a case; return x and the result, once nothing beside the result was written."""
    placed = case.build()
    if case.out_layout is None:
        out = cupy_flash.softmax(placed.cupy(), case.axis, method=case.method)
        return placed.numpy(), cupy.asnumpy(out)
    target = strided(case.shape, DTYPES[case.dtype], case.out_layout, SENTINEL)
    given = target.cupy()
    assert cupy_flash.softmax(placed.cupy(), case.axis, method=case.method, out=given) is given
    after = target.fetch()
    assert (target.outside(after) == target.outside()).all(), "something beside out was written"
    assert placed.fetch().tobytes() == placed.buffer.tobytes(), "x changed"
    return placed.numpy(), target.numpy(after)


@every_dtype
def test_random_softmaxes_are_within_their_bounds(
    dtype: str, record_property: Callable[[str, object], None]
) -> None:
    counted: Counter[str] = Counter()
    worst = 0.0

    @own_draws(f"gpu softmax {dtype}")
    @settings(max_examples=EXAMPLES)
    @given(softmax_cases(dtype, 300_000))
    def one(case: SoftmaxCase) -> None:
        nonlocal worst
        counted.update([case.values, case.method, case.layout])
        worst = max(worst, check_softmax(*run(case), case.axis))

    one()
    record_property("drawn", f"worst error / bound {worst:.3f}: {sorted(counted.items())}")
    assert {*VALUES, *METHODS} <= set(counted)


@every_method
@every_dtype
def test_both_sides_of_every_edge(dtype: str, method: str) -> None:
    for size in CAPACITIES:
        for change in (-1, 0, 1):
            n = size // DTYPES[dtype].itemsize + change
            for layout in ("contiguous", "sliced"):
                case = SoftmaxCase((5, n), -1, dtype, method, layout, layout, seed=n)
                check_softmax(*run(case), -1)


@pytest.mark.parametrize("step", [1, 4, 32, 512, 4096, 65_536])
@every_method
@every_dtype
def test_a_maximum_that_rises_in_every_block(dtype: str, method: str, step: int) -> None:
    for n in (100, 1500, 100_000, 2**22 + 3):
        blocks = np.arange(n) // step
        x = np.random.default_rng(n).random((2, n)) + 1.5 * (blocks - blocks[-1])
        x[1] *= 0.1
        # What float16 can't hold has no weight anyway.
        x = np.maximum(x, -6e4).astype(DTYPES[dtype])
        check_softmax(x, cupy.asnumpy(cupy_flash.softmax(upload(x), method=method)), -1)


@every_method
@every_dtype
def test_rows_with_nan_and_infinity(dtype: str, method: str) -> None:
    for n in (7, 500, 100_000):
        x = rows_of(dtype, (5, n))
        x[0, n // 2] = np.nan
        x[1] = -np.inf
        x[1, -1] = np.nan
        x[2, 0] = np.inf
        x[3] = -np.inf
        x[4, : n - 1] = -np.inf
        out = cupy.asnumpy(cupy_flash.softmax(upload(x), method=method)).astype(np.float64)
        assert np.isnan(out[:3]).all()
        assert (out[3] == 0).all()
        assert (out[4, :-1] == 0).all()
        assert out[4, -1] == 1


@every_method
@every_dtype
def test_layout_rows_and_runs_change_no_bit(dtype: str, method: str) -> None:
    for n in (3, 33, 700, 5000, 15_000, 100_000):
        host = rows_of(dtype, (6, n), "x30")
        x = upload(host)
        want = cupy.asnumpy(cupy_flash.softmax(x, method=method))
        for _ in range(20):
            assert same_bits(cupy_flash.softmax(x, method=method), want), n
        for layout in (*OUT_LAYOUTS, "pitch 8"):
            placed = strided(host.shape, host.dtype, layout)
            placed.numpy()[...] = host
            assert same_bits(cupy_flash.softmax(placed.cupy(), method=method), want), (layout, n)
        for row, wanted in zip(x, want, strict=True):
            assert same_bits(cupy_flash.softmax(row, method=method), wanted), n
        many = cupy.concatenate([x] * 50)
        got = cupy.asnumpy(cupy_flash.softmax(many, method=method))
        assert got.tobytes() == want.tobytes() * 50, n
        other = upload(np.ascontiguousarray(host.T)).T
        assert same_bits(cupy_flash.softmax(other, method=method), want), n


@every_method
def test_in_place(method: str) -> None:
    for n in (5, 300, 20_000, 100_000):
        host = rows_of("float32", (7, n))
        x = upload(host)
        want = cupy.asnumpy(cupy_flash.softmax(x, method=method))
        for _ in range(2):
            again = upload(host)
            assert cupy_flash.softmax(again, method=method, out=again) is again
            assert same_bits(again, want)


@every_method
def test_on_another_stream_nothing_waits_and_the_workspace_is_not_shared(method: str) -> None:
    hosts = [rows_of("float32", (4, 100_000 + i)) for i in range(4)]
    arrays = [upload(x) for x in hosts]
    wanted = [cupy.asnumpy(cupy_flash.softmax(x, method=method)) for x in arrays]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in arrays]
    results = []
    for stream, x in zip(streams, arrays, strict=True):
        with stream:
            spin(20)
            results.append(cupy_flash.softmax(x, method=method))
            assert not stream.done, "the call waited"
    for stream, got, want in zip(streams, results, wanted, strict=True):
        stream.synchronize()
        assert same_bits(got, want)


@every_method
def test_a_graph_replays_it(method: str) -> None:
    host = rows_of("float32", (4, 100_000))
    x = upload(host)
    want = cupy.asnumpy(cupy_flash.softmax(x, method=method))
    out = cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy_flash.softmax(x, method=method, out=out)
        stream.synchronize()
        graph = captured(stream, lambda: cupy_flash.softmax(x, method=method, out=out))
        for _ in range(3):
            fill_with_nan(out)
            graph.launch(stream)
            stream.synchronize()
            assert same_bits(out, want)


def test_the_workspace_is_small() -> None:
    pool = cupy.get_default_memory_pool()
    x = cupy.zeros((4, 2**22), np.float32)
    out = cupy.empty_like(x)
    cupy_flash.softmax(x, out=out)
    pool.free_all_blocks()
    before = pool.total_bytes()
    cupy_flash.softmax(x, out=out)
    assert pool.total_bytes() - before <= 2**17


@every_method
def test_more_than_2_31_elements_in_a_row(method: str) -> None:
    n = 2**31 + 2**15 + 3
    if cupy.cuda.runtime.memGetInfo()[0] < 6 * GIB:
        pytest.skip("needs 6 GiB of GPU memory")
    x = cupy.full(n, -np.inf, np.float16)
    x[-1], x[0], x[2**31] = 1, 1, 1
    cupy_flash.softmax(x, method=method, out=x)
    third = np.float16(1 / 3)
    assert [float(x[i]) for i in (0, 2**31, n - 1)] == [float(third)] * 3
    assert int(cupy.count_nonzero(x)) == 3
    del x
    cupy.get_default_memory_pool().free_all_blocks()


@every_method
def test_more_than_2_31_elements_in_rows(method: str) -> None:
    rows, n = 2**16 + 5, 2**15 + 1
    if cupy.cuda.runtime.memGetInfo()[0] < 6 * GIB:
        pytest.skip("needs 6 GiB of GPU memory")
    x = cupy.full((rows, n), -np.inf, np.float16)
    x[:, 7] = 3
    x[-1, -1] = 3
    cupy_flash.softmax(x, method=method, out=x)
    assert bool((x[:-1, 7] == 1).all())
    assert float(x[-1, 7]) == float(x[-1, -1]) == 0.5
    assert int(cupy.count_nonzero(x)) == rows + 1
    del x
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("rows", [1, 3, 200])
@every_method
@every_dtype
def test_rows_of_millions(dtype: str, method: str, rows: int) -> None:
    n = 2**20 + 17 if rows == 200 else 2**22 + 5
    x = cupy.asarray(np.random.default_rng(0).standard_normal(n, np.float32)).astype(DTYPES[dtype])
    x = cupy.broadcast_to(x, (rows, n))
    out = cupy_flash.softmax(x, method=method)
    host, first = cupy.asnumpy(x[0]), cupy.asnumpy(out[0])
    check_softmax(host, first, -1)
    assert bool((out == out[:1]).all())


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("options", [{}, {"causal": True}])
@every_dtype
def test_standard_attention_is_attention(
    dtype: str, options: dict[str, bool], one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cublas_problem():
        pytest.skip("CuPy has no cuBLAS")
    rng = np.random.default_rng(0)
    if one_by_one:
        monkeypatch.setattr(unfused, "ONE_BY_ONE", 1)
    shapes = ((2, 6, 50, 32), (2, 2, 70, 32), (2, 2, 70, 24))
    q, k, v = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in shapes)
    exact = reference.attention(q, k, v, **options)
    out = cupy_flash.standard_attention(*map(upload, (q, k, v)), **options)
    error = np.abs(cupy.asnumpy(out).astype(exact.out.dtype) - exact.out).max()
    # cuBLAS rounds S and P to 16 bits, and q or k times the scale; scores are below 8 here.
    limit = 64 * accuracy.ROUNDING[dtype]
    assert error <= limit * float(np.abs(v).max())


def test_standard_attention_without_cublas_says_which_package_brings_it() -> None:
    if not cublas_problem():
        pytest.skip("CuPy has cuBLAS")
    x = cupy.zeros((4, 8), np.float32)
    with pytest.raises(ImportError, match="pip install nvidia-cublas"):
        cupy_flash.standard_attention(x, x, x)
