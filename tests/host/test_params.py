"""The struct of a kernel, byte by byte, and what each launch points at."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupy_flash.arrays import planned, to_dtype
from cupy_flash.device import assumed
from cupy_flash.options import check_options
from cupy_flash.params import (
    BATCH_AXES,
    LARGEST_GRID,
    OPERAND_DTYPE,
    OPERANDS,
    PARAMS_DTYPE,
    launches,
    merge_axes,
    probability_scale,
    split_scale,
    split_softcap,
)
from cupy_flash.problem import make_problem
from cupy_flash.select import choose
from cupy_flash.source import root

FLOAT32_MAX = float(np.finfo(np.float32).max)


def fields(dtype):
    return {name: dtype.fields[name][1] for name in dtype.names}


@pytest.mark.needs_compiler
def test_the_compiler_lays_the_struct_out_as_numpy_does(cxx, tmp_path):
    lines = ['#include "params.cuh"', "#include <cstddef>", "#include <cstdio>", "int main() {"]
    for struct, dtype in (("Operand", OPERAND_DTYPE), ("Params", PARAMS_DTYPE)):
        lines.append(f'std::printf("{struct} %zu %zu\\n", sizeof({struct}), alignof({struct}));')
        lines += [
            f'std::printf("{struct}.{name} %zu %zu\\n", offsetof({struct}, {name}), '
            f"sizeof({struct}::{name}));"
            for name in dtype.names
        ]
    (tmp_path / "layout.cpp").write_text("\n".join([*lines, "}"]))
    command = [
        cxx,
        "-std=c++17",
        "-DCUPY_FLASH_EMULATE",
        f"-I{root()}",
        "layout.cpp",
        "-o",
        "layout",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    printed = subprocess.run(
        [tmp_path / "layout"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    want = []
    for struct, dtype in (("Operand", OPERAND_DTYPE), ("Params", PARAMS_DTYPE)):
        want.append(f"{struct} {dtype.itemsize} 8")
        want += [
            f"{struct}.{name} {offset} {dtype[name].itemsize}"
            for name, offset in fields(dtype).items()
        ]
    assert printed == want


@pytest.mark.parametrize(
    ("struct", "dtype"), [("Operand", OPERAND_DTYPE), ("Params", PARAMS_DTYPE)]
)
def test_no_member_is_missing_or_out_of_order(struct, dtype):
    text = (root() / "params.cuh").read_text()
    body = re.search(rf"struct {struct} {{(.*?)}};", text, re.DOTALL)[1]
    members = re.findall(r"^\s*[\w ]+[ *]+(\w+)(?:\[\w+\])?;", body, re.MULTILINE)
    assert members == list(dtype.names)
    ends = [offset + dtype[name].itemsize for name, offset in fields(dtype).items()]
    assert [0, *ends] == [*fields(dtype).values(), dtype.itemsize], "a gap between members"
    assert dtype.itemsize % 64 == 0


@given(
    st.lists(st.integers(1, 3), max_size=6),
    st.lists(st.lists(st.sampled_from((0, 1, 2, 6, -3)), min_size=6, max_size=6), min_size=1),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_merging_axes_visits_the_same_places_in_the_same_order(extents, strides, dense):
    extents = tuple(extents)
    operands = {}
    for number, steps in enumerate(strides[:3]):
        contiguous = [math.prod(extents[axis + 1 :]) for axis in range(len(extents))]
        operands[str(number)] = tuple(contiguous if dense[number] else steps[: len(extents)])
    merged, merged_strides = merge_axes(extents, operands)
    assert 1 not in merged
    assert math.prod(merged) == math.prod(extents)

    def places(extents, strides):
        return [
            tuple(sum(i * s for i, s in zip(index, steps, strict=True)) for steps in strides)
            for index in itertools.product(*map(range, extents))
        ]

    assert places(merged, merged_strides.values()) == places(extents, operands.values())


def test_contiguous_axes_become_one():
    extents, strides = merge_axes((2, 1, 3, 4), {"q": (12, 99, 4, 1), "k": (0, 5, 0, 0)})
    assert (extents, strides) == ((24,), {"q": (1,), "k": (0,)})


def problem_of(shapes, strides=None, dtype="float32", **options):
    infos = [planned(shape, to_dtype(dtype)) for shape in shapes]
    if strides is not None:
        infos = [
            dataclasses.replace(info, strides=tuple(to_dtype(dtype).itemsize * s for s in steps))
            for info, steps in zip(infos, strides, strict=True)
        ]
    return make_problem(*infos, check_options(**options))


def launched(problem, pointers=None):
    variant = choose(problem, assumed(90)).variant
    present = [name for name in OPERANDS if getattr(problem, name) is not None]
    pointers = pointers or {name: (i + 1) << 32 for i, name in enumerate(present)}
    return list(launches(problem, variant, pointers)), variant, pointers


def visited(launch, name, itemsize):
    """Addresses of element (head 0, row 0, column 0) of an operand in the kernel's order."""
    operand = launch.params[name]
    for index in itertools.product(*(range(n) for n in launch.params["batch_extent"])):
        steps = sum(i * int(s) for i, s in zip(index, operand["batch"], strict=True))
        yield int(operand["data"]) + itemsize * steps


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=7),
    st.lists(st.tuples(*[st.sampled_from((0, 1, -2, 5, 30, 700))] * 7), min_size=3, max_size=3),
    st.sampled_from(("float16", "float64")),
)
def test_launches_visit_every_batch_entry_once(batch, steps, dtype):
    shape = (*batch, 2, 3, 4)
    strides = [(*step[: len(batch)], 1 << 20, 1 << 10, 1) for step in steps]
    small = {
        "mask": planned((*batch, 1, 3, 3), np.dtype(bool)),
        "bias": planned((batch[-1], 2, 3, 3), np.dtype(np.int16)),
        "sinks": planned((*batch, 2), np.dtype(np.float32)),
    }
    problem = problem_of([shape] * 3, strides, dtype, return_lse=True, **small)
    made, _, pointers = launched(problem)
    for name in pointers:
        operand = getattr(problem, name)
        itemsize = to_dtype(operand.dtype).itemsize
        want = [
            pointers[name]
            + itemsize * sum(i * s for i, s in zip(index, operand.batch, strict=True))
            for index in itertools.product(*map(range, batch))
        ]
        got = [address for launch in made for address in visited(launch, name, itemsize)]
        assert got == want
        for launch in made:
            entry = launch.params[name]
            places = (operand.head, operand.row, operand.column)
            assert (entry["head"], entry["row"], entry["column"]) == places


@pytest.mark.parametrize(("blocks", "grid"), [(None, 24), (5, 5), (24, 24), (100, 24)])
def test_a_launch_has_no_more_blocks_than_it_may(blocks, grid):
    problem = problem_of([(2, 4, 130, 64)] * 3, dtype="float16", kernel="sm80")
    variant = choose(problem, assumed(100)).variant
    pointers = dict.fromkeys("qkvo", 1 << 32)
    (launch,) = launches(problem, variant, pointers, blocks)
    assert launch.grid == grid
    assert launch.params["tiles"] == 24


def test_more_axes_than_the_struct_has_take_several_launches():
    shape = (2, 2, 2, 2, 3, 2, 1, 4, 5)
    gaps = [(*(3**axis * 100 for axis in range(6)), 50, 5, 1)] * 3
    made, _, _ = launched(problem_of([shape] * 3, gaps))
    assert len(made) == 2**2
    assert all(len(launch.params["batch_extent"]) == BATCH_AXES for launch in made)
    assert len({int(launch.params["q"]["data"]) for launch in made}) == 4
    assert len(launched(problem_of([shape] * 3))[0]) == 1


@pytest.mark.parametrize("m", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("heads", [(1, 1), (6, 2)])
def test_sizes_and_tiles(m, heads):
    q_heads, kv_heads = heads
    shapes = (3, q_heads, m, 40), (3, kv_heads, 77, 40), (3, kv_heads, 77, 24)
    (launch,), variant, _ = launched(problem_of(shapes, causal=True, offset=-5))
    params = launch.params
    names = ("m", "n", "d", "p", "heads", "group", "offset")
    assert [int(params[name]) for name in names] == [
        *(m, 77, 40, 24),
        *(q_heads, q_heads // kv_heads, -5),
    ]
    assert params["row_tiles"] == math.ceil(m / variant.tile.block_m)
    assert params["tiles"] == launch.grid == params["row_tiles"] * q_heads * 3
    assert params["p_scale"] == probability_scale(77)
    assert params["scale_q"] * params["scale_s"] == 1 / math.sqrt(40)


def test_absent_operands_are_null():
    (launch,), _, _ = launched(problem_of([(4, 5)] * 3))
    assert OPERANDS[:4] == ("q", "k", "v", "o")
    for name in OPERANDS[4:]:
        assert launch.params[name].tobytes() == bytes(64)
    for name in ("left", "right", "softcap", "scale_softcap"):
        assert launch.params[name] == 0


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"window": (3, 2)}, (3, 2)),
        ({"window": (None, 2)}, (0, 2)),
        ({"window": (3, None)}, (3, 0)),
        ({"window": (3, 2), "causal": True}, (3, 0)),
        ({"window": (2**61, 2**61), "offset": -(2**62)}, (2**61, 2**61)),
    ],
)
def test_the_bounds_of_a_window(options, bounds):
    (launch,), _, _ = launched(problem_of([(4, 5)] * 3, **options))
    assert (launch.params["left"], launch.params["right"]) == bounds
    assert launch.params["offset"] == options.get("offset", 0)


SMALL = {
    "mask": planned((1, 2, 1, 77), np.dtype(bool)),
    "bias": planned((3, 1, 9, 77), np.dtype(np.int8)),
    "alibi_slopes": planned((2,), np.dtype(np.float16)),
    "sinks": planned((3, 1), np.dtype(np.float64)),
}


def test_small_arrays_have_their_strides_and_addresses():
    shapes = (3, 2, 9, 40), (3, 1, 77, 40), (3, 1, 77, 24)
    (launch,), _, pointers = launched(problem_of(shapes, **SMALL))
    want = {
        "mask": (0, 77, 0, 1),
        "bias": (9 * 77, 0, 77, 1),
        "alibi_slopes": (0, 1, 0, 0),
        "sinks": (1, 0, 0, 0),
    }
    for name, (batch, *others) in want.items():
        entry = launch.params[name]
        assert entry["data"] == pointers[name]
        assert entry["batch"].tolist() == [batch, 0, 0, 0]
        assert [entry["head"], entry["row"], entry["column"]] == others


def test_the_grid_stays_within_cudas_limit():
    problem = problem_of([(1 << 32, 1, 5)] * 3, [(0, 5, 1)] * 3)
    (launch,), variant, _ = launched(problem)
    assert launch.params["tiles"] == 1 << 32
    assert launch.grid == LARGEST_GRID == 2**31 - 1
    assert variant.family == "simt"


@pytest.mark.parametrize(
    ("shapes", "return_lse"),
    [
        ([(0, 2, 4, 5)] * 3, True),
        ([(2, 0, 4, 5)] * 3, True),
        ([(2, 2, 0, 5), (2, 2, 4, 5), (2, 2, 4, 5)], True),
        ([(4, 5), (6, 5), (6, 0)], False),
    ],
)
def test_nothing_to_write_is_no_launch(shapes, return_lse):
    assert launched(problem_of(shapes, return_lse=return_lse))[0] == []


@pytest.mark.parametrize("shapes", [[(4, 5), (0, 5), (0, 7)], [(4, 0), (6, 0), (6, 7)]])
def test_empty_rows_and_equal_scores_are_still_written(shapes):
    assert len(launched(problem_of(shapes))[0]) == 1


def test_lse_without_columns_is_still_computed():
    assert len(launched(problem_of([(4, 5), (6, 5), (6, 0)], return_lse=True))[0]) == 1


scales = st.floats(allow_nan=False, allow_infinity=False)


@given(scales, st.sampled_from(("float32", "float64")))
def test_the_scale_is_split_exactly_and_within_range(scale, accumulate):
    power, rest = split_scale(scale, accumulate)
    assert math.frexp(power)[0] == 0.5, "a power of two"
    assert power >= 2.0**-100
    assert accumulate == "float64" or abs(rest) <= FLOAT32_MAX
    if accumulate == "float64" or abs(scale) <= FLOAT32_MAX:
        assert power * rest == scale
        assert power <= 1
    if 2.0**-100 <= abs(scale) < 1:
        assert 1 <= abs(rest) < 2
    if 1 <= abs(scale) <= FLOAT32_MAX:
        assert power == 1


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)


@given(positive, scales, st.sampled_from(("float32", "float64")))
def test_the_softcap_and_its_factor_stay_within_range(softcap, scale, accumulate):
    _, scale_s = split_scale(scale, accumulate)
    cap, factor = split_softcap(softcap, scale_s, accumulate)
    largest = float(np.finfo(accumulate).max)
    assert 0 < cap <= largest
    assert abs(factor) <= largest
    assert math.copysign(1, factor) == math.copysign(1, scale_s)
    if 2.0**-100 <= softcap <= 2.0**100:
        assert cap == softcap
        if 2.0**-20 <= abs(scale_s) <= 2.0**20:
            assert math.isclose(cap * factor, scale_s, rel_tol=1e-15)


@pytest.mark.parametrize("softcap", [2.0**101, 1e38, 1e300])
@pytest.mark.parametrize("accumulate", ["float32", "float64"])
def test_a_cap_far_above_the_scores_changes_none(softcap, accumulate):
    number = np.dtype(accumulate).type
    cap, factor = split_softcap(softcap, 1.0, accumulate)
    scores = np.array([0, 1e-3, 1, -30, 1e4], accumulate)
    capped = number(cap) * np.tanh(scores * number(factor))
    np.testing.assert_allclose(capped, scores, rtol=4 * np.finfo(accumulate).eps)


@pytest.mark.parametrize("scale", [None, -0.3, 1e-5])
def test_the_unit_of_scores_is_the_factor_that_the_kernel_leaves_to_the_weights(scale):
    """Of the product, or of tanh; terms are added to natural scores."""
    shapes = [(2, 9, 40), (2, 77, 40), (2, 77, 40)]
    bias = planned((77,), np.dtype(np.float16))
    slopes = planned((2,), np.dtype(np.float32))
    for options, want in (
        ({}, None),
        ({"mask": planned((77,), np.dtype(bool))}, None),
        ({"softcap": 20.0}, 20.0),
        ({"bias": bias}, 1.0),
        ({"alibi_slopes": slopes}, 1.0),
        ({"softcap": 20.0, "bias": bias}, 1.0),
        ({"softcap": 20.0, "alibi_slopes": slopes}, 1.0),
    ):
        options = options if scale is None else options | {"scale": scale}
        (launch,), _, _ = launched(problem_of(shapes, **options))
        params = launch.params
        assert params["unit"] == (params["scale_s"] if want is None else want)


def test_without_a_softcap_its_fields_are_zero():
    assert split_softcap(None, 0.125, "float32") == (0.0, 0.0)
    (launch,), _, _ = launched(problem_of([(4, 16)] * 3, softcap=50.0))
    params = launch.params
    assert params["softcap"] == 50
    assert params["scale_softcap"] == params["scale_s"] / 50


@given(st.one_of(st.integers(0, 300), st.integers(0, 1 << 40)))
def test_the_probability_scale_keeps_sums_below_one_half(n):
    scale = probability_scale(n)
    assert math.frexp(scale)[0] == 0.5
    assert n * scale <= 0.5
    assert n <= 1 or 4 * n * scale > 0.5, "no smaller than needed"
