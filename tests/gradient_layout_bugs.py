"""Bugs of gradients around strides, addresses and what shares memory; see `gradient_bugs`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gradient_bugs import bug, drawn
from gradient_paths import QKV, GradientPath


@bug(90, (3, 2), (2, 3, 1), (2,), (6,), (2, 4))
def an_lse_of_another_shape_is_refused(path: GradientPath, *shape: int) -> None:
    do, q, k, v = drawn(path, (2, 3, 8), (2, 5, 8), (2, 5, 8))
    lse = np.zeros(shape, np.float32)
    with pytest.raises(ValueError, match=r"lse has shape .*must be \(2, 3\)"):
        path.gradients(do, q, k, v, lse=lse)


@bug(98, *itertools.islice(itertools.permutations(range(4)), 0, None, 5))
def every_order_of_axes(path: GradientPath, *order: int) -> None:
    arrays = drawn(path, *[(1, 4, 62, 32)] * 3)
    want = path.gradients(*arrays)
    for changed in range(4):
        views = list(arrays)
        in_memory = np.ascontiguousarray(arrays[changed].transpose(order))
        views[changed] = in_memory.transpose(np.argsort(order))
        path.alike(path.gradients(*views), want, arrays, {}, f"array {changed}")


@bug(99, *itertools.product((0, 1, 2), (0, 3, 1 << 40)))
def strides_of_axes_of_extent_1(path: GradientPath, axis: int, step: int) -> None:
    shape = tuple(1 if axis == a else n for a, n in enumerate((2, 3, 5, 8)))
    arrays = drawn(path, shape, shape, shape)
    want = path.gradients(*arrays)
    other = np.arange(4) == axis
    size = path.dtype.itemsize
    views = [
        np.ndarray(shape, x.dtype, x, 0, np.where(other, size * step, x.strides)) for x in arrays
    ]
    path.same(path.gradients(*views), want)


@bug(101, "transposed", size="small")
@bug(101, "a sum", "rows", "columns")
def strides_of_do(path: GradientPath, kind: str) -> None:
    do, q, k, v = drawn(path, (2, 3, 33, 24), (2, 3, 70, 24), (2, 3, 70, 24))
    view = {
        "transposed": np.ascontiguousarray(do.swapaxes(1, 3)).swapaxes(1, 3),
        "a sum": np.broadcast_to(np.ones((), do.dtype), do.shape),
        "rows": np.broadcast_to(do[:, :, :1], do.shape),
        "columns": np.broadcast_to(do[..., :1], do.shape),
    }[kind]
    found = path.right(view, q, k, v)
    packed = [np.ascontiguousarray(view), q, k, v]
    path.alike(path.gradients(*packed), found, packed, {}, "contiguous do")


@bug(101, 65_536)
def the_gradient_of_a_sum_over_many_keys(path: GradientPath, n: int) -> None:
    _, q, k, v = drawn(path, (1, 32), (n, 32), (n, 32))
    do = np.broadcast_to(np.ones((), q.dtype), q.shape)
    path.right(do, q, k, v)


@bug(102)
def strided_do_and_then_another_batch(path: GradientPath) -> None:
    do, q, k, v = drawn(path, (3, 40, 64), (3, 30, 64), (3, 30, 64))
    shared = np.broadcast_to(k[:1], k.shape)
    for keys in (shared, k, shared):
        path.right(do[:, ::2], q[:, ::2], keys, v)
        path.right(do, q, keys[:1], v)


@bug(103, 1, 3)
def odd_addresses_and_pitches(path: GradientPath, first: int) -> None:
    arrays = drawn(path, (3, 20, 64), (3, 40, 64), (3, 40, 64))
    views = []
    for x in arrays:
        buffer = np.full(first + x.shape[0] * x.shape[1] * 65, np.nan, x.dtype)
        views.append(buffer[first:].reshape(*x.shape[:2], 65)[..., :64])
        views[-1][...] = x
    options = {"causal": True}
    got, want = (path.gradients(*x, **options) for x in (views, arrays))
    path.alike(got, want, arrays, options, "odd addresses")


@bug(104, "batch reversed", "rows reversed", "sliced", "broadcast")
def views_are_read_as_they_are(path: GradientPath, kind: str) -> None:
    do, q, k, v = drawn(path, (3, 9, 16), (3, 12, 16), (3, 12, 16))
    views = {
        "batch reversed": (do[::-1], q[::-1], k, v),
        "rows reversed": (do[:, ::-1], q[:, ::-1], k[:, ::-1], v[..., ::-1]),
        "sliced": (do, q, k[:, 3:], v[:, 3:]),
        "broadcast": (do, q, np.broadcast_to(k[:1], k.shape), v),
    }[kind]
    path.same(path.gradients(*views), path.gradients(*map(np.ascontiguousarray, views)))


@bug(25, np.nan, 7.0)
def gradients_of_what_is_hidden_are_written(path: GradientPath, stale: float) -> None:
    do, q, k, v = drawn(path, (2, 9, 8), (2, 70, 8), (2, 70, 5))
    mask = np.ones((9, 70), bool)
    mask[:6], mask[:, 50:] = False, False
    bias = np.zeros((9, 70), np.float32)
    sources: dict[str, Any] = {"q": q, "k": k, "v": v, "bias": bias}
    out = tuple(np.full(x.shape, stale, x.dtype) for x in sources.values())
    found = path.gradients(do, q, k, v, wrt=(*sources,), out=out, mask=mask, bias=bias)
    for given, x in zip(out, found.values(), strict=True):
        np.testing.assert_array_equal(given, x)
    assert (found["q"][:, :6] == 0).all()
    assert (found["k"][:, 50:] == 0).all()
    assert (found["v"][:, 50:] == 0).all()
    assert (found["bias"][~mask] == 0).all()
    assert all(np.isfinite(x.astype(float)).all() for x in found.values())


@bug(106, "do", *QKV)
def an_output_over_an_input_is_refused(path: GradientPath, name: str) -> None:
    arrays = dict(zip(("do", *QKV), drawn(path, *[(10, 8)] * 3), strict=True))
    before = {key: x.copy() for key, x in arrays.items()}
    out = tuple(arrays[name] if key == "q" else None for key in QKV)
    with pytest.raises(ValueError, match=f"the q array in out shares memory with {name}"):
        path.gradients(*arrays.values(), out=out)
    for key, x in arrays.items():
        np.testing.assert_array_equal(x, before[key])


@bug(106)
def interleaved_views_are_accepted(path: GradientPath) -> None:
    do, q, k, v = drawn(path, (2, 10, 8), (2, 70, 8), (2, 70, 8))
    both = np.full((2, 70, 2, 8), 7, path.dtype)
    out = (None, both[:, :, 0], both[:, :, 1])
    found = path.gradients(do, q, k, v, out=out)
    want = path.gradients(do, q, k, v)
    path.same(found, want, "interleaved")
    path.same({"k": both[:, :, 0], "v": both[:, :, 1]}, {n: want[n] for n in ("k", "v")})


@bug(106)
def gradients_over_one_another_are_refused(path: GradientPath) -> None:
    arrays = drawn(path, *[(2, 10, 8)] * 3)
    out = np.full((3, 10, 8), 7, path.dtype)
    with pytest.raises(ValueError, match="share memory"):
        path.gradients(*arrays, out=(None, out[:2], out[1:]))
    assert (out == 7).all()
