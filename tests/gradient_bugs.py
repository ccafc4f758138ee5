"""Bugs that users have reported of gradients: sizes, heads, layouts and repeated runs.

Each case is a function of a `GradientPath`. Numbers are those of `bugcases`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bugcases import BFLOAT16, Registry
from gradient_paths import GradientPath, draw_like, result_shape

REGISTRY = Registry("gradient_bugs", "gradient_option_bugs", "gradient_layout_bugs")
bug, cases = REGISTRY.bug, REGISTRY.cases

FLOAT16 = np.dtype(np.float16)


def drawn(
    path: GradientPath, *shapes: tuple[int, ...], dtype: Any = None, seed: int = 0
) -> list[Any]:
    """Draw do, q, k and v."""
    q, k, v = path.draw(*shapes, dtype=dtype, seed=seed)
    return [draw_like(result_shape(q, k, v), q.dtype), q, k, v]


@bug(13, 100, size="small")
@bug(13, 704)
def every_score_near_minus_120(path: GradientPath, n: int) -> None:
    do, q, k, v = drawn(path, *[(n, 64)] * 3)
    q, k = (x * path.dtype.type(0.0625) for x in (q, k))
    q[:, 0], k[:, 0] = 1, -120 * 8
    mask = np.ones((n, n), bool)
    found = path.right(do, q, k, v, mask=mask)
    k[:, 0] = 0
    level = path.right(do, q, k, v, mask=mask)
    for name in ("q", "k"):
        x, y = found[name][:, 1:].astype(float), level[name][:, 1:].astype(float)
        assert np.isfinite(x).all()
        # lse near -120 is rounded to 2**-17 of itself, and 16 bits round dS once more.
        np.testing.assert_allclose(x, y, rtol=0, atol=2.0**-8 * np.abs(y).max())


@bug(15, (65, 64, True), size="small")
@bug(15, (65, 64, False), (127, 64, True))
@bug(15, *itertools.product((63, 100, 200), (64, 128), (False, True)))
def lengths_that_are_no_multiples(path: GradientPath, n: int, d: int, causal: bool) -> None:
    path.right(*drawn(path, *[(2, n, d)] * 3), causal=causal)


@bug(16, size="small")
def one_visible_key_of_many_rows(path: GradientPath) -> None:
    for rows, keys in ((76, 1), (34, 1), (146, 1), (9, 4)):
        do, q, k, v = (3 * x for x in drawn(path, (2, rows, 32), (2, keys, 32), (2, keys, 32)))
        found = path.right(do, q, k, v, causal=True)
        # The last rows - keys + 1 rows see anything, and the first of those sees key 0 alone.
        blind = rows - keys
        assert (found["q"][:, :blind] == 0).all()
        if keys == 1:
            few = 2.0**-9 if path.dtype.itemsize == 2 else 2.0**-17
            np.testing.assert_allclose(
                found["v"][:, 0].astype(float),
                do[:, -1].astype(float),
                rtol=few,
                atol=few * 2.0**-14,
            )


@bug(32, (67, 70), size="small")
@bug(32, (6, 2), (67, 130), (2, 6), (1, 5), (130, 67))
@bug(33, (512, 256))
def causal_with_other_numbers_of_rows_and_keys(path: GradientPath, m: int, n: int) -> None:
    do, q, k, v = drawn(path, (2, m, 16), (2, n, 16), (2, n, 16))
    do[:, : max(m - n, 0)] = np.nan
    found = path.right(do, q, k, v, causal=True)
    assert (found["q"][:, : max(m - n, 0)] == 0).all()


@bug(54)
def features_of_the_second_half(path: GradientPath) -> None:
    do, q, k, v = drawn(path, (70, 128), (90, 128), (90, 128))
    q[:, :64] = k[:, :64] = 0
    found = path.right(do, q, k, v)
    for name in ("q", "k"):
        assert (found[name][:, :64] == 0).all()
        assert (found[name][:, 64:] != 0).any()


@bug(55, 1, 2, 7, 9, 33, 72, 80, 96, 97, 129, 191, 193, 255)
@bug(61, 21, 57, 203)
def every_width_and_its_scale(path: GradientPath, d: int) -> None:
    arrays = drawn(path, (20, d), (40, d), (40, d))
    found = path.right(*arrays)
    path.same(path.gradients(*arrays, scale=1 / np.sqrt(d)), found, "an explicit scale")


@bug(56, 192, 160, 224, 256)
def wide_heads(path: GradientPath, d: int) -> None:
    for dtype in path.able(FLOAT16, BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)):
        path.right(*drawn(path, *[(97, d)] * 3, dtype=dtype))


@bug(58, (128, 8), size="small")
@bug(58, (24, 200), (128, 16), (128, 24), (128, 40), (128, 96), (192, 128), (3, 1))
def d_and_p_differ(path: GradientPath, d: int, p: int) -> None:
    path.right(*drawn(path, (2, 65, d), (2, 70, d), (2, 70, p)))


def structured(arrays: list[Any]) -> None:
    """Add a shared mean, and channels 50 times the others, to q and k: as activations have."""
    rng = np.random.default_rng(60)
    for x in arrays:
        channels = rng.permutation(x.shape[-1])[: max(x.shape[-1] // 64, 1)]
        x *= x.dtype.type(0.25)
        x += rng.standard_normal(x.shape[-1]).astype(x.dtype)
        x[..., channels] *= x.dtype.type(50 / 8)


@bug(60, (20, False), (40, True))
@bug(60, (75, True), (300, True), size="large")
def structured_data_of_grouped_heads(path: GradientPath, n: int, causal: bool) -> None:
    for dtype in path.able(FLOAT16, BFLOAT16, np.dtype(np.float32)):
        shapes = (2, 16, n, 256), (2, 2, n, 256), (2, 2, n, 256)
        do, q, k, v = drawn(path, *shapes, dtype=dtype)
        structured([q, k])
        path.right(do, q, k, v, causal=causal)


@bug(62, (5, 1), (6, 1), (14, 2), (16, 1), (13, 1), (48, 2))
@bug(64, (8, 2), size="small")
def grouped_heads_have_the_sum_of_their_copies(
    path: GradientPath, heads: int, kv_heads: int
) -> None:
    shapes = (1, heads, 33, 8), (1, kv_heads, 65, 8), (1, kv_heads, 65, 8)
    do, q, k, v = drawn(path, *shapes)
    found = path.right(do, q, k, v)
    group = heads // kv_heads
    copies = path.gradients(do, q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1))
    path.same({"q": found["q"]}, {"q": copies["q"]}, "keys repeated")
    for name in ("k", "v"):
        own = copies[name].astype(float).reshape(1, kv_heads, group, 65, 8)
        largest = np.abs(own).sum(axis=2)
        few = 2.0**-7 if path.dtype.itemsize == 2 else 2.0**-19
        off = np.abs(found[name].astype(float) - own.sum(axis=2))
        assert (off <= few * (largest + np.abs(own).max())).all()


@bug(63, (33, 2), (3, 2))
def heads_that_do_not_divide(path: GradientPath, heads: int, kv_heads: int) -> None:
    q, k, v = path.draw((heads, 4, 8), (kv_heads, 5, 8), (kv_heads, 5, 8))
    do = draw_like((1, heads, 4, 8), path.dtype)
    with pytest.raises(ValueError, match="multiple"):
        path.gradients(do, q[None], k[None], v[None])


@bug(68, 1, 2, 31, 96, 129)
def short_or_odd_lengths(path: GradientPath, n: int) -> None:
    for rows in (1, n):
        path.right(*drawn(path, (2, rows, 32), (2, n, 32), (2, n, 32)))


@bug(69, only=np.float32)
def float32_is_multiplied_as_float32(path: GradientPath) -> None:
    arrays = drawn(path, *[(128, 64)] * 3, dtype=np.dtype(np.float32))
    found, exact = path.right(*arrays), path.gradients(*(x.astype(float) for x in arrays))
    for name, x in found.items():
        largest = np.abs(exact[name]).max()
        assert np.abs(x - exact[name]).max() <= 2.0**-18 * largest, name


@bug(107)
@bug(109)
def repeated_calls_have_the_same_bits(path: GradientPath) -> None:
    arrays = drawn(path, (3, 2, 200, 64), (3, 1, 128, 64), (3, 1, 128, 64))
    want = path.gradients(*arrays)
    for _ in range(3):
        for name, x in path.gradients(*arrays).items():
            assert x.tobytes() == want[name].tobytes(), name


@bug(108)
def alternating_shapes_have_the_same_bits(path: GradientPath) -> None:
    first = drawn(path, (2, 4, 130, 32), (2, 2, 130, 32), (2, 2, 130, 32)), {"causal": True}
    second = drawn(path, (2, 4, 70, 32), (2, 2, 90, 32), (2, 2, 90, 32)), {"window": (30, 5)}
    want = [path.gradients(*arrays, **options) for arrays, options in (first, second)]
    for turn in range(2):
        # A refused call leaves nothing behind.
        with pytest.raises(ValueError, match="multiple"):
            path.gradients(first[0][0], first[0][1], *(x[:, [0, 1, 1]] for x in first[0][2:]))
        for (arrays, options), before in zip((first, second), want, strict=True):
            for name, x in path.gradients(*arrays, **options).items():
                assert x.tobytes() == before[name].tobytes(), (turn, name)
