"""The exact probes on a GPU, and the visible keys of every small size."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

import cupy_flash
from probe_tools import edges
from probes import KERNEL_PROBES, Attend, check_visible_keys
from strategies import DTYPES

pytestmark = pytest.mark.gpu

KERNELS = ("naive", "simt")
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "causal, offset 0": {"causal": True, "offset": 0},
    "causal, offset -3": {"causal": True, "offset": -3},
}
# naive sums 128 columns of O at a time; simt has a kernel for each of four widths.
KERNEL_DIMS = (
    ("naive", 20, 24),
    ("naive", 300, 140),
    ("simt", 20, 24),
    ("simt", 64, 33),
    ("simt", 100, 128),
    ("simt", 256, 200),
)
LARGEST = 130
# Small problems, and both sides of the edges of warps and tiles.
SIZES = (*range(9), 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 95, 96, 97, 127, 128, 129, 130)
ALIGNMENT = 256


def upload(x: np.ndarray[Any, Any]) -> Any:
    """Copy an array with its strides and alignment; what lies in its gaps goes along."""
    import cupy

    if x.size == 0:
        return cupy.empty(x.shape, x.dtype)
    low, high = byte_bounds(x)
    span = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
    shift = low % ALIGNMENT
    memory = cupy.empty(shift + span.size, np.uint8)
    memory[shift:].set(span)
    assert memory.data.ptr % ALIGNMENT == 0
    start = memory.data + (shift + x.ctypes.data - low)
    return cupy.ndarray(x.shape, x.dtype, start, x.strides)


def on_gpu(kernel: str) -> Attend:
    def attend(*arrays: Any, **options: Any) -> Any:
        options = {
            name: upload(x) if isinstance(x, np.ndarray) else x for name, x in options.items()
        }
        out, lse = cupy_flash.attention(
            *map(upload, arrays), **options, return_lse=True, kernel=kernel
        )
        return out.get(), lse.get()

    return attend


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_visible_keys_of_every_small_size(kernel: str, mask: str) -> None:
    """Every (m, n) up to 130: one launch for each m, whose batch holds every number of keys."""
    attend = on_gpu(kernel)
    keys = np.arange(LARGEST + 1, dtype=np.int32)
    for m in range(LARGEST + 1):
        check_visible_keys(attend, m, LARGEST, k_lengths=keys, **MASKS[mask])


@pytest.mark.parametrize("kernel", KERNELS)
def test_visible_keys_of_every_small_number_of_rows(kernel: str) -> None:
    """Every pair of lengths, the rows padded as well; several heads, each with its columns."""
    attend = on_gpu(kernel)
    keys = np.arange(0, LARGEST + 1, 2, dtype=np.int32)
    for rows in range(LARGEST + 1):
        lengths = np.full_like(keys, rows)
        check_visible_keys(
            attend, LARGEST, LARGEST, width=32, causal=True, q_lengths=lengths, k_lengths=keys
        )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_visible_keys_without_lengths(kernel: str, mask: str) -> None:
    attend = on_gpu(kernel)
    for m, n in itertools.product(SIZES, SIZES):
        check_visible_keys(attend, m, n, width=32, **MASKS[mask])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_visible_keys_around_every_tile_edge(kernel: str, dtype: str) -> None:
    attend = on_gpu(kernel)
    near = edges(1027)
    keys = np.unique(np.concatenate([near, near + 1])).astype(np.int32)
    for m, causal in ((1, False), (33, True), (130, True)):
        check_visible_keys(attend, m, 1027, dtype, 256, k_lengths=keys[keys <= 1027], causal=causal)


@pytest.mark.parametrize(("kernel", "d", "p"), KERNEL_DIMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probe", KERNEL_PROBES)
def test_probe(probe: str, dtype: str, kernel: str, d: int, p: int) -> None:
    KERNEL_PROBES[probe](on_gpu(kernel), dtype, d=d, p=p, bitwise=True)
