"""The exact probes on a GPU, and the visible keys of every small size."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from numpy.lib.array_utils import byte_bounds

import cupy_flash
from probe_options import HIDING, hiding
from probe_tools import edges
from probes import KERNEL_PROBES, Attend, check_visible_keys
from problems import KERNEL_DTYPES, KERNELS_AND_DTYPES, ONE_DTYPE

pytestmark = pytest.mark.gpu

# naive sums 128 columns of O at a time; simt has a kernel for each of four widths, sm80 of six, and
# copies (20, 24) in units of 4 bytes, (64, 33) of 2 and the others of 16.
KERNEL_DIMS = {
    "naive": ((20, 24), (300, 140)),
    "simt": ((20, 24), (64, 33), (100, 128), (256, 200)),
    "sm80": ((20, 24), (64, 33), (96, 128), (256, 200)),
}
EVERY_PROBE = [
    (probe, dtype, kernel, d, p)
    for kernel, dims in KERNEL_DIMS.items()
    for d, p in dims
    for dtype in KERNEL_DTYPES[kernel]
    for probe in KERNEL_PROBES
]
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


@pytest.mark.parametrize("mask", HIDING)
@pytest.mark.parametrize(("kernel", "dtype"), ONE_DTYPE.items())
def test_visible_keys_of_every_small_size(kernel: str, dtype: str, mask: str) -> None:
    """Every (m, n) up to 130: one launch for each m, whose batch holds every number of keys."""
    attend = on_gpu(kernel)
    keys = np.arange(LARGEST + 1, dtype=np.int32)
    for m in range(LARGEST + 1):
        options = hiding(mask, m, LARGEST, keys.shape)
        check_visible_keys(attend, m, LARGEST, dtype, k_lengths=keys, **options)


@pytest.mark.parametrize(("kernel", "dtype"), ONE_DTYPE.items())
def test_visible_keys_of_every_small_number_of_rows(kernel: str, dtype: str) -> None:
    """Every pair of lengths, the rows padded as well; several heads, each with its columns."""
    attend = on_gpu(kernel)
    keys = np.arange(0, LARGEST + 1, 2, dtype=np.int32)
    for rows in range(LARGEST + 1):
        lengths = {"q_lengths": np.full_like(keys, rows), "k_lengths": keys}
        check_visible_keys(attend, LARGEST, LARGEST, dtype, width=32, causal=True, **lengths)


@pytest.mark.parametrize("mask", HIDING)
@pytest.mark.parametrize(("kernel", "dtype"), ONE_DTYPE.items())
def test_visible_keys_without_lengths(kernel: str, dtype: str, mask: str) -> None:
    attend = on_gpu(kernel)
    for m, n in itertools.product(SIZES, SIZES):
        check_visible_keys(attend, m, n, dtype, width=32, **hiding(mask, m, n))


@pytest.mark.parametrize(("kernel", "dtype"), KERNELS_AND_DTYPES)
def test_visible_keys_around_every_tile_edge(kernel: str, dtype: str) -> None:
    attend = on_gpu(kernel)
    near = edges(1027)
    keys = np.unique(np.concatenate([near, near + 1])).astype(np.int32)
    keys = keys[keys <= 1027]
    entries = np.arange(1027) % np.arange(2, 2 + len(keys))[:, None] > 0
    for m, options in (
        (1, {}),
        (33, {"causal": True}),
        (130, {"causal": True}),
        (33, {"window": (64, 0)}),
        (130, {"window": (200, 31)}),
        (130, {"window": (None, 63), "offset": 129}),
        (33, {"mask": entries[:, None, None]}),
    ):
        check_visible_keys(attend, m, 1027, dtype, 256, k_lengths=keys, **options)


@pytest.mark.parametrize(("probe", "dtype", "kernel", "d", "p"), EVERY_PROBE)
def test_probe(probe: str, dtype: str, kernel: str, d: int, p: int) -> None:
    KERNEL_PROBES[probe](on_gpu(kernel), dtype, d=d, p=p, family=kernel)
