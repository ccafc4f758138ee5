"""The exact probes on the blocked NumPy path."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

import cupy_flash
from probes import PROBES, check_visible_keys
from problems import DTYPES

attend = partial(cupy_flash.attention, return_lse=True)

MASKS = {
    "none": {},
    "causal": {"causal": True},
    "causal, offset 0": {"causal": True, "offset": 0},
    "causal, offset -3": {"causal": True, "offset": -3},
    "causal, offset 5": {"causal": True, "offset": 5},
}
SIZES = (*range(41), 62, 63, 64, 65, 66, 128, 129, 130)
# Around the edges of the path's blocks, 256 rows and 512 keys.
LARGE = tuple(itertools.product((1, 255, 256, 257, 513), (511, 512, 513, 1025)))


@pytest.mark.parametrize("mask", MASKS)
def test_visible_keys_of_every_small_size(mask: str) -> None:
    for m, n in itertools.product(SIZES, SIZES):
        check_visible_keys(attend, m, n, **MASKS[mask])


@pytest.mark.parametrize("mask", MASKS)
def test_visible_keys_around_blocks_and_columns(mask: str) -> None:
    for m, n in LARGE:
        check_visible_keys(attend, m, n, **MASKS[mask])
    for width in (1, 7, 64, 200):
        check_visible_keys(attend, 50, 130, width=width, **MASKS[mask])


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_visible_keys_with_lengths(dtype: str, mask: str) -> None:
    m, n = 21, 34
    rows = np.arange(m + 1, dtype=np.int32)[:, None]
    keys = np.arange(n + 1, dtype=np.int64)
    check_visible_keys(attend, m, n, dtype, q_lengths=rows, k_lengths=keys, **MASKS[mask])
    check_visible_keys(attend, m, n, dtype, q_lengths=rows[:, 0], **MASKS[mask])
    check_visible_keys(attend, m, n, dtype, k_lengths=keys, **MASKS[mask])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str, dtype: str) -> None:
    PROBES[probe](attend, dtype, d=20, p=24, family=None)
