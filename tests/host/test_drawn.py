"""What the random tests draw: arrays of options, hidden NaN, and the demand that options meet."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from drawn import FACTORS, Coverage
from layouts import LAYOUTS
from option_arrays import FLOATS, INTEGERS, LEADING, PAIRS, draw_bias, draw_mask, draw_slopes
from probe_options import visible
from problems import Case
from strategies import OPTION_AXES, cases, kinds


@pytest.fixture(scope="module")
def coverage() -> Coverage:
    coverage = Coverage()

    @settings(max_examples=600)
    @given(cases("float32", mixed=False))
    def draw(case: Case) -> None:
        coverage.add(case)

    draw()
    return coverage


def test_a_pair_that_was_not_drawn_fails(coverage):
    only = {"dtype": ("float32",)}
    coverage.check(500, **only)
    pair = (("mask", "keys"), ("bias", "pairs"))
    count = coverage.pairs[pair]
    coverage.check(500, pairs=min(20, count), **only)
    try:
        coverage.pairs[pair] = 19
        with pytest.raises(AssertionError, match="19 problems with mask keys and bias pairs"):
            coverage.check(500, pairs=20, **only)
    finally:
        coverage.pairs[pair] = count
    with pytest.raises(AssertionError, match="no problem with dtype in"):
        coverage.check(500)
    with pytest.raises(AssertionError, match="problems drawn, 10000 wanted"):
        coverage.check(10_000, **only)


def test_the_report_says_what_was_drawn(coverage):
    text = coverage.report("fine")
    assert f"{coverage.total} problems, fine" in text
    pairs = sum(len(a) * len(b) for a, b in itertools.combinations(FACTORS.values(), 2))
    without_other_dtypes = pairs - 3 * sum(
        len(FACTORS[name]) for name in FACTORS if name != "dtype"
    )
    assert f"{without_other_dtypes} pairs of options, each in " in text


def test_kinds_hold_every_pair_of_values():
    found = kinds(bias_dtype=("float32", "int8"))
    axes = OPTION_AXES | {"bias_dtype": ("float32", "int8")}
    for a, b in itertools.combinations(axes, 2):
        assert {(kind[a], kind[b]) for kind in found} == set(itertools.product(axes[a], axes[b]))
    assert len(found) < 30


@pytest.mark.parametrize("heads", [(), (4,)])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_arrays_of_options_broadcast_in_every_layout(batch, heads):
    rng = np.random.default_rng(0)
    leading = (*batch, *heads)
    for layout in LAYOUTS:
        for name, shape_of in PAIRS.items():
            shape = shape_of(batch, heads, 5, 7)
            assert np.broadcast_shapes(shape, (*leading, 5, 7)) == (*leading, 5, 7), name
            mask = draw_mask(rng, shape, layout).numpy()
            assert (mask.shape, mask.dtype) == (shape, bool)
            for dtype in (*FLOATS, *INTEGERS):
                bias = draw_bias(rng, shape, dtype, layout).numpy()
                assert (bias.shape, bias.dtype.name) == (shape, dtype)
                assert not np.isnan(bias.astype(float)).any()
        for name, shape_of in LEADING.items():
            shape = shape_of(batch, heads)
            assert np.broadcast_shapes(shape, leading) == leading, name
            assert draw_slopes(rng, shape, "bfloat16", layout).numpy().shape == shape


def of_key_head(table, heads):
    """Return for each key head whether any of its query heads is True."""
    batch, total, n = table.shape
    return table.reshape(batch, heads, total // heads, n).any(axis=2)


@pytest.mark.parametrize("layout", ["contiguous", "broadcast"])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("mask", [None, "keys of a batch entry", "pairs of a head"])
@pytest.mark.parametrize("bias", [None, "keys", "full"])
def test_nan_lies_where_no_row_looks_and_nowhere_else(layout, group, mask, bias):
    case = Case(
        batch=(2,),
        heads=2 * group,
        kv_heads=2,
        m=9,
        n=14,
        d=3,
        p=2,
        dtypes=("float32",) * 3,
        layouts=(layout,) * 3,
        lengths="both",
        window=(4, 2),
        mask=mask,
        bias=bias,
        poison=True,
        seed=5,
    )
    arrays = case.build()
    seen = np.broadcast_to(visible(9, 14, **arrays.options()), (2, 2 * group, 9, 14))
    keys, rows = of_key_head(seen.any(axis=2), 2), seen.any(axis=3)
    if layout == "broadcast":
        # All entries and heads are one.
        keys, rows = (np.broadcast_to(x.any(axis=(0, 1)), x.shape) for x in (keys, rows))
    for x, looked_at in ((arrays.q, rows), (arrays.k, keys), (arrays.v, keys)):
        np.testing.assert_array_equal(
            np.isnan(x.numpy()), np.repeat(~looked_at[..., None], x.shape[-1], -1)
        )
    if bias is not None:
        others = visible(9, 14, **{**arrays.options(), "bias": None})
        values = np.broadcast_to(arrays.bias.numpy(), seen.shape)
        assert not np.isnan(values[np.broadcast_to(others, seen.shape)]).any()
        assert np.isnan(values).any()
