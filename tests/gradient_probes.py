"""P9, exact probes of gradients: what they must be to the last bit, on inputs made for it.

Each probe is written against a `GradientPath`, so that the NumPy path, the emulated kernels and the
GPU answer the same questions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from cupy_flash import accuracy, reference
from gradient_paths import QKV, Array, GradientPath, allowed, draw_like
from option_arrays import reduced
from probe_options import BATCH, HEADS, OPTIONS, M, N, visible
from probe_tools import draw, edges, placed
from problems import DTYPES

BLINDING = {name: options for name, options in OPTIONS.items() if name != "changed scores"}


def problem(dtype: str, d: int, p: int, kv_heads: int = HEADS, group: int = 1) -> list[Array]:
    """Draw do, q, k and v."""
    q, k, v = draw(dtype, d, p, kv_heads, group)
    return [draw_like((*q.shape[:-1], p), q.dtype), q, k, v]


def wanted(options: dict[str, Any]) -> tuple[str, ...]:
    arrays = (name for name in ("bias", "sinks", "alibi_slopes") if name in options)
    return (*QKV, *arrays, "scale")


def check_one_key(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """The weight of a single key is 1: dv is the sum of do, and nothing moves it."""
    rng = np.random.default_rng(1)
    for m, heads in ((1, 1), (1, 3), (40, 2)):
        # Of small integers every sum is exact, in any order.
        do, k, v = (
            rng.integers(-3, 4, shape).astype(DTYPES[dtype])
            for shape in ((2, heads, m, p), (2, 1, 1, d), (2, 1, 1, p))
        )
        q = np.zeros((2, heads, m, d), DTYPES[dtype])
        wrt = (*QKV, "scale", "bias")
        found = path.gradients(do, q, k, v, wrt=wrt, bias=np.zeros((m, 1), np.float32))
        summed = do.astype(float).sum(axis=(1, 2), keepdims=True)
        assert (found.pop("v").astype(float) == summed).all(), "dv isn't the sum of do"
        for name, x in found.items():
            assert (x == 0).all(), f"d{name} of one key isn't 0"


def check_zero_do(path: GradientPath, dtype: str, d: int, p: int) -> None:
    _, q, k, v = problem(dtype, d, p)
    do = np.zeros((*q.shape[:-1], p), q.dtype)
    for name, options in OPTIONS.items():
        for argument, x in path.gradients(do, q, k, v, wrt=wanted(options), **options).items():
            assert (x == 0).all(), f"{name}: d{argument} isn't 0"


def check_non_interference(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """P2: what no row sees has gradients of exactly 0, and may hold anything: NaN, say."""
    do, q, k, v = problem(dtype, d, p)
    for name, options in BLINDING.items():
        seen = np.broadcast_to(visible(M, N, **options), (BATCH, HEADS, M, N))
        blind, hidden = ~seen.any(axis=-1), ~seen.any(axis=-2)
        if not hidden.any():
            continue
        wrt = tuple(argument for argument in wanted(options) if argument != "bias")
        want = path.gradients(do, q, k, v, wrt=wrt, **options)
        for argument, unseen in (("q", blind), ("k", hidden), ("v", hidden)):
            assert (want[argument][unseen] == 0).all(), f"{name}: d{argument} of what is hidden"
            assert np.isfinite(want[argument].astype(float)).all()
        for value in (np.nan, np.inf, -np.inf, float(ml_dtypes.finfo(DTYPES[dtype]).max)):
            poison = DTYPES[dtype].type(value)
            poisoned = (
                np.where(which[..., None], poison, x)
                for which, x in ((blind, do), (blind, q), (hidden, k), (hidden, v))
            )
            got = path.gradients(*poisoned, wrt=wrt, **options)
            path.same(got, want, f"{name}: {value} where unseen")


def check_hidden_bias(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """A bias has a gradient of exactly 0 where a pair is hidden, whoever hides it, NaN there too.

    Of a bias that entries or heads share, where none of them sees the pair.
    """
    arrays = do, q, k, v = problem(dtype, d, p)
    for name, is_full in itertools.product(("bias", "everything"), (False, True)):
        options = dict(OPTIONS[name])
        seen = np.broadcast_to(visible(M, N, **options), (BATCH, HEADS, M, N))
        if is_full:
            options["bias"] = np.ascontiguousarray(np.broadcast_to(options["bias"], seen.shape))
        found = path.gradients(*arrays, wrt=("bias",), **options)["bias"]
        shown = reduced(seen, found.shape)
        what = f"{name}, {'own' if is_full else 'shared'}"
        assert (found[~shown] == 0).all(), f"{what}: dbias of a hidden pair"
        assert (found[shown] != 0).mean() > 0.99, f"{what}: dbias of a visible pair"
        blind, hidden = ~seen.any(axis=-1), ~seen.any(axis=-2)
        poison = DTYPES[dtype].type(np.nan)
        poisoned = (
            np.where(which[..., None], poison, x)
            for which, x in ((blind, do), (blind, q), (hidden, k), (hidden, v))
        )
        got = path.gradients(*poisoned, wrt=("bias",), **options)
        path.same(got, {"bias": found}, f"{what}: NaN where unseen")


def check_sums(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """A row's weights keep their sum: its dbias have the sum 0. And sums over axes are sums."""
    arrays = problem(dtype, d, p)
    shapes = {"full": (BATCH, HEADS, M, N), "rows": (M, 1), "keys": (N,), "one": ()}
    options: dict[str, Any] = {"causal": True, "offset": 20, "softcap": 2.0}
    found, limits = {}, {}
    for name, shape in shapes.items():
        options["bias"] = np.zeros(shape, np.float64 if dtype == "float64" else np.float32)
        got = path.gradients(*arrays, wrt=("bias",), **options)
        exact = reference.attention_backward(*arrays, wrt=("bias",), **options)
        dtypes = {"bias": got["bias"].dtype}
        bound = allowed(tuple(arrays), options, exact, dtypes, path.family)
        found[name], limits[name] = got["bias"].astype(float), bound["bias"]
    assert np.abs(found["full"]).max() > 1e-3
    sums = {
        "rows": ((0, 1, 3), found["full"].sum(axis=(0, 1, 3))[:, None]),
        "keys": ((0, 1, 2), found["full"].sum(axis=(0, 1, 2))),
        "one": ((0, 1, 2, 3), found["full"].sum()),
    }
    for name, (axes, summed) in sums.items():
        slack = limits["full"].sum(axis=axes).reshape(shapes[name])
        assert (np.abs(found[name] - summed) <= slack + limits[name]).all(), f"bias of {name}"
    for name in ("rows", "one"):
        assert (np.abs(found[name]) <= limits[name]).all(), f"bias of {name}: not 0"
    by_row = np.abs(found["full"].sum(axis=-1))
    assert (by_row <= limits["full"].sum(axis=-1)).all(), "a row's dbias have another sum than 0"


def check_many_equal_terms(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """Thousands of terms are summed in parts: of equal ones a single sum loses the same each time.

    Scores are 0, and values have both signs, so that dS has one size everywhere.
    """
    of_sums, of_results = (accuracy.ROUNDING[x] for x in (accuracy.accumulation(dtype), dtype))
    few = 200 * of_sums + 4 * of_results
    numbers = 1 + np.arange(max(d, p)) % 8 / 8
    even = np.arange(d) % 2 == 0
    of_rows, of_keys, do = (
        np.where(even, numbers[:d], 0),
        np.where(even, 0, numbers[:d]),
        numbers[:p],
    )
    for heads, m, n in ((1, 20, 4000), (1, 4000, 20), (200, 20, 20)):
        sign = 1.0 - 2.0 * (np.arange(n)[:, None] % 2)
        arrays = (
            np.broadcast_to(x, (*shape, x.shape[-1])).astype(DTYPES[dtype], order="C")
            for x, shape in (
                (do, (heads, m)),
                (of_rows, (heads, m)),
                (sign * of_keys, (1, n)),
                (sign * np.ones(p), (1, n)),
            )
        )
        slope = do.sum() / np.sqrt(d)
        shares = heads * m / n
        want = {"q": slope * of_keys, "k": slope * shares * sign * of_rows, "v": shares * do}
        for name, x in path.gradients(*arrays).items():
            exact = np.broadcast_to(want[name], x.shape)
            what = f"d{name} of {heads} heads, {m} rows, {n} keys"
            np.testing.assert_allclose(x.astype(float), exact, few, few, err_msg=what)


def check_linearity(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """Gradients of do times a power of two are theirs times it, to the bit."""
    do, q, k, v = problem(dtype, d, p)
    # Between 1 and 2, so that no factor leaves a subnormal number.
    do = np.copysign(np.abs(do.astype(float)) % 1 + 1, do.astype(float)).astype(do.dtype)
    tiny = float(ml_dtypes.finfo(DTYPES[dtype]).tiny)
    for name in ("plain", "causal lengths", "everything"):
        options = OPTIONS[name]
        wrt = wanted(options)
        want = path.gradients(do, q, k, v, wrt=wrt, **options)
        for factor in (2.0, -8.0, 0.25):
            got = path.gradients(do * do.dtype.type(factor), q, k, v, wrt=wrt, **options)
            for argument, x in got.items():
                if path.family == "sm80" and dtype == "float16" and argument in ("q", "k"):
                    # dS of small weights are subnormal numbers, which round in another place.
                    continue
                y = want[argument].astype(float) * factor
                x, smaller = x.astype(float), np.minimum(np.abs(y), np.abs(y / factor))
                # What is tiny now may have been rounded up to it.
                normal = smaller > tiny
                what = f"{name}: d{argument} of do times {factor}"
                assert normal.any(), what
                assert (x[normal] == y[normal]).all(), what
                assert (np.abs(x[~normal]) <= 8 * tiny).all(), what


def check_permutations(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """P4: gradients of batch entries and heads don't depend on their order."""
    arrays = problem(dtype, d, p)
    for name in ("plain", "causal"):
        found = path.gradients(*arrays, **OPTIONS[name])
        for axis, what in ((0, "batch"), (1, "heads")):
            order = np.roll(np.arange(arrays[0].shape[axis]), 1)
            moved = [np.take(x, order, axis) for x in arrays]
            want = {argument: np.take(x, order, axis) for argument, x in found.items()}
            path.same(path.gradients(*moved, **OPTIONS[name]), want, f"{name}: {what}")


def check_layouts(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """P8: strides and alignment change nothing, and what lies between the elements isn't read."""
    do, q, k, v = problem(dtype, d, p)
    options = {"causal": True, "offset": 5}
    do = np.ascontiguousarray(do[:2, :, :37])
    for number, (what, views) in enumerate(placed([q[:2, :, :37], k[:2, :, :45], v[:2, :, :45]])):
        if number % 3 and path.family != "simt":
            continue
        packed = [np.ascontiguousarray(x) for x in views]
        want = path.gradients(do, *packed, **options)
        path.same(path.gradients(do, *views, **options), want, what)


def check_row_alone(path: GradientPath, dtype: str, d: int, p: int) -> None:
    """Batch invariance: dq of a row by itself has the bits that it has among others."""
    do, q, k, v = problem(dtype, d, p, 2, 2)
    for options in ({"offset": 30}, {"causal": True, "offset": 20}, {"window": (13, 4)}):
        offset = options.get("offset", N - M)
        want = path.gradients(do, q, k, v, wrt=("q",), **options)["q"]
        for b, h, i in itertools.product(range(0, BATCH, 2), (0, 3), edges(M)):
            alone = do[b, h, i : i + 1], q[b, h, i : i + 1], k[b, h // 2], v[b, h // 2]
            got = path.gradients(*alone, wrt=("q",), **options | {"offset": offset + int(i)})
            path.same(got, {"q": want[b, h, i : i + 1]}, f"{options}: row {i} of head {h}")


def check_repeatable(path: GradientPath, dtype: str, d: int, p: int) -> None:
    arrays = problem(dtype, d, p)
    for name, options in OPTIONS.items():
        wrt = wanted(options)
        want = path.gradients(*arrays, wrt=wrt, **options)
        for argument, x in path.gradients(*arrays, wrt=wrt, **options).items():
            assert x.tobytes() == want[argument].tobytes(), f"{name}: other bits of d{argument}"


Probe = Callable[[GradientPath, str, int, int], None]
PROBES: dict[str, Probe] = {
    "one key": check_one_key,
    "zero do": check_zero_do,
    "P2 non-interference": check_non_interference,
    "hidden bias": check_hidden_bias,
    "sums": check_sums,
    "many equal terms": check_many_equal_terms,
    "linearity": check_linearity,
    "P4 permutations": check_permutations,
    "P8 layouts": check_layouts,
    "row alone": check_row_alone,
    "repeatable": check_repeatable,
}
