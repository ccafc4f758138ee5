"""Bugs around masks and biases; see `bugcases`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bugcases import BFLOAT16, Array, Path, assert_empty, bug


def stepping(x: Array, shape: tuple[int, ...], *strides: int) -> Array:
    """Return a view of x with given strides, in elements."""
    return np.ndarray(shape, x.dtype, x, 0, tuple(step * x.itemsize for step in strides))


@bug(7, "mask", "bias")
def rows_whose_mask_is_all_false(path: Path, kind: str) -> None:
    for dtype in path.able(np.float16, np.float32):
        q, k, v = path.draw((2, 3, 8, 64), (2, 3, 8, 64), (2, 3, 8, 64), dtype=dtype)
        mask = np.ones((8, 8), bool)
        mask[[0, 3, 7]] = False
        bias = np.where(mask, 0, -np.inf).astype(dtype)
        options: dict[str, Any] = {"mask": mask} if kind == "mask" else {"bias": bias}
        out, lse = path.right(q, k, v, **options)
        assert_empty(out[:, :, [0, 3, 7]], lse[:, :, [0, 3, 7]])
        assert np.isfinite(lse[:, :, [1, 2, 4, 5, 6]]).all()


@bug(8, only=np.float32)
def the_lowest_finite_bias_is_no_mask(path: Path) -> None:
    q, k, v = path.draw((4, 16), (8, 16), (8, 16), dtype=np.float32)
    bias = np.zeros((4, 8), np.float32)
    bias[1] = np.finfo(np.float32).min
    out, lse = path.attend(q, k, v, bias=bias)
    np.testing.assert_allclose(out[1], v.mean(axis=0), rtol=0, atol=1e-6)
    np.testing.assert_allclose(lse[1], bias[1, 0], rtol=2.0**-22)
    others = [0, 2, 3]
    want = path.attend(q, k, v, bias=np.zeros((4, 8), np.float32))
    path.same((out[others], lse[others]), (want[0][others], want[1][others]))


@bug(8, only=np.float16)
def the_lowest_bias_of_float16_is_no_mask(path: Path) -> None:
    q, k, v = path.draw((4, 16), (8, 16), (8, 16), dtype=np.float16)
    bias = np.zeros((4, 8), np.float16)
    bias[1] = -65504
    out, lse = path.right(q, k, v, bias=bias)
    plain = path.attend(q, k, v)[0]
    # So far from 0, scores are multiples of 2**-8.
    np.testing.assert_allclose(out[1], plain[1], rtol=0, atol=2.0**-8 * 2 * np.abs(v).max())
    assert np.isfinite(lse).all()


@bug(9, *itertools.product(("mask", "bias"), ("k", "v"), (np.nan, np.inf)))
def a_hidden_key_is_not_a_number(path: Path, kind: str, where: str, value: float) -> None:
    arrays = dict(zip("qkv", path.draw((1, 2, 4), (1, 2, 4), (1, 2, 4)), strict=True))
    want = path.attend(arrays["q"], arrays["k"][:, :1], arrays["v"][:, :1])
    arrays[where][:, 1] = value
    mask = np.array([True, False])
    options: dict[str, Any] = {"mask": mask}
    if kind == "bias":
        options = {"bias": np.where(mask, 0, -np.inf).astype(np.float32)}
    out, lse = path.attend(*arrays.values(), **options)
    np.testing.assert_array_equal(out, want[0])
    np.testing.assert_allclose(lse, want[1], rtol=2.0**-21)


@bug(10)
def the_first_tiles_of_a_row_are_hidden(path: Path) -> None:
    for dtype in path.able(np.float16, np.float32):
        q, k, v = path.draw((2, 600, 8), (2, 600, 8), (2, 600, 8), dtype=dtype)
        distance = np.arange(600) - np.arange(600)[:, None]
        band = (distance < 1) & (distance > -10)
        path.right(q, k, v, bias=np.where(band, 0, -np.inf).astype(dtype))
        window = path.right(q, k, v, window=(9, 0), mask=np.ones((600, 600), bool))
        path.same(path.right(q, k, v, mask=band), window)


@bug(13)
def every_score_near_minus_120(path: Path) -> None:
    q, k, v = path.draw((2, 704, 64), (2, 704, 64), (2, 704, 64))
    q, k = (x * path.dtype.type(0.0625) for x in (q, k))
    q[..., 0], k[..., 0] = 1, -120 * 8
    out, lse = path.right(q, k, v, mask=np.ones((704, 704), bool))
    assert (lse < -88.8).all()
    assert np.isfinite(out).all()


@bug(25, *itertools.product(("mask", "bias", "window"), (np.nan, 7.0), (1, 9)))
def hidden_rows_are_written(path: Path, kind: str, stale: float, m: int) -> None:
    q, k, v = path.draw((2, m, 8), (2, 4, 8), (2, 4, 5))
    hidden = np.arange(m)[:, None] < 6
    options: dict[str, Any] = {
        "mask": {"mask": ~hidden},
        "bias": {"bias": np.where(hidden, -np.inf, 0).astype(np.float32)},
        "window": {"window": (3, 0), "offset": -6},
    }[kind]
    out, lse = np.full((2, m, 5), stale, path.dtype), np.full((2, m), stale, np.float32)
    path.attend(q, k, v, out=(out, lse), **options)
    assert_empty(out[:, :6], lse[:, :6])
    assert np.isfinite(out).all()
    assert np.isfinite(lse[:, 6:]).all()


@bug(27, only=BFLOAT16)
def a_large_float32_bias_of_16_bit_arrays(path: Path) -> None:
    q, k, v = path.draw(*[(2, 4, 256, 64)] * 3, dtype=BFLOAT16)
    bias = np.random.default_rng(1).uniform(-1e4, 1e4, (4, 256, 256)).astype(np.float32)
    bias[..., 100] = -np.inf
    v[:, :, 100] = np.nan
    out, lse = path.right(q, k, v, bias=bias)
    assert np.isfinite(out.astype(float)).all()
    assert np.isfinite(lse).all()


@bug(29, "mask", "bias")
def a_mask_for_another_length(path: Path, kind: str) -> None:
    q, k, v = path.draw((2, 3, 5, 8), (2, 3, 200, 8), (2, 3, 200, 8))
    for shape in (
        (4096,),
        (5, 256),
        (3, 2, 5, 256),
        (5, 4096),
        (4, 200),
        (2, 2, 5, 200),
        (3, 5, 2),
    ):
        options = {kind: np.ones(shape, bool if kind == "mask" else np.float32)}
        out, lse = np.full(q.shape, 7, path.dtype), np.full(q.shape[:-1], 7, np.float32)
        with pytest.raises(ValueError, match=rf"{kind} has shape \({shape[0]}.*\(2, 3, 5, 200\)"):
            path.attend(q, k, v, out=(out, lse), **options)
        assert out.min() == out.max() == lse.min() == lse.max() == 7


@bug(45, (2, 1, 1, 65), (1, 3, 1, 65), (1, 1, 9, 65), (2, 1, 9, 65))
def a_broadcast_mask_is_its_expanded_copy(path: Path, *shape: int) -> None:
    q, k, v = path.draw((2, 3, 9, 16), (2, 3, 65, 16), (2, 3, 65, 16))
    rng = np.random.default_rng(5)
    for name, x in (("mask", rng.random(shape) < 0.7), ("bias", rng.normal(0, 1, shape))):
        expanded = np.ascontiguousarray(np.broadcast_to(x, (2, 3, 9, 65)))
        got, want = (path.attend(q, k, v, **{name: array}) for array in (x, expanded))
        path.same(got, want)


@bug(49, 513, 511, 77)
def rows_of_a_bias_lie_at_its_strides(path: Path, m: int) -> None:
    q, k, v = path.draw((2, 4, m, 16), (2, 4, 700, 16), (2, 4, 700, 16))
    bias = np.random.default_rng(m).normal(0, 1, (2, 4, m, 700)).astype(path.dtype)
    path.right(q, k, v, bias=bias)


@bug(50, 77, 43, 700, 1)
def a_bias_of_any_width(path: Path, n: int) -> None:
    for dtype in path.able(np.float16, np.float32):
        q, k, v = path.draw((2, 21, 16), (2, n, 16), (2, n, 16), dtype=dtype)
        wide = np.full((2, 21, n + 9), np.nan, np.float16)
        bias = np.random.default_rng(n).normal(0, 1, (2, 21, n)).astype(np.float16)
        want = path.right(q, k, v, bias=bias)
        for begin in (0, 1, 2, 3):
            wide[...] = np.nan
            wide[..., begin : begin + n] = bias
            path.same(path.attend(q, k, v, bias=wide[..., begin : begin + n]), want)


@bug(102)
def a_broadcast_array_and_then_a_real_one(path: Path) -> None:
    q, k, v = path.draw((3, 20, 64), (3, 30, 64), (3, 30, 64))
    rng = np.random.default_rng(6)
    bias, mask = rng.normal(0, 1, (3, 20, 30)).astype(path.dtype), rng.random((3, 20, 30)) < 0.7
    shared = (
        stepping(k, k.shape, 0, 64, 1),
        {"bias": stepping(bias, bias.shape, 0, 0, 1), "mask": stepping(mask, mask.shape, 0, 30, 1)},
    )
    for keys, options in (shared, (k, {"bias": bias, "mask": mask}), shared):
        path.right(q, keys, v, **options)


@bug(99, *itertools.product((0, 1, 2, 3), (0, 1, 3, 1 << 40)))
def strides_of_an_options_axes_of_extent_1(path: Path, axis: int, step: int) -> None:
    extents = (2, 3, 5, 7)
    q, k, v = path.draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    shape = tuple(1 if axis == a else extent for a, extent in enumerate(extents))
    rng = np.random.default_rng(7)
    for name, x in (("mask", rng.random(shape) < 0.8), ("bias", rng.normal(0, 1, shape))):
        strides = [stride // x.itemsize for stride in x.strides]
        strides[axis] = step
        view = stepping(x, shape, *strides)
        path.same(path.attend(q, k, v, **{name: view}), path.attend(q, k, v, **{name: x}))


@bug(104, "reversed", "sliced", "transposed")
def views_of_masks_and_biases(path: Path, kind: str) -> None:
    q, k, v = path.draw((3, 9, 16), (3, 12, 16), (3, 12, 16))
    rng = np.random.default_rng(8)
    for name, x in (
        ("mask", rng.random((3, 20, 20)) < 0.8),
        ("bias", rng.normal(0, 1, (3, 20, 20))),
    ):
        view = {
            "reversed": x[::-1, 8::-1, 11::-1],
            "sliced": x[:, 1:19:2, 5:17],
            "transposed": x.swapaxes(1, 2)[:, :9, :12],
        }[kind]
        copy = np.ascontiguousarray(view)
        path.same(path.attend(q, k, v, **{name: view}), path.attend(q, k, v, **{name: copy}))


@bug(106, "mask", "bias", "alibi_slopes", "sinks")
def an_output_over_an_option_is_refused(path: Path, name: str) -> None:
    q, k, v = path.draw((2, 3, 4, 5), (2, 3, 5, 5), (2, 3, 5, 5))
    out = np.full((2, 3, 4, 5), 7, path.dtype)
    over = out[:, :, 0, 0] if name in ("alibi_slopes", "sinks") else out
    if name == "mask":
        over = out.view(bool)[..., :5]
    with pytest.raises(ValueError, match=f"out shares memory with {name}"):
        path.attend(q, k, v, out=(out, np.zeros((2, 3, 4), np.float32)), **{name: over})
    assert (out == 7).all()
