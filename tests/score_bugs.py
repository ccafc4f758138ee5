"""Bugs around windows, softcap, ALiBi, sinks and the size of scores; see `bugcases`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bugcases import Path, assert_empty, bug
from cupy_flash import accuracy


@bug(5)
def a_chunk_of_which_a_row_sees_nothing(path: Path) -> None:
    q, k, v = path.draw((1, 8, 2, 64), (1, 2, 129, 64), (1, 2, 129, 64))
    out, lse = path.right(q, k, v, causal=True)
    parts = [
        path.right(q, k[:, :, cut], v[:, :, cut], causal=True, offset=127 - cut.start)
        for cut in (slice(0, 128), slice(128, 129))
    ]
    assert_empty(parts[1][0][:, :, 0], parts[1][1][:, :, 0])
    np.testing.assert_array_equal(parts[1][0][:, :, 1], np.repeat(v[:, :, 128], 4, axis=1))
    weights = np.exp(np.stack([part[1] for part in parts]) - lse)[..., None]
    merged = sum(w * part[0] for w, part in zip(weights, parts, strict=True))
    few = 8 * accuracy.ROUNDING[path.dtype.name] * np.abs(v).max()
    np.testing.assert_allclose(merged, out, rtol=0, atol=few)


@bug(20)
def more_room_than_the_sum_of_lengths(path: Path) -> None:
    lengths = np.array([200, 150, 47], np.int32)
    q, k, v = path.draw((3, 2, 640, 128), (3, 2, 640, 128), (3, 2, 640, 128))
    for entry, length in enumerate(lengths):
        for x in (q, k, v):
            x[entry, :, length:] = np.nan
    out, lse = path.attend(q, k, v, causal=True, q_lengths=lengths, k_lengths=lengths)
    for entry, length in enumerate(lengths):
        alone = (x[entry, :, :length] for x in (q, k, v))
        got = out[entry, :, :length], lse[entry, :, :length]
        path.same(got, path.attend(*alone, causal=True))
        assert_empty(out[entry, :, length:], lse[entry, :, length:])


@bug(28, only=np.float16)
def scores_beyond_float16(path: Path) -> None:
    q, k, v = path.draw(*[(4, 1, 1023, 128)] * 3, dtype=np.float16)
    out, _ = path.right(q * np.float16(5), k * np.float16(3), v, causal=True)
    assert np.isfinite(out).all()
    x = np.full((1, 40, 128), 300, np.float16)
    out, lse = path.right(x, x, v[0, :, :40])
    np.testing.assert_allclose(lse, 300**2 * 128 / math.sqrt(128) + math.log(40), rtol=1e-6)


@bug(31, "lengths", "mask", "bias", "window", "no keys")
def an_empty_row_has_its_sink(path: Path, kind: str) -> None:
    q, k, v = path.draw((2, 3, 8), (2, 5, 8), (2, 5, 8))
    if kind == "no keys":
        k, v = k[:, :0], v[:, :0]
    options: dict[str, Any] = {
        "lengths": {"k_lengths": np.zeros(2, np.int32)},
        "mask": {"mask": np.zeros((), bool)},
        "bias": {"bias": np.full((), -np.inf, np.float32)},
        "window": {"window": (2, 0), "offset": 100},
    }.get(kind, {})
    out, lse = path.attend(q, k, v, sinks=np.array(0.5, np.float32), **options)
    assert (out == 0).all()
    assert (lse == 0.5).all()


@bug(31)
def a_sink_far_above_the_scores(path: Path) -> None:
    q, k, v = path.draw((2, 3, 8), (2, 5, 8), (2, 5, 8))
    out, lse = path.right(q, k, v, sinks=np.array(100.0, np.float32))
    assert np.isfinite(out).all()
    np.testing.assert_allclose(lse, 100, rtol=2.0**-22)


@bug(34)
def windows_that_are_causal(path: Path) -> None:
    n = 16_384 if path.family else 1_100
    q, k, v = path.draw((1, 8, n, 128), (1, 8, n, 128), (1, 8, n, 128))
    want = path.attend(q, k, v, causal=True)
    for window in ((n - 1, 0), (n, 0), (None, 0)):
        path.same(path.attend(q, k, v, window=window), want)


@bug(35, (-1, -3), (-1, 0), (0, -1))
def negative_windows_are_refused(path: Path, left: int, right: int) -> None:
    q, k, v = path.draw((5, 8), (5, 8), (5, 8))
    with pytest.raises(ValueError, match=r"window's (left|right) bound is -\d"):
        path.attend(q, k, v, causal=True, window=(left, right))


@bug(37, 0, 1, 2, 63, 64, 65)
def both_ends_of_a_window_count(path: Path, width: int) -> None:
    n = 150
    q, k, v = (x.astype(path.dtype) for x in (np.zeros((n, 8)), np.ones((n, 8)), np.eye(n)))
    out, lse = path.attend(q, k, v, window=(width, 0))
    for i in range(n):
        count = min(i, width) + 1
        assert np.flatnonzero(out[i]).tolist() == list(range(i - count + 1, i + 1))
        np.testing.assert_allclose(lse[i], math.log(count), rtol=0, atol=1e-6)
    if width == 0:
        np.testing.assert_array_equal(out, v)


@bug(39, ((3, 0), False), ((3, 2), True))
def a_left_window_does_not_see_the_future(
    path: Path, window: tuple[int, int], causal: bool
) -> None:
    q, k, v = (x.astype(path.dtype) for x in (np.zeros((64, 8)), np.ones((64, 8)), np.eye(64)))
    out, _ = path.attend(q, k, v, window=window, causal=causal)
    sees = np.abs(np.arange(64) - np.arange(64)[:, None] + 1.5) < 2
    np.testing.assert_array_equal(out > 0, sees)


@bug(41)
def alibi_counts_from_the_real_length(path: Path) -> None:
    lengths = np.array([7, 300], np.int32)
    q, k, v = path.draw((2, 4, 1, 64), (2, 4, 512, 64), (2, 4, 512, 64))
    slopes = np.exp2(-np.arange(1.0, 5)).astype(np.float32)
    out, lse = path.right(q, k, v, alibi_slopes=slopes, k_lengths=lengths)
    for entry, length in enumerate(lengths):
        dense = q[entry : entry + 1], *(x[entry : entry + 1, :, :length] for x in (k, v))
        want = path.attend(*dense, alibi_slopes=slopes)
        path.same((out[entry : entry + 1], lse[entry : entry + 1]), want)


@bug(42, 15.0, 30.0, 50.0)
def softcap_in_a_window_with_grouped_heads(path: Path, softcap: float) -> None:
    q, k, v = path.draw((1, 8, 200, 128), (1, 2, 300, 128), (1, 2, 300, 128))
    q *= path.dtype.type(10)
    path.right(q, k, v, softcap=softcap, causal=True, window=(127, 0))


@bug(43, 1e-3, 1.0, 15.0, 1e6)
def softcap_comes_before_alibi_and_mask(path: Path, softcap: float) -> None:
    q, k, v = path.draw((2, 4, 70, 64), (2, 4, 90, 64), (2, 4, 90, 64))
    q *= path.dtype.type(100)
    scores = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / 8
    assert np.abs(scores).max() > 300
    slopes = np.array([0.5, 0.25, 0.125, 2.0], np.float32)
    mask = np.random.default_rng(4).random((70, 90)) < 0.8
    options = {"window": (3, 5), "alibi_slopes": slopes, "mask": mask}
    got = path.right(q, k, v, softcap=softcap, **options)
    if softcap == 1e6:
        # The cube of s / c is what is left of the cap.
        plain = path.attend(q, k, v, **options)
        np.testing.assert_allclose(got[1], plain[1], rtol=2.0**-17)


@bug(58, *((128, p) for p in range(8, 97, 8)), (192, 128))
def values_of_another_width(path: Path, d: int, p: int) -> None:
    for dtype in path.able(np.float16, np.float32):
        q, k, v = path.draw((2, 65, d), (2, 97, d), (2, 97, p), dtype=dtype)
        out, lse = path.right(q, k, v, causal=True)
        assert (out.shape, lse.shape) == ((2, 65, p), (2, 65))


@bug(60)
def activations_with_outliers(path: Path) -> None:
    q, k, v = path.draw((2, 16, 130, 256), (2, 2, 130, 256), (2, 2, 130, 256))
    channels = np.ones(256)
    channels[[3, 77, 200]] = 50
    q, k = ((x * channels * 0.1 + 0.5).astype(path.dtype) for x in (q, k))
    path.right(q, k, v, causal=True)
