"""Bugs around shapes, sizes, layouts and plain masks; see `bugcases`."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bugcases import BFLOAT16, Path, assert_empty, bug
from cupy_flash import accuracy, reference
from problems import DTYPES


@bug(1, 1e2, 6e4, 1e6, 1e15, 1e30)
def every_score_below_a_finite_sentinel(path: Path, level: float) -> None:
    gap = max(5000, 0.1 * level)
    q = np.ones((1, 16, 1, 128), BFLOAT16)
    k = np.full((1, 16, 64, 128), -level / math.sqrt(128), BFLOAT16)
    k[:, :, 0] = (gap - level) / math.sqrt(128)
    (v,) = path.draw((1, 16, 64, 128), dtype=BFLOAT16)
    out, lse = path.attend(q, k, v)
    np.testing.assert_array_equal(out[:, :, 0], v[:, :, 0])
    score = k[:, :, 0].astype(float).sum(-1) / math.sqrt(128)
    np.testing.assert_allclose(lse[:, :, 0], score, rtol=1e-6)


@bug(1)
def a_visible_key_below_a_finite_sentinel(path: Path) -> None:
    q, k, v = path.draw((1, 4), (2, 4), (2, 3))
    q[:], k[0], k[1] = 2, -5e3, 0
    for options in (
        {"k_lengths": np.array(1, np.int32)},
        {"causal": True, "offset": 0},
        {"window": (0, 0), "offset": 0},
        {"mask": np.array([True, False])},
        {"bias": np.array([0, -np.inf], np.float16)},
    ):
        out, lse = path.attend(q, k, v, **options)
        np.testing.assert_array_equal(out[0], v[0])
        np.testing.assert_array_equal(lse, [-2e4])


@bug(3)
def one_key_far_below_zero(path: Path) -> None:
    q, k = np.full((1, 32, 1, 128), 64, BFLOAT16), np.full((1, 8, 1, 128), -64, BFLOAT16)
    (v,) = path.draw((1, 8, 1, 128), dtype=BFLOAT16)
    out, lse = path.attend(q, k, v, causal=True)
    np.testing.assert_array_equal(out, np.repeat(v, 4, axis=1))
    np.testing.assert_allclose(lse, -46340.95, rtol=2.0**-23)


@bug(11)
def huge_inputs(path: Path) -> None:
    x = np.full((1, 1, 1, 64), 133120, BFLOAT16)
    out, lse = path.attend(x, x, x)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_allclose(lse, 1.41767e11, rtol=1e-5)


@bug(12, "plain", "causal", "lengths", "mask")
def a_negative_scale_turns_the_order_around(path: Path, mask: str) -> None:
    q, k, v = path.draw((5, 16), (7, 16), (7, 3), seed=13)
    keys, causal = (4 if mask == "lengths" else 7), mask == "causal"
    table = np.random.default_rng(13).random((5, 7)) < 0.6 if mask == "mask" else None
    options = {
        "lengths": {"k_lengths": np.array(keys, np.int64)},
        "mask": {"mask": table},
    }.get(mask, {})
    seen = reference.visibility(5, 7, causal=causal, offset=2, keys=keys, mask=table)
    scores = np.where(seen, q.astype(float) @ k.T.astype(float), np.inf)
    lowest, second = np.sort(scores, axis=1)[:, :2].T
    assert (1e4 * (second - lowest) > 200).all(), "the case must be one-hot"
    out, _ = path.attend(q, k, v, scale=-1e4, causal=causal, **options)
    np.testing.assert_array_equal(out, v[scores.argmin(axis=1)])


@bug(25, *itertools.product((np.nan, 7.0), (1, 9)))
def rows_without_keys_are_written(path: Path, stale: float, m: int) -> None:
    q, k, v = path.draw((2, m, 8), (2, 4, 8), (2, 4, 5))
    out, lse = np.full((2, m, 5), stale, path.dtype), np.full((2, m), stale, np.float32)
    path.attend(q, k, v, causal=True, offset=-6, out=(out, lse))
    assert_empty(out[:, :6], lse[:, :6])
    assert np.isfinite(out).all()
    out[...], lse[...] = stale, stale
    path.attend(q, k, v, k_lengths=np.array([0, 4], np.int32), out=(out, lse))
    assert_empty(out[0], lse[0])
    assert (out[1] != stale).all()


@bug(32, (2, 6), (6, 2), (1, 1), (1, 9), (3, 3), (70, 40), (40, 70))
def causal_ends_in_the_lower_right_corner(path: Path, m: int, n: int) -> None:
    q, k, v = (x.astype(path.dtype) for x in (np.zeros((m, 8)), np.ones((n, 8)), np.eye(n)))
    out, lse = path.attend(q, k, v, causal=True)
    rounding = accuracy.ROUNDING[path.dtype.name]
    for i in range(m):
        count = max(0, min(n, i + n - m + 1))
        assert (out[i] > 0).tolist() == [j < count for j in range(n)]
        np.testing.assert_allclose(out[i, :count], 1 / max(count, 1), rtol=1e-6 + rounding)
        np.testing.assert_allclose(lse[i], math.log(count) if count else -np.inf, rtol=1e-6)


@bug(32)
def the_last_chunk_of_a_prefill_is_the_tail_of_the_whole(path: Path) -> None:
    q, k, v = path.draw((4, 100, 16), (4, 100, 16), (4, 100, 16))
    whole = path.attend(q, k, v, causal=True)
    chunk = path.attend(q[:, 63:], k, v, causal=True)
    path.same(chunk, (whole[0][:, 63:], whole[1][:, 63:]))


@bug(33, 64, 128)
def more_causal_rows_than_keys(path: Path, d: int) -> None:
    q, k, v = path.draw((2048, d), (1024, d), (1024, d))
    out, lse = path.attend(q, k, v, causal=True)
    assert_empty(out[:1024], lse[:1024])
    np.testing.assert_array_equal(out[1024], v[0])


@bug(54)
def every_feature_counts(path: Path) -> None:
    for dtype in path.able(np.float16, np.float32):
        q, k, v = path.draw((2, 33, 128), (2, 77, 128), (2, 77, 64), dtype=dtype)
        q[..., :64] = k[..., :64] = 0
        path.right(q, k, v)


@bug(55, *((5, 37, d) for d in range(1, 257)))
@bug(68, (1, 20, 24), (192, 192, 24), *((s, s, 24) for s in range(1, 128)))
def every_size(path: Path, m: int, n: int, d: int) -> None:
    for dtype in path.able(np.float16, np.float32):
        path.right(*path.draw((2, m, d), (2, n, d), (2, n, d), dtype=dtype, seed=n))


@bug(61, 21, 57, 80, 203)
def the_default_scale_is_of_the_callers_d(path: Path, d: int) -> None:
    q, k, v = path.draw((3, 20, d), (3, 50, d), (3, 50, 16))
    explicit = path.attend(q, k, v, scale=1 / math.sqrt(d))
    np.testing.assert_array_equal(path.attend(q, k, v)[0], explicit[0])


HEADS = ((5, 1), (6, 1), (28, 4), (48, 8), (16, 1), (13, 1), (71, 1), (48, 2))


@bug(62, *((q, k, m) for (q, k), m in itertools.product(HEADS, (1, 18))))
def group_sizes(path: Path, heads: int, kv_heads: int, m: int) -> None:
    q, k, v = path.draw(
        (2, heads, m, 32), (2, kv_heads, 40, 32), (2, kv_heads, 40, 32), dtype=np.float16
    )
    repeated = (np.repeat(x, heads // kv_heads, axis=1) for x in (k, v))
    path.same(path.attend(q, k, v, causal=True), path.attend(q, *repeated, causal=True))


@bug(63, (33, 2), (3, 2))
def heads_that_do_not_divide(path: Path, heads: int, kv_heads: int) -> None:
    q, k, v = path.draw((1, heads, 4, 8), (1, kv_heads, 4, 8), (1, kv_heads, 4, 8))
    out, lse = np.full(q.shape, 7, path.dtype), np.full(q.shape[:-1], 7, np.float32)
    with pytest.raises(ValueError, match=f"k has {kv_heads} heads and q has {heads}"):
        path.attend(q, k, v, out=(out, lse))
    assert out.min() == out.max() == lse.min() == lse.max() == 7


@bug(66, 1, 3)
def few_rows_and_grouped_heads(path: Path, m: int) -> None:
    q, k, v = path.draw((4, 9, m, 16), (4, 3, 5, 16), (4, 3, 5, 24))
    lengths = {"q_lengths": np.array([0, 1, 0, 1]), "k_lengths": np.array([0, 3, 0, 5])}
    for options in ({}, {"causal": True}, lengths, lengths | {"causal": True}):
        out, lse = path.right(q, k, v, **options)
        assert (out.shape, lse.shape) == ((4, 9, m, 24), (4, 9, m))


@bug(69, "random", "needle", only=np.float32)
def float32_has_float32_accuracy(path: Path, data: str) -> None:
    q, k, v = path.draw((128, 64), (128, 64), (128, 64))
    if data == "needle":
        k[::2] = 4 * q[::2]
    path.right(q, k, v)


@bug(70, 1, 2)
def the_batch_axis_stays(path: Path, batch: int) -> None:
    x, v = path.draw((batch, 67, 12, 128), (batch, 67, 12, 40), dtype=np.float16)
    out, lse = path.right(x.swapaxes(1, 2), x.swapaxes(1, 2), v.swapaxes(1, 2))
    assert (out.shape, lse.shape) == ((batch, 12, 67, 40), (batch, 12, 67))


@bug(74, True, False)
def no_keys(path: Path, causal: bool) -> None:
    q, k, v = path.draw((3, 2, 7, 8), (3, 2, 0, 8), (3, 2, 0, 8))
    assert_empty(*path.attend(q, k, v, causal=causal))
    k, v = path.draw((3, 2, 9, 8), (3, 2, 9, 8))
    out, lse = path.attend(q, k, v, causal=causal, k_lengths=np.array([9, 0, 5], np.int64))
    assert_empty(out[1], lse[1])
    for entry, keys in ((0, 9), (2, 5)):
        alone = path.attend(q[entry], k[entry, :, :keys], v[entry, :, :keys], causal=causal)
        path.same((out[entry], lse[entry]), alone)


@bug(75, (0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4))
@bug(134, (2, 2, 3, 0), (0, 0, 0, 0))
def empty_arrays(path: Path, batch: int, heads: int, m: int, d: int) -> None:
    for dtype in path.able(np.float16, np.float64):
        q, k = (np.ones((batch, heads, rows, d), dtype) for rows in (m, 5))
        out, lse = path.attend(q, k, k)
        assert (out.shape, out.dtype) == (q.shape, dtype)
        assert (lse.shape, lse.dtype.name) == (q.shape[:-1], accuracy.accumulation(out.dtype.name))
        np.testing.assert_allclose(lse, math.log(5) + math.sqrt(d), rtol=1e-6)


@bug(89, 4, only=np.float64)
@bug(134, 0, only=np.float64)
def equal_scores_and_a_natural_logarithm(path: Path, d: int) -> None:
    q, k, v = np.zeros((4, d)), np.ones((8, d)), np.arange(8.0)[:, None]
    out, lse = path.attend(q, k, v)
    np.testing.assert_allclose(out, 3.5, rtol=1e-14)
    np.testing.assert_allclose(lse, math.log(8), rtol=1e-14)


@bug(91, 64, 1000, 8192)
def a_mean_of_ones_is_one(path: Path, n: int) -> None:
    q, k = path.draw((2, 64, 16), (2, n, 16), dtype=BFLOAT16)
    out, _ = path.attend(q, k, np.ones((2, n, 8), BFLOAT16))
    error = out.astype(np.float64).ravel() - 1
    assert abs(error).max() <= 2.0**-7
    assert abs(error.mean()) <= 4 * error.std() / math.sqrt(len(error))


@bug(98, *itertools.permutations(range(4)))
def every_order_of_axes(path: Path, *order: int) -> None:
    arrays = path.draw((1, 4, 62, 32), (1, 4, 62, 32), (1, 4, 62, 32))
    want = path.attend(*arrays)
    for changed in range(3):
        views = list(arrays)
        in_memory = np.ascontiguousarray(arrays[changed].transpose(order))
        views[changed] = in_memory.transpose(np.argsort(order))
        path.same(path.attend(*views), want)


@bug(99, *itertools.product((0, 1, 2), (0, 1, 3, 1 << 40)))
def strides_of_axes_of_extent_1(path: Path, axis: int, step: int) -> None:
    shape = tuple(1 if axis == a else n for a, n in enumerate((2, 3, 5, 8)))
    arrays = path.draw(shape, shape, shape)
    want = path.attend(*arrays)
    other = np.arange(4) == axis
    size = path.dtype.itemsize
    views = [
        np.ndarray(shape, x.dtype, x, 0, np.where(other, size * step, x.strides)) for x in arrays
    ]
    path.same(path.attend(*views), want)


@bug(103, 1, 3)
def odd_addresses_and_pitches(path: Path, first: int) -> None:
    for dtype in path.able(np.float16, np.float32):
        arrays = path.draw((3, 20, 64), (3, 40, 64), (3, 40, 64), dtype=dtype)
        views = []
        for x in arrays:
            buffer = np.full(first + x.shape[0] * x.shape[1] * 65, np.nan, dtype)
            views.append(buffer[first:].reshape(*x.shape[:2], 65)[..., :64])
            views[-1][...] = x
        path.same(path.attend(*views, causal=True), path.attend(*arrays, causal=True))


@bug(104, "batch reversed", "rows reversed", "sliced", "broadcast")
def views_are_read_as_they_are(path: Path, kind: str) -> None:
    q, k, v = path.draw((3, 9, 16), (3, 12, 16), (3, 12, 16))
    views = {
        "batch reversed": (q[::-1], k, v),
        "rows reversed": (q[:, ::-1], k[:, ::-1], v[..., ::-1]),
        "sliced": (q, k[:, 3:], v[:, 3:]),
        "broadcast": (q, np.ndarray(k.shape, k.dtype, k, 0, (0, *k.strides[1:])), v),
    }[kind]
    path.same(path.attend(*views), path.attend(*map(np.ascontiguousarray, views)))


@bug(106, "q", "k", "shifted")
def an_output_over_an_input_is_refused(path: Path, kind: str) -> None:
    buffer = np.ones((11, 8), path.dtype)
    x, other = buffer[:10], np.ones((10, 8), path.dtype)
    out = buffer[1:] if kind == "shifted" else x
    q, k = (other, x) if kind == "k" else (x, other)
    with pytest.raises(ValueError, match="out shares memory with"):
        path.attend(q, k, other, out=(out, np.zeros(10, np.float32)))
    assert (buffer == 1).all()


@bug(106)
def interleaved_views_are_accepted(path: Path) -> None:
    pairs, k, v = path.draw((10, 2, 8), (10, 8), (10, 8))
    lse = np.empty(10, np.float32)
    q = pairs[:, 0].copy()
    path.attend(pairs[:, 0], k, v, out=(pairs[:, 1], lse))
    path.same((pairs[:, 1], lse), path.attend(q, k, v))
    np.testing.assert_array_equal(pairs[:, 0], q)


@bug(131)
def every_number_is_a_scale(path: Path) -> None:
    q, k, v = path.draw((4, 8), (5, 8), (5, 8))
    want = path.attend(q, k, v, scale=1.0)
    for scale in (1, np.float64(1), np.float32(1), np.int64(1), np.array(1.0)):
        np.testing.assert_array_equal(path.attend(q, k, v, scale=scale)[0], want[0])


@bug(131)
def slopes_and_sinks_of_every_dtype(path: Path) -> None:
    q, k, v = path.draw((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    want = path.attend(q, k, v, alibi_slopes=np.array([0.5, 0.25]), sinks=np.array(2.0))
    for dtype in DTYPES.values():
        slopes, sinks = np.array([0.5, 0.25]).astype(dtype), np.array(2.0).astype(dtype)
        got = path.attend(q, k, v, alibi_slopes=slopes, sinks=sinks)
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(ours, theirs)
