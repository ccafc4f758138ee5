"""Exact probes of single options: what they must do to the last bit, or nearly.

As in `probes`, against ``attend(q, k, v, **options) -> (out, lse)``.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from cupy_flash import accuracy
from layouts import LAYOUTS
from option_arrays import placed
from probe_options import BATCH, HEADS, LEADING, OPTIONS, PAIRS, M, N, visible
from probe_tools import (
    assert_close,
    assert_same,
    assert_same_bits,
    bounds,
    draw,
    edges,
)
from problems import DTYPES


def check_needles(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P3: 60 above all others, a bias, a slope or a sink is all that counts, wherever it stands."""
    q, k = (np.zeros((rows, d), DTYPES[dtype]) for rows in (M, N))
    rng = np.random.default_rng(3)
    v = (rng.uniform(1, 2, (N, p)) * rng.choice((-1, 1), (N, p))).astype(DTYPES[dtype])
    needles = edges(N)
    bias = np.zeros((len(needles), 1, 1, N), np.float32)
    bias[np.arange(len(needles)), 0, 0, needles] = 60
    batch = np.broadcast_to(q, (len(needles), 1, M, d))
    for options in ({}, {"causal": True}, {"window": (9, 2)}, {"mask": np.arange(N) % 3 > 0}):
        seen = visible(M, N, **options)[0]
        out, lse = attend(batch, k, v, bias=bias, **options)
        finds = seen[:, needles].T
        want = np.broadcast_to(v[needles][:, None], out[:, 0].shape)
        assert (out[:, 0][finds] == want[finds]).all(), f"{options}: not the needle's row"
        assert (np.abs(lse[:, 0][finds] - 60) <= 60 * 2.0**-23).all(), f"{options}: lse"
        count = np.broadcast_to(seen.sum(axis=-1), finds.shape)[~finds]
        log = np.log(np.maximum(count, 1))[count > 0]
        assert np.abs(lse[:, 0][~finds][count > 0] - log).max(initial=0) < 2.0**-20
        assert (lse[:, 0][~finds][count == 0] == -np.inf).all()
    # A slope of 60 leaves the key at which the row stands.
    for offset in (0, 17, -5):
        out, lse = attend(q, k, v, alibi_slopes=np.full((), 60.0, np.float32), offset=offset)
        rows = np.arange(max(-offset, 0), min(M, N - offset))
        assert (out[rows] == v[rows + offset]).all(), f"offset {offset}: not the row's own key"
        assert np.abs(lse[rows]).max() < 2.0**-20, f"offset {offset}: its own key is at distance 0"
    # A cap holds a score of 6000 at 15, and tanh is 1 there.
    q[:, :1], capped = 8, np.zeros_like(k)
    for score in (6000, -6000):
        capped[37, :1] = 7.5 * np.sign(score)
        out, lse = attend(q, capped, v, scale=100.0, softcap=15.0)
        want = np.log(N - 1 + np.exp(15.0 * np.sign(score)))
        assert np.abs(lse - want).max() < 2.0**-16, f"a score of {score} is not capped"
    # A sink of 60 or 100 leaves nothing for the keys; without keys it is all there is.
    for sink, keys in itertools.product((60.0, 100.0), (N, 0)):
        out, lse = attend(q, k[:keys], v[:keys], sinks=np.array(sink))
        assert np.isfinite(out.astype(np.float64)).all()
        assert np.abs(out.astype(np.float64)).max(initial=0) <= 4 * N * np.exp(-sink)
        assert (np.abs(lse - sink) <= sink * 2.0**-23).all(), f"lse is not the sink {sink}"


def check_other_heads(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P2: a key that no row of a head sees doesn't matter there, though other heads see it."""
    q, k, v = draw(dtype, d, p, 1, 2)
    mask = np.random.default_rng(2).random((BATCH, 2, M, N)) < 0.7
    mask[:, 0, :, 40:70] = False
    want = attend(q, k, v, mask=mask)
    hidden = ~mask[:, 0].any(axis=1)
    k, v = (np.where(hidden[:, None, :, None], x.dtype.type(np.nan), x) for x in (k, v))
    bias = np.where(mask, 0, -np.inf).astype(np.float32)
    for options, exact in (({"mask": mask}, want), ({"bias": bias}, attend(q, k, v, bias=bias))):
        out, lse = attend(q, k, v, **options)
        assert np.isfinite(exact[0][:, 0].astype(np.float64)).all()
        first = out[:, 0], lse[:, 0]
        assert_same_bits(first, (exact[0][:, 0], exact[1][:, 0]), f"{list(options)} of a head")


def check_order(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P4: heads and batch in another order, with their options, have the same bits."""
    q, k, v = draw(dtype, d, p)
    rng = np.random.default_rng(4)
    given = {
        "mask": rng.random((BATCH, HEADS, 1, N)) < 0.8,
        "bias": rng.normal(0, 1, (HEADS, M, N)).astype(np.float32),
        "alibi_slopes": rng.uniform(0, 0.2, HEADS).astype(np.float32),
        "sinks": rng.normal(0, 1, (BATCH, HEADS)).astype(np.float32),
    }
    for name in given:
        options = {name: given[name]}
        want = attend(q, k, v, **options)
        full = {
            key: np.broadcast_to(x, (BATCH, HEADS, *(x.shape[-2:] if key in PAIRS else ())))
            for key, x in options.items()
        }
        for axis in (0, 1):
            order = np.roll(np.arange(q.shape[axis]), 1)
            moved = [np.take(x, order, axis) for x in (q, k, v)]
            own = {key: np.take(x, order, axis) for key, x in full.items()}
            turned = tuple(np.take(x, order, axis) for x in want)
            what = f"{name}: axis {axis} in another order"
            assert_same(attend(*moved, **own), turned, moved, own, family, what)
        keys = rng.permutation(N)
        if name in PAIRS:
            own = {name: options[name][..., keys]}
            got = attend(q, k[..., keys, :], v[..., keys, :], **own)
            assert_close(got, want, [q, k, v], options, family, f"{name}: keys in another order")


def check_grouped_options(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P4: options are of query heads; grouped heads are the same as keys and values repeated."""
    kv_heads, group = 2, 3
    heads = kv_heads * group
    q, k, v = (x[:1] for x in draw(dtype, d, p, kv_heads, group))
    rng = np.random.default_rng(5)
    options = {
        "mask": rng.random((heads, M, N)) < 0.8,
        "bias": rng.normal(0, 1, (heads, 1, N)).astype(np.float32),
        "alibi_slopes": rng.uniform(0, 0.2, heads).astype(np.float32),
        "sinks": rng.normal(0, 1, heads).astype(np.float32),
    }
    repeated = [q, np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)]
    got, want = attend(q, k, v, **options), attend(*repeated, **options)
    assert_same(got, want, repeated, options, family, "grouped heads with options")


def check_layouts_of_options(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P8: strides and broadcasting of an option's array change nothing; its gaps aren't read."""
    q, k, v = draw(dtype, d, p)
    arrays = [q[:2, :, :37], k[:2, :, :45], v[:2, :, :45]]
    rng = np.random.default_rng(8)
    small = {
        "mask": rng.random((2, HEADS, 37, 45)) < 0.7,
        "bias": rng.normal(0, 1, (2, HEADS, 37, 45)).astype(DTYPES[dtype]),
        "alibi_slopes": rng.uniform(0, 0.2, (2, HEADS)).astype(np.float32),
        "sinks": rng.normal(0, 1, (2, HEADS)).astype(np.float32),
    }
    want = attend(*arrays, **small)
    for layout in LAYOUTS:
        # In the layout "broadcast" all leading axes are one.
        views = {name: placed(x, layout).numpy() for name, x in small.items()}
        copies = {name: np.ascontiguousarray(x) for name, x in views.items()}
        what = f"options {layout}"
        expected = attend(*arrays, **copies) if layout == "broadcast" else want
        assert_same(attend(*arrays, **views), expected, arrays, copies, family, what)
    for pattern in ((2, 1, 1, 45), (1, 2, 37, 45), (37, 1), (1, 45), (45,), (2, 2, 1, 1), ()):
        for name in PAIRS:
            first = (0,) * (4 - len(pattern)) + tuple(map(slice, pattern))
            part = np.asarray(small[name][first])
            full = {name: np.ascontiguousarray(np.broadcast_to(part, (2, HEADS, 37, 45)))}
            got, whole = (attend(*arrays, **given) for given in ({name: part}, full))
            assert_same(got, whole, arrays, full, family, f"{name} of shape {pattern}")


def equivalent() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return pairs of options that mean the same and must have the same bits.

    Where one has a mask or a bias the other has one too, as large in memory, since those may take
    tiles of other keys.
    """
    i, j = np.arange(M)[:, None], np.arange(N)
    keys = np.array([64, 97, 5], np.int32)
    tri = j <= i + N - M
    band = tri & (j >= i + N - M - 13)
    zero = np.zeros((M, N), np.float32)
    all_seen = np.ones((M, N), bool)
    hidden = np.where(band, np.float32(0), np.float32(-np.inf))
    everything = OPTIONS["everything"]

    def in_type(dtype: Any) -> dict[str, Any]:
        return everything | {name: everything[name].astype(dtype) for name in ("bias", *LEADING)}

    return [
        ("wide window", {"window": (1 << 61, 1 << 61)}, {}),
        ("no bounds", {"window": (None, None)}, {}),
        ("window of all keys", {"window": (N, 0)}, {"causal": True}),
        ("causal and a right bound", {"causal": True, "window": (3, 2)}, {"window": (3, 0)}),
        ("mask of keys", {"mask": np.ones(N, bool)}, {"mask": all_seen}),
        ("mask for causal", {"mask": tri}, {"mask": all_seen, "causal": True}),
        ("mask for window", {"mask": band}, {"mask": all_seen, "window": (13, 0)}),
        (
            "mask for lengths",
            {"mask": (j < keys[:, None])[:, None, None], "offset": 0},
            {"mask": all_seen, "k_lengths": keys, "offset": 0},
        ),
        ("bias for mask", {"bias": hidden, "mask": all_seen}, {"bias": zero, "mask": band}),
        ("no slope, no bias", {"alibi_slopes": np.zeros(())}, {"bias": zero}),
        ("sinks of -inf", {"sinks": np.full((BATCH, 1), -np.inf)}, {}),
        (
            "bias in other types",
            {"bias": (i % 3 - j % 5).astype(np.int8)},
            {"bias": (i % 3 - j % 5).astype(np.float64)},
        ),
        (
            "bias in 16 bits",
            {"bias": everything["bias"]},
            {"bias": everything["bias"].astype(np.float64)},
        ),
        # In 16 bits the bias leaves room for tiles of more keys beside the mask.
        ("everything in float64", in_type(np.float32), in_type(np.float64)),
    ]


def check_equivalences(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """Options that mean the same have the same bits: which tiles are skipped doesn't matter."""
    arrays = draw(dtype, d, p)
    for what, one, other in equivalent():
        got, want = (attend(*arrays, **options) for options in (one, other))
        assert_same(got, want, arrays, other, family, what)


def check_limits(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P11: what changes next to nothing is within the bounds of what changes nothing."""
    arrays = draw(dtype, d, p)
    plain, plain_bounds = attend(*arrays), bounds(arrays, {}, family)
    for options in (
        {"softcap": 1e12 if dtype == "float64" else 1e6},
        {"alibi_slopes": np.zeros(HEADS, np.float32)},
        {"bias": np.zeros((), np.float32)},
        {"sinks": np.array(-200.0)},
        {"mask": np.ones((), bool)},
    ):
        own = bounds(arrays, options, family)
        results = attend(*arrays, **options)
        for got, want, one, other in zip(results, plain, own, plain_bounds, strict=True):
            compared = accuracy.compare(got, want, one + other)
            assert compared.ok, f"{options}: {compared}"


def check_shifts(attend: Any, dtype: str, d: int, p: int, family: str | None) -> None:
    """P12: a bias of one number leaves out alone; a sink among equal scores is one more key."""
    rng = np.random.default_rng(12)
    v = rng.integers(-50, 51, (127, p)).astype(DTYPES[dtype])
    q, k = np.zeros((5, d), DTYPES[dtype]), np.ones((127, d), DTYPES[dtype])
    for keys in (1, 3, 7, 63, 127):
        mask = np.zeros(127, bool)
        mask[rng.permutation(127)[:keys]] = True
        total = v[mask].astype(np.float64).sum(axis=0)
        out, lse = attend(q, k, v, mask=mask, sinks=np.array(0.0, np.float32))
        assert (out == (total / (keys + 1)).astype(out.dtype)).all(), f"{keys} keys and a sink"
        assert np.abs(lse - np.log(keys + 1)).max() < 2.0**-20
    for shift in (3.0, -1000.0, 2.0**60):
        mask = np.arange(127) < 64
        out, lse = attend(q, k, v, mask=mask, bias=np.full((5, 1), shift, np.float32))
        mean = v[:64].astype(np.float64).mean(axis=0)
        assert (out == mean.astype(out.dtype)).all(), f"bias {shift}"
        assert np.abs(lse - shift - np.log(64)).max() <= 2.0**-22 * (abs(shift) + 4)


OPTION_PROBES = {
    "P2 other heads": check_other_heads,
    "P3 needles of options": check_needles,
    "P4 order of options": check_order,
    "P4 grouped heads with options": check_grouped_options,
    "P8 layouts of options": check_layouts_of_options,
    "P11 equivalences": check_equivalences,
    "P11 limits": check_limits,
    "P12 shifts": check_shifts,
}
