"""Masks, biases, slopes and sinks whose elements lie far apart, or are very many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import cupy_flash
from far_memory import BUFFER, FAR, PERIOD, Far, cupy, demand, offsets, repeated, strides_of
from gpu_attention import assert_within_bounds
from gpu_runtime import every_kernel
from problems import DTYPES

pytestmark = pytest.mark.gpu

AXES = ("batch", "head", "row", "column")


class Flags:
    """A mask's buffer: one byte an element, so BUFFER of them pass 32 bits too."""

    def __init__(self) -> None:
        self.pattern = np.random.default_rng(1).random(PERIOD) < 0.6
        self.buffer = repeated(self.pattern, BUFFER)

    def view(self, shape: Any, strides: Any, start: int) -> Any:
        return cupy.ndarray(shape, bool, self.buffer.data + start, strides)

    def on_host(self, shape: Any, strides: Any, start: int) -> np.ndarray[Any, Any]:
        return self.pattern[offsets(shape, strides, start) % PERIOD]


@pytest.fixture(scope="module")
def flags(alone: None) -> Iterator[Flags]:
    demand(BUFFER + 2**30)
    made = Flags()
    yield made
    made.buffer = None
    cupy.get_default_memory_pool().free_all_blocks()


def drawn(dtype: str, *shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for shape in shapes]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["mask", "bias"])
@every_kernel
def test_pairs_may_lie_beyond_4_billion_elements(
    far: Far, flags: Flags, kernel: str, dtype: str, name: str, axis: str
) -> None:
    shape = [2, 2, 5, 8]
    shape[AXES.index(axis)] = 3
    strides = strides_of(tuple(shape), AXES.index(axis))
    assert offsets(shape, strides, 0).max() > 2**32
    batch, heads, m, n = shape
    q, k, v = drawn(dtype, (batch, heads, m, 16), (batch, heads, n, 16), (batch, heads, n, 16))
    if name == "mask":
        table, host = flags.view(shape, strides, 77), flags.on_host(shape, strides, 77)
    else:
        table = far.view(far.numbers, shape, strides, 77)
        host = far.on_host(shape, strides, 77)
    out, lse = cupy_flash.attention(
        *map(cupy.asarray, (q, k, v)), **{name: table}, return_lse=True, kernel=kernel
    )
    where = f"a {name} with a {axis} stride of {FAR}"
    assert_within_bounds(q, k, v, out.get(), lse.get(), kernel, where, **{name: host})


@pytest.mark.parametrize("name", ["alibi_slopes", "sinks"])
@every_kernel
def test_numbers_of_heads_may_lie_beyond_4_billion_elements(
    far: Far, kernel: str, dtype: str, name: str
) -> None:
    q, k, v = drawn(dtype, (2, 3, 5, 16), (2, 3, 8, 16), (2, 3, 8, 16))
    where = ((2, 3), (1, FAR), 99)
    host = far.on_host(*where)
    options = {name: far.view(far.numbers, *where)}
    out, lse = cupy_flash.attention(
        *map(cupy.asarray, (q, k, v)), **options, return_lse=True, kernel=kernel
    )
    assert_within_bounds(q, k, v, out.get(), lse.get(), kernel, name, **{name: host})


@pytest.mark.parametrize("broadcast", [False, True])
@every_kernel
def test_051_a_bias_of_2_billion_elements(
    far: Far, kernel: str, dtype: str, broadcast: bool
) -> None:
    """The last of 32 heads of a bias (1, 32, 8192, 8192); without a head axis the cheap variant."""
    heads, n, d = 32, 8192, 16
    start = 4096
    strides = (0, 0 if broadcast else n * n, n, 1)
    bias = far.view(far.numbers, (1, heads, n, n), strides, start)
    assert broadcast or start + offsets((heads,), (n * n,), n * n - 1).max() > 2**31
    q, k, v = drawn(dtype, *[(1, heads, n, d)] * 3)
    out, lse = cupy_flash.attention(
        *map(cupy.asarray, (q, k, v)), bias=bias, return_lse=True, kernel=kernel
    )
    for head in (0, heads - 1):
        for begin in (0, n // 2, n - 2):
            rows = slice(begin, begin + 2)
            first = start + (0 if broadcast else head * n * n) + begin * n
            own = far.on_host((2, n), (n, 1), first)
            got, row_lse = out[0, head, rows].get(), lse[0, head, rows].get()
            where = f"rows {begin} and on of head {head}"
            arrays = q[0, head, rows], k[0, head], v[0, head]
            assert_within_bounds(*arrays, got, row_lse, kernel, where, bias=own)


@every_kernel
def test_052_a_mask_of_more_than_2_billion_elements(flags: Flags, kernel: str, dtype: str) -> None:
    n, d = 46_342, 16
    assert (n - 1) * n > 2**31
    mask = flags.view((n, n), (n, 1), 0)
    q, k, v = drawn(dtype, *[(n, d)] * 3)
    out, lse = cupy_flash.attention(
        *map(cupy.asarray, (q, k, v)), mask=mask, return_lse=True, kernel=kernel
    )
    for begin in (0, n // 2, n - 2):
        rows = slice(begin, begin + 2)
        own = flags.on_host((2, n), (n, 1), begin * n)
        got, row_lse = out[rows].get(), lse[rows].get()
        where = f"rows {begin} and on"
        assert_within_bounds(q[rows], k, v, got, row_lse, kernel, where, mask=own)
