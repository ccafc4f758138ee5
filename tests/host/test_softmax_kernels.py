"""Which kernels compute a softmax, what their text and their struct hold."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cupy_flash.arrays import planned
from cupy_flash.device import assumed
from cupy_flash.softmaxes.params import PARAMS_DTYPE, softmax_launches
from cupy_flash.softmaxes.problem import make_softmax_problem
from cupy_flash.softmaxes.select import MOST_PARTS, PART_TILE, choose_softmax
from cupy_flash.source import root, source
from problems import DTYPES
from softmaxes import METHODS

every_method = pytest.mark.parametrize("method", METHODS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def chosen(n, dtype="float32", method="online", rows=3, arch=90):
    problem = make_softmax_problem(planned((rows, n), DTYPES[dtype]), -1, method)
    return problem, choose_softmax(problem, assumed(arch))


@every_method
@every_dtype
def test_a_row_is_divided_by_its_length_alone(dtype, method):
    itemsize = DTYPES[dtype].itemsize
    for n in (1, 100, 5000, 2**20, 2**23 + 1, 2**31 + 5, 2**36):
        (_, few), (_, many) = (chosen(n, dtype, method, rows) for rows in (1, 10**6))
        assert (few.parts, few.part_columns) == (many.parts, many.part_columns)
        # How many blocks fit beside each other may depend on alignment.
        assert [(v.stage, v.tile.lanes, v.tile.packs) for v in few.variants] == [
            (v.stage, v.tile.lanes, v.tile.packs) for v in many.variants
        ]
        assert few.parts <= MOST_PARTS
        assert (few.parts - 1) * few.part_columns < n <= few.parts * few.part_columns
        assert few.part_columns < 2**31
        reads = {"online": 2, "three_pass": 3}[method] if few.parts > 1 else 1
        assert few.reads == reads
        if few.parts > 1:
            assert few.part_columns * itemsize % PART_TILE.capacity == 0
        else:
            assert n * itemsize <= few.variants[0].tile.capacity


def test_one_row_of_millions_keeps_the_multiprocessors_busy():
    for dtype in DTYPES:
        assert chosen(2**22, dtype, rows=1)[1].parts >= assumed(90).sm_count


@every_method
def test_more_than_2_31_elements(method):
    problem, choice = chosen(2**31 + 9, "float16", method, rows=5)
    launches = list(softmax_launches(problem, choice, {"x": 0, "o": 0, "m": 8, "l": 16}))
    assert [launch.variant.stage for launch in launches] == [v.stage for v in choice.variants]
    for launch in launches:
        assert launch.params["x"]["batch"][0] == 2**31 + 9
        assert launch.grid == 5 * choice.parts


@every_method
def test_shapes_and_strides_are_not_in_the_text(method):
    texts = {
        source(variant)
        for n in range(1, 9000, 61)
        for variant in chosen(n, "float16", method, rows=n)[1].variants
    }
    # Eight tiles, for aligned rows and for others.
    assert len(texts) <= 16


def test_rows_that_are_not_contiguous_or_not_aligned_take_the_scalar_path():
    def aligned(x):
        return make_softmax_problem(x, -1, "online").aligned

    assert aligned(planned((3, 8), np.dtype(np.float32)))
    assert not aligned(planned((3, 9), np.dtype(np.float32)))
    assert aligned(planned((9,), np.dtype(np.float32)))
    assert not make_softmax_problem(planned((8, 8), np.dtype(np.float32)), 0, "online").aligned


def test_the_struct_has_no_gap():
    ends = [
        PARAMS_DTYPE.fields[name][1] + PARAMS_DTYPE[name].itemsize for name in PARAMS_DTYPE.names
    ]
    begins = [PARAMS_DTYPE.fields[name][1] for name in PARAMS_DTYPE.names]
    assert begins == [0, *ends[:-1]]
    assert ends[-1] == PARAMS_DTYPE.itemsize


def test_both_sides_check_the_same_offsets():
    text = (root() / "softmax_params.cuh").read_text()
    asserted = {
        name: int(offset)
        for name, offset in re.findall(r"OFFSET\(SoftmaxParams, (\w+)\) == (\d+)", text)
    }
    assert asserted == {name: PARAMS_DTYPE.fields[name][1] for name in PARAMS_DTYPE.names}
    assert f"sizeof(SoftmaxParams) == {PARAMS_DTYPE.itemsize}," in text
