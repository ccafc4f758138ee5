"""The exact probes on the blocked NumPy path."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

import cupy_flash
from option_probes import OPTION_PROBES
from probe_options import HIDING, hiding
from probes import PROBES, check_visible_keys
from problems import DTYPES

attend = partial(cupy_flash.attention, return_lse=True)

SIZES = (*range(10), 20, 31, 32, 33, 63, 64, 65, 128, 129, 130)
# Around the edges of the path's blocks, 256 rows and 512 keys.
LARGE = tuple(itertools.product((1, 255, 256, 257, 513), (511, 512, 513, 1025)))


@pytest.mark.parametrize("mask", HIDING)
def test_visible_keys_of_every_small_size(mask: str) -> None:
    for m, n in itertools.product(SIZES, SIZES):
        check_visible_keys(attend, m, n, **hiding(mask, m, n))


@pytest.mark.parametrize("mask", HIDING)
def test_visible_keys_around_blocks_and_columns(mask: str) -> None:
    for m, n in LARGE:
        check_visible_keys(attend, m, n, **hiding(mask, m, n))
    for width in (1, 7, 64, 200):
        check_visible_keys(attend, 50, 130, width=width, **hiding(mask, 50, 130))


@pytest.mark.parametrize("mask", HIDING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_visible_keys_with_lengths(dtype: str, mask: str) -> None:
    m, n = 21, 34
    rows = np.arange(m + 1, dtype=np.int32)[:, None]
    keys = np.arange(n + 1, dtype=np.int64)
    for lengths in (
        {"q_lengths": rows, "k_lengths": keys},
        {"q_lengths": rows[:, 0]},
        {"k_lengths": keys},
    ):
        batch = np.broadcast_shapes(*(x.shape for x in lengths.values()))
        check_visible_keys(attend, m, n, dtype, **lengths, **hiding(mask, m, n, batch))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str, dtype: str) -> None:
    PROBES[probe](attend, dtype, d=20, p=24, family=None)


def without(name):
    def forget(q, k, v, **options):
        options.pop(name, None)
        return attend(q, k, v, **options)

    return forget


def window_moved(left, right):
    def move(q, k, v, **options):
        bounds = options.get("window") or (None, None)
        moved = [
            None if bound is None else min(max(bound + by, 0), 1 << 61)
            for bound, by in zip(bounds, (left, right), strict=True)
        ]
        return attend(q, k, v, **{**options, "window": tuple(moved)})

    return move


def first_table_for_all(name):
    def share(q, k, v, **options):
        if name in options and options[name].ndim > 2:
            options[name] = options[name][(0,) * (options[name].ndim - 2)]
        return attend(q, k, v, **options)

    return share


def alibi_from_the_first_key(q, k, v, **options):
    if "alibi_slopes" not in options:
        return attend(q, k, v, **options)
    rows, keys = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    slopes = options.pop("alibi_slopes")[..., None, None]
    bias = np.asarray(options.pop("bias", 0.0), np.float64) - slopes * np.abs(rows - keys)
    return attend(q, k, v, **options, bias=bias)


def sink_in_out_alone(q, k, v, **options):
    out, lse = attend(q, k, v, **options)
    if "sinks" in options:
        _, lse = without("sinks")(q, k, v, **options)
    return out, lse


FAULTS = {
    **{
        f"no {name}": without(name) for name in ("mask", "bias", "softcap", "alibi_slopes", "sinks")
    },
    "window too far left": window_moved(1, 0),
    "window too short": window_moved(-1, 0),
    "window too far right": window_moved(0, 1),
    "the first mask for all": first_table_for_all("mask"),
    "the first bias for all": first_table_for_all("bias"),
    "ALiBi from the first key": alibi_from_the_first_key,
    "sink in out alone": sink_in_out_alone,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_probes_notice(fault: str) -> None:
    wrong = FAULTS[fault]
    found = []
    for name in HIDING:
        try:
            check_visible_keys(
                wrong, 9, 12, k_lengths=np.array([12, 5]), **hiding(name, 9, 12, (2,))
            )
        except AssertionError:
            found.append(name)
    for name, probe in OPTION_PROBES.items():
        try:
            probe(wrong, "float64", d=20, p=24, family=None)
        except AssertionError:
            found.append(name)
    assert found
