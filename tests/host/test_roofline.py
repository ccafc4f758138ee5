"""The closed forms of the roofline against pinned values and against counting one by one."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from dataclasses import FrozenInstanceError
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cupy_flash.commands import roofline as roofline_command
from cupy_flash.gpus import GPUS, Ceiling, Figure, Gpu
from cupy_flash.roofline import (
    Cost,
    bound,
    flash_attention,
    matrix_product,
    rates,
    ridge_point,
    softmax_online,
    softmax_three_pass,
    standard_attention,
    visible_pairs,
)

DOCS = Path(__file__).parents[2] / "docs" / "roofline.md"

# Offsets reach just past both corners, so that most of them cut through the matrix.
small = st.integers(0, 12)
blocks = st.integers(1, 5)
offsets = st.none() | st.integers(-14, 14)
windows = st.none() | st.tuples(*[st.none() | st.integers(0, 14)] * 2)
problems = st.fixed_dictionaries(
    {
        "m": small,
        "n": small,
        "d": st.integers(0, 8),
        "p": st.none() | st.integers(0, 8),
        "dtype": st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
        "batch": st.integers(0, 2),
        "kv_heads": st.integers(1, 3),
        "group": st.integers(0, 3),
        "causal": st.booleans(),
        "offset": offsets,
        "window": windows,
    }
).map(lambda x: {"heads": x["kv_heads"] * x.pop("group"), **x})


def itemsize_of(dtype):
    return {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]


def visible(m, n, causal, offset, window=None):
    """The boolean (m, n) matrix of visible pairs, element by element."""
    offset = n - m if offset is None else offset
    left, right = window or (None, None)

    def sees(i, j):
        return (
            (not causal or j <= i + offset)
            and (left is None or i + offset - left <= j)
            and (right is None or j <= i + offset + right)
        )

    return np.array([[sees(i, j) for j in range(n)] for i in range(m)], dtype=bool).reshape(m, n)


def test_pinned_values_for_float32_2048_by_64():
    m = n = 2048
    d = 64
    standard = standard_attention(m, n, d, dtype="float32")
    flash = flash_attention(m, n, d, dtype="float32")
    assert standard == Cost(4 * m * n * d, 5 * m * n, 0, 4 * (2 * m * d + 2 * n * d + 4 * m * n))
    assert flash.flops == 4 * m * n * d + 12 * m * n
    assert flash.bytes == 8 * (m * d + n * d)
    assert round(standard.intensity, 1) == 15.8
    assert flash.intensity == 536
    assert round(flash.intensity / standard.intensity, 1) == 33.9
    assert round(matrix_product(1024, 1024, 1024).intensity, 1) == 170.7


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (softmax_three_pass(3, 5, dtype="float64"), Cost(0, 7 * 15, 0, 8 * 4 * 15)),
        (softmax_online(3, 5, dtype="float64"), Cost(0, 7 * 15, 3 * 15, 8 * 3 * 15)),
        (
            matrix_product(2, 3, 5, batch=7, dtype="float16"),
            Cost(2 * 7 * 30, 0, 0, 2 * 7 * (10 + 15 + 6)),
        ),
        # One row, three keys in tiles of two: 2 tiles x (5 + p), and p divisions.
        (flash_attention(1, 3, 2, 4, block_n=2), Cost(36, 12, 2 * 9 + 4, 4 * (6 + 18))),
    ],
)
def test_small_costs_by_hand(cost, expected):
    assert cost == expected


@given(small, small, st.booleans(), offsets, windows)
def test_visible_pairs_are_those_counted_one_by_one(m, n, causal, offset, window):
    counted = visible(m, n, causal, offset, window).sum()
    assert visible_pairs(m, n, causal=causal, offset=offset, window=window) == counted
    if causal and window is None:
        assert visible_pairs(m, n, offset=offset) == counted


@given(problems)
def test_standard_attention_is_its_three_kernels(x):
    m, n, d, heads = x["m"], x["n"], x["d"], x["heads"] * x["batch"]
    p = d if x["p"] is None else x["p"]
    cost = standard_attention(**x)
    if not x["causal"] and x["window"] in (None, (None, None)):
        # The softmax between the products reads and writes S once.
        parts = [
            matrix_product(m, n, d, batch=heads, dtype=x["dtype"]),
            matrix_product(m, p, n, batch=heads, dtype=x["dtype"]),
        ]
        assert cost.products == sum(part.products for part in parts)
        if heads == x["kv_heads"] * x["batch"]:
            s_and_p = 2 * heads * m * n * itemsize_of(x["dtype"])
            assert cost.bytes == sum(part.bytes for part in parts) + s_and_p
    pairs = int(visible(m, n, x["causal"], x["offset"], x["window"]).sum())
    assert (cost.products, cost.softmax) == (2 * heads * pairs * (d + p), 5 * heads * pairs)


class Tiles:
    """FlashAttention's loops, one tile and one row at a time; L2 holds what it has seen."""

    def __init__(self, x, block_m, block_n, reuse_kv, return_lse):
        self.itemsize = itemsize_of(x["dtype"])
        self.d = x["d"]
        self.p = x["d"] if x["p"] is None else x["p"]
        self.bytes = self.pairs = self.row_tiles = self.divided_rows = 0
        self.in_l2 = set() if reuse_kv else None
        sees = visible(x["m"], x["n"], x["causal"], x["offset"], x["window"])
        for entry in range(x["batch"]):
            for head in range(x["heads"]):
                kv_head = head // (x["heads"] // x["kv_heads"])
                for first in range(0, x["m"], block_m):
                    self.row_block((entry, kv_head), sees[first : first + block_m], block_n)
        if return_lse:
            self.bytes += x["batch"] * x["heads"] * x["m"] * (8 if self.itemsize == 8 else 4)

    def row_block(self, kv, sees, block_n):
        rows, n = sees.shape
        self.bytes += rows * (self.d + self.p) * self.itemsize
        any_tile = False
        for first in range(0, n, block_n):
            tile = sees[:, first : first + block_n]
            if not tile.any():
                continue
            any_tile = True
            self.pairs += int(tile.sum())
            self.row_tiles += rows
            for key in range(first, min(first + block_n, n)):
                self.read_key((*kv, key))
        self.divided_rows += rows if any_tile else 0

    def read_key(self, where):
        if self.in_l2 is not None:
            if where in self.in_l2:
                return
            self.in_l2.add(where)
        self.bytes += (self.d + self.p) * self.itemsize


def one_head(m, n, **options):
    x = {"m": m, "n": n, "d": 3, "p": 2, "dtype": "float32", "batch": 1, "heads": 1, "kv_heads": 1}
    return x | {"causal": True, "offset": 0, "window": None} | options


@settings(max_examples=300)
@given(problems, blocks, st.none() | blocks, st.booleans(), st.booleans())
@example(one_head(5, 12), 2, None, True, False)  # keys past the last row are never read
@example(one_head(5, 12, offset=-3), 2, 3, False, False)  # the first block sees nothing
@example(one_head(9, 9, window=(2, 0)), 2, 3, True, False)  # tiles before the window are skipped
@example(one_head(9, 4, window=(1, 0)), 2, 3, False, False)  # the last blocks see nothing
@example(one_head(7, 7, heads=0), 2, 3, True, False)  # key heads without a query head
def test_flash_attention_is_its_loops(x, block_m, block_n, reuse_kv, return_lse):
    tiles = Tiles(x, block_m, block_n or 1, reuse_kv, return_lse)
    cost = flash_attention(
        **x, block_m=block_m, block_n=block_n, reuse_kv=reuse_kv, return_lse=return_lse
    )
    assert cost.products == 2 * tiles.pairs * (tiles.d + tiles.p)
    assert cost.softmax == 4 * tiles.pairs
    assert cost.bytes == tiles.bytes
    if block_n is None:
        assert cost.rescaling == 8 * tiles.pairs
    else:
        by_tiles = tiles.row_tiles * (5 + tiles.p) + tiles.divided_rows * tiles.p
        assert cost.rescaling == by_tiles


@given(problems, blocks, st.none() | blocks)
def test_leaving_work_out_never_costs_more(x, block_m, block_n):
    tiling = {"block_m": block_m, "block_n": block_n}
    reused = flash_attention(**x, **tiling)
    streamed = flash_attention(**x, **tiling, reuse_kv=False)
    all_pairs = {**x, "causal": False, "window": None}
    whole = flash_attention(**all_pairs, **tiling)
    standard = standard_attention(**x)
    whole_standard = standard_attention(**all_pairs)
    assert reused.bytes <= streamed.bytes
    assert reused.bytes <= standard.bytes
    for less, more in ((reused, whole), (standard, whole_standard)):
        for part in ("products", "softmax", "rescaling", "bytes"):
            assert getattr(less, part) <= getattr(more, part)


@pytest.mark.parametrize("grown", ["m", "n", "d", "p", "batch", "heads"])
@pytest.mark.parametrize("causal", [False, True])
def test_more_of_anything_costs_more(grown, causal):
    x = {
        "m": 12,
        "n": 12,
        "d": 4,
        "p": 4,
        "batch": 2,
        "heads": 2,
        "kv_heads": 1,
        "causal": causal,
        "offset": 0,
    }
    more = {**x, grown: x[grown] + (4 if grown == "n" and not causal else 2)}
    for attention in (standard_attention, flash_attention):
        small_cost, large_cost = attention(**x), attention(**more)
        if not (causal and grown == "n"):  # with offset 0 the new keys are seen by no row
            assert large_cost.flops > small_cost.flops
            assert large_cost.bytes > small_cost.bytes


def test_without_reuse_every_row_block_reads_k_and_v():
    m, n, d, heads = 1000, 512, 64, 6
    cost = flash_attention(m, n, d, heads=heads, kv_heads=2, block_m=128, reuse_kv=False)
    assert cost.bytes == 4 * heads * (2 * m * d + 8 * 2 * n * d)  # 8 = ceil(1000 / 128)
    reused = flash_attention(m, n, d, heads=heads, kv_heads=2)
    assert reused.bytes == 4 * (heads * 2 * m * d + 2 * 2 * n * d)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", np.dtype(ml_dtypes.bfloat16), ml_dtypes.bfloat16, "float16", np.float16]
)
def test_sixteen_bit_types_move_half_the_bytes(dtype):
    assert 2 * flash_attention(8, 8, 4, dtype=dtype).bytes == flash_attention(8, 8, 4).bytes
    assert 2 * matrix_product(8, 8, 4, dtype=dtype).bytes == matrix_product(8, 8, 4).bytes


def test_intensity_without_bytes():
    assert Cost(0, 0, 0, 0).intensity == 0
    assert Cost(1, 0, 0, 0).intensity == math.inf
    assert flash_attention(0, 0, 64, reuse_kv=False) == Cost(0, 0, 0, 0)
    assert flash_attention(5, 0, 64).flops == 0


def test_a_cost_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Cost(1, 2, 3, 4).bytes = 5


TOY = Gpu(
    "toy",
    Ceiling(Figure(10.0, "sheet"), Figure(8.0, "ours")),
    {
        ("float32", "fma"): Ceiling(Figure(40.0, "sheet"), Figure(20.0, "ours")),
        ("bfloat16", "tensor"): Ceiling(Figure(400.0, "sheet")),
    },
)


@pytest.mark.parametrize(
    ("cost", "unit", "figures", "memory", "compute", "limit"),
    [
        (Cost(200, 30, 10, 80), "fma", "measured", 10, 12, "compute"),
        (Cost(200, 30, 10, 80), "fma", "datasheet", 8, 6, "memory"),
        (Cost(800, 30, 0, 8), "tensor", "measured", 1, 2, "compute"),  # products 2, softmax 1.5
        (Cost(800, 50, 10, 8), "tensor", "measured", 1, 3, "compute"),  # products 2, the rest 3
        (Cost(400, 0, 0, 8), "tensor", "measured", 1, 1, "memory"),
        (Cost(0, 0, 0, 0), "tensor", "measured", 0, 0, "memory"),
    ],
)
def test_the_slower_of_memory_and_compute_is_the_bound(cost, unit, figures, memory, compute, limit):
    found = bound(cost, TOY, "bfloat16", unit, figures=figures)
    assert (found.seconds_memory, found.seconds_compute, found.limit) == (memory, compute, limit)
    assert found.seconds == max(memory, compute)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("figures", ["measured", "datasheet"])
@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", "tensor"), ("float32", "fma")])
def test_the_limits_cross_at_the_ridge_point(gpu, dtype, unit, figures):
    ridge = ridge_point(gpu, dtype, unit, figures=figures)
    below = bound(Cost(int(ridge * 999), 0, 0, 1000), gpu, dtype, unit, figures=figures)
    above = bound(Cost(int(ridge * 1001) + 1, 0, 0, 1000), gpu, dtype, unit, figures=figures)
    assert (below.limit, above.limit) == ("memory", "compute")


def test_the_bound_tells_where_its_rates_come_from():
    found = bound(flash_attention(4096, 4096, 128, dtype="bfloat16"), "h200", "bfloat16")
    assert found.limit == "compute"
    assert (found.compute.rate, found.memory.rate) == pytest.approx((776e12, 4.249e12))
    assert "measured" in found.compute.source
    assert "2026-11-29" in found.compute.source
    sheet = rates("H200", "bfloat16", figures="datasheet")[1]
    assert "datasheet" in sheet.source
    assert "measured" not in sheet.source


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_no_ceiling_was_measured_above_its_datasheet(gpu):
    for ceiling in (gpu.memory, *gpu.compute.values()):
        assert 0 < ceiling.best_known.rate <= ceiling.datasheet.rate
        assert ceiling.datasheet.source


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: flash_attention(-1, 2, 3), ValueError, ["m is -1"]),
        (lambda: flash_attention(1, 2.0, 3), TypeError, ["n is a float"]),
        (lambda: flash_attention(1, 2, True), TypeError, ["d is True"]),
        (lambda: flash_attention(1, 2, 3, -4), ValueError, ["p is -4"]),
        (lambda: flash_attention(1, 2, 3, block_m=0), ValueError, ["block_m is 0"]),
        (lambda: flash_attention(1, 2, 3, block_n=0), ValueError, ["block_n is 0"]),
        (lambda: flash_attention(1, 2, 3, reuse_kv=1), TypeError, ["reuse_kv is a int"]),
        (lambda: flash_attention(1, 2, 3, return_lse="no"), TypeError, ["return_lse is a str"]),
        (lambda: standard_attention(1, 2, 3, causal=None), TypeError, ["causal is a NoneType"]),
        (lambda: standard_attention(1, 2, 3, offset=0.5), TypeError, ["offset is a float"]),
        (lambda: standard_attention(1, 2, 3, window=3), TypeError, ["window is 3", "a pair"]),
        (lambda: visible_pairs(1, 2, window=(1, 2, 3)), TypeError, ["(1, 2, 3)", "a pair"]),
        (lambda: flash_attention(1, 2, 3, window=(-1, 0)), ValueError, ["left bound is -1"]),
        (lambda: flash_attention(1, 2, 3, window=(0, 0.5)), TypeError, ["right bound is a float"]),
        (lambda: standard_attention(1, 2, 3, batch=-1), ValueError, ["batch is -1"]),
        (lambda: standard_attention(1, 2, 3, heads=-1), ValueError, ["heads is -1"]),
        (
            lambda: standard_attention(1, 2, 3, heads=6, kv_heads=4),
            ValueError,
            ["kv_heads is 4", "heads = 6"],
        ),
        (lambda: standard_attention(1, 2, 3, heads=6, kv_heads=0), ValueError, ["kv_heads is 0"]),
        (
            lambda: standard_attention(1, 2, 3, dtype="int32"),
            TypeError,
            ["dtype is int32", "bfloat16"],
        ),
        (lambda: standard_attention(1, 2, 3, dtype="fp8"), TypeError, ["dtype is 'fp8'"]),
        (lambda: standard_attention(1, 2, 3, dtype=None), TypeError, ["dtype is None"]),
        (lambda: softmax_online("3", 2), TypeError, ["rows is a str"]),
        (lambda: softmax_three_pass(3, -2), ValueError, ["columns is -2"]),
        (lambda: matrix_product(1, 2, -3), ValueError, ["k is -3"]),
        (lambda: visible_pairs(1, -2), ValueError, ["n is -2"]),
        (lambda: bound(3.0, "H200", "float32"), TypeError, ["cost is a float"]),
        (lambda: bound(Cost(1, 1, 1, 1), "B9000", "float32"), ValueError, ["B9000", *GPUS]),
        (lambda: bound(Cost(1, 1, 1, 1), 7, "float32"), TypeError, ["gpu is a int"]),
        (lambda: ridge_point("H200", "float32", "alu"), ValueError, ["unit is 'alu'", "fma"]),
        (
            lambda: ridge_point("L40S", "float64"),
            ValueError,
            ["L40S has no float64", "float64 fma"],
        ),
        (lambda: ridge_point("H200", "int8"), TypeError, ["dtype is int8"]),
        (lambda: rates("H200", "float32", figures="guessed"), ValueError, ["figures is 'guessed'"]),
    ],
)
def test_a_bad_argument_is_named(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def command(text):
    parser = argparse.ArgumentParser(prog="roofline")
    roofline_command.add_arguments(parser)
    return roofline_command.run(parser.parse_args(shlex.split(text)))


def test_json_holds_what_the_functions_return(capsys):
    text = (
        "96 160 32 --p 48 --dtype bfloat16 --batch 2 --heads 6 --kv-heads 3 --causal --offset 7"
        " --window 5,none --block-m 64 --block-n 32 --lse --gpu 'A100 SXM 80GB' --json"
    )
    assert command(text) == 0
    shown = json.loads(capsys.readouterr().out)
    options = {
        "dtype": "bfloat16",
        "batch": 2,
        "heads": 6,
        "kv_heads": 3,
        "causal": True,
        "offset": 7,
        "window": (5, None),
    }
    tiles = {"block_m": 64, "block_n": 32, "return_lse": True}
    expected = {
        "matrix product q k^T": matrix_product(96, 160, 32, batch=12, dtype="bfloat16"),
        "softmax, three passes": softmax_three_pass(12 * 96, 160, dtype="bfloat16"),
        "softmax, online": softmax_online(12 * 96, 160, dtype="bfloat16"),
        "standard attention": standard_attention(96, 160, 32, 48, **options),
        "FlashAttention, no reuse": flash_attention(
            96, 160, 32, 48, **options, **tiles, reuse_kv=False
        ),
        "FlashAttention, k and v reused": flash_attention(96, 160, 32, 48, **options, **tiles),
    }
    assert list(shown["costs"]) == list(expected)
    for name, cost in expected.items():
        row = shown["costs"][name]
        assert Cost(*(row[part] for part in ("products", "softmax", "rescaling", "bytes"))) == cost
        assert (row["flops"], row["intensity"]) == (cost.flops, cost.intensity)
        limit = bound(cost, "A100 SXM 80GB", "bfloat16")
        assert (row["limit"], row["seconds"]) == (limit.limit, limit.seconds)
        assert row["compute"]["source"] == limit.compute.source
    assert shown["unit"] == "tensor"
    assert shown["ridge_point"] == ridge_point("A100 SXM 80GB", "bfloat16")


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("8 8 8 --dtype float32", "fma"),
        ("8 8 8 --dtype float32 --unit tensor", "tensor"),
        ("8 8 8 --dtype float64", "tensor"),
        ("8 8 8 --dtype float64 --gpu L40S", "fma"),
    ],
)
def test_tf32_is_never_chosen_for_the_user(text, unit, capsys):
    assert command(text + " --json") == 0
    assert json.loads(capsys.readouterr().out)["unit"] == unit


def test_json_has_no_infinity(capsys):
    assert command("4 4 0 --json") == 0

    def refuse(constant):
        raise AssertionError(constant)

    costs = json.loads(capsys.readouterr().out, parse_constant=refuse)["costs"]
    assert costs["FlashAttention, k and v reused"]["intensity"] is None


def test_the_table_shows_the_pinned_intensities(capsys):
    assert command("2048 2048 64") == 0
    rows = {line[:30].strip(): line[30:].split() for line in capsys.readouterr().out.splitlines()}
    assert rows["standard attention"][4] == "15.8"
    assert rows["FlashAttention, k and v reused"][4] == "536.0"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8 8 8 --gpu abacus", "gpu is 'abacus'"),
        ("8 8 8 --heads 4 --kv-heads 3", "kv_heads is 3"),
        ("8 8 8 --batch -1", "batch is -1"),
        ("8 8 8 --window 3", "window is (3,)"),
        ("8 8 8 --window=3,-1", "window's right bound is -1"),
        ("8 8 8 --gpu L40S --dtype float64 --unit tensor", "unit is 'tensor'"),
    ],
)
def test_the_command_refuses_with_one_line(text, words, capsys):
    assert command(text) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_the_documented_output_is_what_the_command_prints(capsys):
    shown = DOCS.read_text().split("```console\n")[1].split("```")[0]
    prompt, output = shown.split("\n", 1)
    prefix = "$ python -m cupy_flash roofline "
    assert prompt.startswith(prefix)
    assert command(prompt.removeprefix(prefix)) == 0
    assert capsys.readouterr().out == output
