"""Bugs of gradients around masks, biases, softcap and empty sizes; see `gradient_bugs`."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from bugcases import BFLOAT16
from gradient_bugs import FLOAT16, bug, drawn
from gradient_paths import QKV, GradientPath, draw_like


@bug(7, "mask", size="small")
@bug(7, "bias")
def rows_whose_mask_is_all_false(path: GradientPath, kind: str) -> None:
    for dtype in path.able(FLOAT16, np.dtype(np.float32)):
        do, q, k, v = drawn(path, *[(2, 3, 8, 64)] * 3, dtype=dtype)
        mask = np.ones((8, 8), bool)
        mask[[0, 3, 7]] = False
        options: dict[str, Any] = {"mask": mask}
        if kind == "bias":
            options = {"bias": np.where(mask, 0, -np.inf).astype(dtype)}
        do[:, :, [0, 3, 7]] = np.nan
        found = path.right(do, q, k, v, **options)
        assert (found["q"][:, :, [0, 3, 7]] == 0).all()
        others = [1, 2, 4, 5, 6]
        alone = path.right(do[:, :, others], q[:, :, others], k, v)
        path.same(
            {"q": found["q"][:, :, others]}, {"q": alone["q"]}, "as if the rows were not there"
        )


@bug(8, only=np.float32)
def the_lowest_finite_bias_is_no_mask(path: GradientPath) -> None:
    do, q, k, v = drawn(path, (4, 16), (8, 16), (8, 16), dtype=np.dtype(np.float32))
    bias = np.zeros((4, 8), np.float32)
    bias[1] = np.finfo(np.float32).min
    found = path.gradients(do, q, k, v, bias=bias, wrt=(*QKV, "bias"))
    assert all(np.isfinite(x).all() for x in found.values())
    plain = path.gradients(do, q, k, v, bias=np.zeros((4, 8), np.float32))
    others = [0, 2, 3]
    path.same({"q": found["q"][others]}, {"q": plain["q"][others]}, "the other rows")


@bug(9, ("mask", "k", np.nan), ("bias", "v", np.inf), size="small")
@bug(9, *itertools.product(("mask", "bias"), QKV[1:], (np.nan, -np.inf)))
def a_hidden_key_is_not_a_number(path: GradientPath, kind: str, where: str, value: float) -> None:
    arrays = drawn(path, (1, 2, 4), (1, 2, 4), (1, 2, 4))
    do, q, k, v = arrays
    want = path.gradients(do, q, k[:, :1], v[:, :1])
    {"k": k, "v": v}[where][:, 1] = value
    mask = np.array([True, False])
    options: dict[str, Any] = {"mask": mask}
    if kind == "bias":
        options = {"bias": np.where(mask, 0, -np.inf).astype(np.float32)}
    found = path.right(do, q, k, v, **options)
    for name in ("k", "v"):
        assert (found[name][:, 1] == 0).all()
        found[name] = found[name][:, :1]
    # Two rows of one key: what rounding leaves of dS isn't the same in both calls.
    path.same({"v": found["v"]}, {"v": want["v"]}, "the one-key call")


@bug(10)
def the_first_tiles_of_a_row_are_hidden(path: GradientPath) -> None:
    do, q, k, v = drawn(path, *[(600, 8)] * 3)
    distance = np.arange(600) - np.arange(600)[:, None]
    band = (distance < 1) & (distance > -10)
    bias = np.where(band, 0, -np.inf).astype(path.dtype)
    found = path.right(do, q, k, v, bias=bias, wrt=(*QKV, "bias"))
    assert (found["bias"][~band] == 0).all()
    path.right(do, q, k, v, window=(9, 0))


@bug(11, only=BFLOAT16)
def huge_scores_of_one_key(path: GradientPath) -> None:
    x = np.full((1, 1, 1, 64), 133120, BFLOAT16)
    do = np.ones_like(x)
    found = path.gradients(do, x, x, x)
    np.testing.assert_array_equal(found["v"], do)
    assert np.isfinite(found["q"].astype(float)).all()


@bug(12, "plain", "mask", "causal")
def a_negative_scale(path: GradientPath, kind: str) -> None:
    do, q, k, v = drawn(path, (5, 16), (7, 16), (7, 16))
    mask = np.random.default_rng(1).random((5, 7)) < 0.6
    options: dict[str, Any] = {"plain": {}, "mask": {"mask": mask}, "causal": {"causal": True}}
    path.right(do, q, k, v, scale=-10.0, **options[kind])


@bug(27, 64, only=BFLOAT16, size="small")
@bug(27, 256, only=BFLOAT16, size="large")
def a_large_float32_bias_of_16_bit_arrays(path: GradientPath, n: int) -> None:
    do, q, k, v = drawn(path, *[(2, 4, n, 64)] * 3, dtype=BFLOAT16)
    bias = np.random.default_rng(1).uniform(-1e4, 1e4, (4, n, n)).astype(np.float32)
    bias[..., 50] = -np.inf
    found = path.right(do, q, k, v, bias=bias, wrt=("bias", *QKV))
    assert found["bias"].dtype == np.float32
    assert (found["bias"][..., 50] == 0).all()
    assert all(np.isfinite(x.astype(float)).all() for x in found.values())


@bug(28, 100, only=FLOAT16, size="small")
@bug(28, 1023, only=FLOAT16)
def scores_beyond_float16(path: GradientPath, n: int) -> None:
    do, q, k, v = drawn(path, *[(2, 1, n, 128)] * 3, dtype=FLOAT16)
    found = path.right(do, q * FLOAT16.type(5), k * FLOAT16.type(3), v, causal=True)
    assert all(np.isfinite(x.astype(float)).all() for x in found.values())
    x = np.full((1, 40, 128), 300, FLOAT16)
    path.right(do[0, :, :40], x, x, v[0, :, :40])


@bug(29, "mask", "bias")
def a_mask_for_another_length(path: GradientPath, kind: str) -> None:
    do, q, k, v = drawn(path, (2, 3, 5, 8), (2, 3, 20, 8), (2, 3, 20, 8))
    for shape in ((4096,), (5, 25), (3, 2, 5, 25), (4, 20), (2, 2, 5, 20)):
        options = {kind: np.ones(shape, bool if kind == "mask" else np.float32)}
        with pytest.raises(ValueError, match=rf"{kind} has shape"):
            path.gradients(do, q, k, v, **options)


@bug(31, "lengths", "mask", "no keys")
def an_empty_row_has_its_sink(path: GradientPath, kind: str) -> None:
    do, q, k, v = drawn(path, (2, 3, 8), (2, 5, 8), (2, 5, 8))
    if kind == "no keys":
        k, v = k[:, :0], v[:, :0]
    options: dict[str, Any] = {
        "lengths": {"k_lengths": np.zeros(2, np.int32)},
        "mask": {"mask": np.zeros((), bool)},
    }.get(kind, {})
    dlse = np.ones((2, 3), np.float32)
    sinks = np.array(0.5, np.float32)
    do[...] = np.nan
    found = path.gradients(do, q, k, v, dlse=dlse, sinks=sinks, wrt=(*QKV, "sinks"), **options)
    assert found.pop("sinks") == 6
    assert all((x == 0).all() for x in found.values())


@bug(34)
def windows_that_are_causal(path: GradientPath) -> None:
    n = 700
    arrays = drawn(path, *[(2, n, 64)] * 3)
    want = path.gradients(*arrays, causal=True)
    for window in ((n - 1, 0), (n, 0), (None, 0)):
        path.same(path.gradients(*arrays, window=window), want, f"{window}")


@bug(37, 0, 1, 63, 64, 65)
def both_ends_of_a_window_count(path: GradientPath, width: int) -> None:
    """With q = 0 a key's dv is the sum of do / count over the rows that see it."""
    n = 150
    q, k, v = (x.astype(path.dtype) for x in (np.zeros((n, 8)), np.ones((n, 8)), np.ones((n, 8))))
    do = np.zeros((n, 160), path.dtype)
    do[:, :n] = np.eye(n)
    v = np.ones((n, 160), path.dtype)
    found = path.gradients(do, q, k, v, window=(width, 0))
    seen = (np.arange(n)[:, None] >= np.arange(n)) & (np.arange(n)[:, None] - np.arange(n) <= width)
    np.testing.assert_array_equal(found["v"][:, :n].astype(float) != 0, seen.T)


@bug(42, (15.0, 40, 60), size="small")
@bug(42, (30.0, 40, 60), (50.0, 40, 60))
@bug(42, (15.0, 200, 300), (30.0, 200, 300), (50.0, 200, 300), size="large")
def softcap_in_a_window_with_grouped_heads(
    path: GradientPath, softcap: float, rows: int, keys: int
) -> None:
    do, q, k, v = drawn(path, (1, 8, rows, 128), (1, 2, keys, 128), (1, 2, keys, 128))
    q *= path.dtype.type(10)
    options: dict[str, Any] = {"causal": True, "window": (keys - rows + 27, 0)}
    found = path.right(do, q, k, v, softcap=softcap, **options)
    plain = path.gradients(do, q, k, v, **options)
    assert np.abs((found["q"] - plain["q"]).astype(float)).max() > 1e-2, "softcap is ignored"


@bug(43, 1e-3, 1.0, 15.0, 1e6)
def softcap_with_a_window_and_alibi(path: GradientPath, softcap: float) -> None:
    do, q, k, v = drawn(path, (2, 2, 40, 16), (2, 2, 45, 16), (2, 2, 45, 16))
    slopes = np.array([0.25, 0.01], np.float32)
    for scale in (0.25, 8.0):
        path.right(
            *(do, q, k, v, (*QKV, "alibi_slopes", "scale")),
            softcap=softcap,
            scale=scale,
            window=(3, 5),
            alibi_slopes=slopes,
        )


@bug(45, (2, 1, 1, 65), size="small")
@bug(45, (1, 1, 9, 65), (9, 1), (1, 3, 1, 65), (2, 1, 9, 65), (65,), ())
def a_broadcast_bias_has_the_sum_of_its_copies(path: GradientPath, *shape: int) -> None:
    do, q, k, v = drawn(path, (2, 3, 9, 16), (2, 3, 65, 16), (2, 3, 65, 16))
    bias = np.random.default_rng(5).normal(0, 1, shape).astype(np.float32)
    wrt = (*QKV, "bias")
    found = path.right(do, q, k, v, wrt, bias=bias)
    full = np.ascontiguousarray(np.broadcast_to(bias, (2, 3, 9, 65)))
    expanded = path.right(do, q, k, v, wrt, bias=full)
    extents = (1,) * (4 - len(shape)) + shape
    axes = tuple(axis for axis, extent in enumerate(extents) if extent == 1)
    summed = expanded["bias"].astype(float).sum(axis=axes, keepdims=True).reshape(shape)
    size = np.abs(expanded["bias"]).sum(axis=axes, keepdims=True).reshape(shape)
    assert (np.abs(found["bias"] - summed) <= 2.0**-18 * (size + size.max())).all()
    for name in QKV:
        path.same({name: found[name]}, {name: expanded[name]}, "the expanded bias")


@bug(47, (1, 3, 65, 65), (3, 3, 65, 65))
def a_bias_of_three_identical_entries(path: GradientPath, *shape: int) -> None:
    single = drawn(path, *[(1, 3, 65, 16)] * 3)
    bias = np.random.default_rng(4).normal(0, 1, (1, 3, 65, 65)).astype(np.float32)
    one = path.right(*single, wrt=("bias",), bias=bias)["bias"]
    do, q, k, v = (np.repeat(x, 3, axis=0) for x in single)
    given = np.ascontiguousarray(np.broadcast_to(bias, shape))
    found = path.right(do, q, k, v, wrt=("bias",), bias=given)["bias"]
    assert found.shape == shape
    if shape[0] == 1:
        np.testing.assert_allclose(found, 3 * one, rtol=2.0**-20, atol=1e-8)
    else:
        path.same({"bias": found}, {"bias": np.repeat(one, 3, axis=0)}, "each entry")


@bug(49, 77)
@bug(49, 513, 511, size="large")
def rows_of_a_bias_lie_at_its_strides(path: GradientPath, m: int) -> None:
    n = 140 if m == 77 else 700
    do, q, k, v = drawn(path, (2, 4, m, 16), (2, 4, n, 16), (2, 4, n, 16))
    bias = np.random.default_rng(m).normal(0, 1, (2, 4, m, n)).astype(path.dtype)
    path.right(do, q, k, v, (*QKV, "bias"), bias=bias)


@bug(50, 77, 43, 1)
def a_bias_of_any_width(path: GradientPath, n: int) -> None:
    do, q, k, v = drawn(path, (2, 21, 16), (2, n, 16), (2, n, 16))
    wide = np.full((2, 21, n + 9), np.nan, path.dtype)
    bias = np.random.default_rng(n).normal(0, 1, (2, 21, n)).astype(path.dtype)
    want = path.right(do, q, k, v, (*QKV, "bias"), bias=bias)
    for begin in (1, 2):
        wide[...] = np.nan
        wide[..., begin : begin + n] = bias
        view = wide[..., begin : begin + n]
        path.same(path.gradients(do, q, k, v, wrt=(*QKV, "bias"), bias=view), want, f"{begin}")


@bug(72, "rows", size="small")
@bug(72, "keys")
def entries_without_rows_or_keys(path: GradientPath, which: str) -> None:
    do, q, k, v = drawn(path, (3, 4, 20, 32), (3, 1, 30, 32), (3, 1, 30, 32))
    lengths = np.array([20, 0, 7] if which == "rows" else [30, 0, 11], np.int32)
    name = "q_lengths" if which == "rows" else "k_lengths"
    for x in (q, do) if which == "rows" else (k, v):
        x[1] = np.nan
    found = path.right(do, q, k, v, **{name: lengths})
    assert all((x[1] == 0).all() for x in found.values())


@bug(74, True, size="small")
@bug(74, False)
@bug(75, "batch", "heads", "m")
@bug(134, "p", "d")
def nothing_along_an_axis(path: GradientPath, what: Any) -> None:
    sizes = {"batch": 2, "heads": 2, "m": 4, "n": 5, "d": 8, "p": 8}
    if isinstance(what, bool):
        sizes["n"] = 0
    else:
        sizes[what] = 0
    batch, heads, m, n, d, p = sizes.values()
    q, k, v = path.draw((batch, heads, m, d), (batch, heads, n, d), (batch, heads, n, p))
    do = draw_like((batch, heads, m, p), path.dtype)
    sinks = np.zeros((), np.float32)
    found = path.gradients(
        do, q, k, v, causal=what is True, sinks=sinks, wrt=(*QKV, "sinks", "scale")
    )
    for name, x in zip(QKV, (q, k, v), strict=True):
        assert (found[name].shape, found[name].dtype) == (x.shape, x.dtype)
    assert found["scale"].shape == found["sinks"].shape == ()
    if what != "d":
        assert all((found[name] == 0).all() for name in ("q", "k", "scale"))
    else:
        path.right(do, q, k, v)
