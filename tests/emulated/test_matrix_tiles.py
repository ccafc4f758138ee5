"""float64 on the emulated tensor cores: every tile and its options; and where FMA does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from backward_problems import Backward
from cupy_flash import select
from cupy_flash.backward import tiles
from emulated_attention import attention
from emulated_backward import attention_backward
from problems import Case
from tolerance import check

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

DOUBLE = ("float64",) * 3
# More than one tile on each side, and no multiple of anything.
PLAIN = Case((), None, None, 141, 75, 20, 24, DOUBLE, scale=0.3, seed=1)
QKV = ("q", "k", "v")
HEADS = {"batch": (2,), "heads": 4, "kv_heads": 2, "m": 70, "n": 45}
WINDOW = {"window": (60, 20), "offset": -5}


@dataclass(frozen=True)
class Directed:
    """A problem: the GPU that decides on its tile, head dims, options, what is asked for."""

    arch: int
    d: int
    p: int
    options: dict[str, Any] = field(default_factory=dict)
    wrt: tuple[str, ...] = QKV

    def case(self) -> Case:
        return replace(PLAIN, d=self.d, p=self.p, **self.options)

    @property
    def bucket(self) -> int:
        return next(b for b in select.HEAD_DIM_BUCKETS["simt"] if max(self.d, self.p) <= b)

    @property
    def one_by_one(self) -> bool:
        """Whether pairs wait in shared memory for their rows' turn."""
        return not {"mask", "bias", "softcap", "alibi"}.isdisjoint(self.options)

    def __str__(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        return f"sm_{self.arch} {self.d} {self.p} {' '.join(self.wrt)} {options}"


FORWARD = (
    Directed(90, 20, 24, {"causal": True, "lengths": "both", **HEADS}),
    Directed(90, 32, 5, {"mask": "pairs", "alibi": "one", **WINDOW}),
    Directed(90, 64, 40, {**WINDOW, "layouts": ("sliced",) * 3}),
    Directed(90, 33, 64, {"bias": "pairs", "bias_dtype": "float64", "softcap": 2.0}),
    Directed(90, 100, 128, {"causal": True, "sinks": "heads", **HEADS}),
    Directed(90, 128, 50, {"mask": "keys", "bias": "rows", "causal": True}),
    Directed(80, 127, 60, {"lengths": "both", "layouts": ("odd pitch",) * 3, **HEADS}),
    Directed(90, 128, 127, {"mask": "pairs", "poison": True, **WINDOW}),
    Directed(80, 128, 128, {"window": (30, None), "offset": 7}),
    Directed(80, 66, 100, {"alibi": "one", "softcap": 1.5, "causal": True}),
)
BACKWARD = (
    Directed(90, 20, 24, {"causal": True, "lengths": "both", **HEADS}),
    Directed(90, 20, 32, {"mask": "pairs", "bias": "pairs", **WINDOW}, (*QKV, "bias", "scale")),
    Directed(90, 64, 40, {**WINDOW, "layouts": ("sliced",) * 3}),
    Directed(90, 50, 64, {"bias": "keys", "softcap": 2.0}, (*QKV, "bias")),
    Directed(80, 64, 64, {"causal": True, **HEADS}),
    Directed(
        80, 60, 45, {"mask": "keys", "alibi": "heads", "poison": True, **HEADS}, (*QKV, "scale")
    ),
    Directed(90, 45, 33, {"mask": "pairs", "poison": True}, ("k",)),
    Directed(80, 45, 64, {"softcap": 1.5}, ("v",)),
    Directed(90, 64, 64, {"causal": True, "m": 70}),
    Directed(90, 60, 40, {"mask": "pairs", **WINDOW}),
    Directed(80, 50, 64, {"bias": "keys"}, (*QKV, "bias")),
    Directed(80, 100, 128, {"causal": True, **HEADS}),
    Directed(80, 128, 97, {"mask": "pairs", "m": 40, "n": 50}),
    Directed(90, 100, 128, {"causal": True, **HEADS}),
    Directed(90, 128, 20, {"mask": "pairs", "softcap": 1.5, "m": 70, "poison": True}),
)


def without_chunks(tile: select.Tile) -> select.Tile:
    """Return a tile without the width of its chunks, which the narrower head dim bounds."""
    return replace(tile, chunk_d=0)


def run(directed: Directed, **how: Any) -> select.Tile:
    """Run a problem under two schedules, check its results, and return its tile."""
    arrays = directed.case().build()
    for schedule in (3, 4):
        result = attention(arrays, "simt", arch=directed.arch, schedule=schedule, **how)
        check(arrays, result.out, result.lse, "simt")
    return result.variant.tile


@pytest.mark.parametrize("directed", FORWARD, ids=str)
def test_results_of_every_tile_are_within_their_bounds(directed: Directed) -> None:
    tile = run(directed)
    found = [without_chunks(one) for one in select.MATRIX_TILES[directed.bucket]]
    assert without_chunks(tile) in found


def run_backward(directed: Directed) -> Iterator[tuple[int, select.Tile]]:
    """Run a problem, check its gradients, and return how many each pass has, and its tile."""
    call = Backward.of(directed.case(), directed.wrt)
    for schedule in (3, 4):
        result = attention_backward(call, "simt", arch=directed.arch, schedule=schedule)
        call.check(result.found)
    return passes_of(directed)


def passes_of(directed: Directed) -> Iterator[tuple[int, select.Tile]]:
    call = Backward.of(replace(directed.case(), m=2, n=2), directed.wrt)
    chosen = attention_backward(call, "simt", arch=directed.arch, launches=False).passes
    for one in chosen.gradients:
        variant = one.variant
        yield 1 + (variant.first and variant.second), variant.tile


@pytest.mark.parametrize("directed", BACKWARD, ids=str)
def test_gradients_of_every_tile_are_within_their_bounds(directed: Directed) -> None:
    for gradients, tile in run_backward(directed):
        found = tiles.MATRIX_TILES[gradients, directed.bucket]
        assert without_chunks(tile) in map(without_chunks, found)


def test_every_tile_has_a_problem() -> None:
    """With and without options."""
    wanted = {
        (bucket, without_chunks(tile), one_by_one)
        for bucket, of_bucket in select.MATRIX_TILES.items()
        for tile in of_bucket
        for one_by_one in (False, True)
    }
    tried = set()
    for directed in FORWARD:
        case = replace(directed.case(), m=2, n=2)
        tile = attention(case.build(), "simt", arch=directed.arch).variant.tile
        tried.add((directed.bucket, without_chunks(tile), directed.one_by_one))
    assert tried == wanted


def test_every_tile_of_gradients_has_a_problem() -> None:
    wanted = {
        (*key, without_chunks(tile), one_by_one)
        for key, of_key in tiles.MATRIX_TILES.items()
        for tile in of_key
        for one_by_one in (False, True)
    }
    tried = {
        (gradients, directed.bucket, without_chunks(tile), directed.one_by_one)
        for directed in BACKWARD
        for gradients, tile in passes_of(directed)
    }
    assert tried == wanted


# Where FMA units are as fast, and of other element types beside float64.
MIXED = ("float64", "float32", "float64"), ("float32", "float64", "float16")
FMA = (
    Directed(86, 20, 20),
    Directed(86, 64, 64, WINDOW),
    Directed(86, 100, 100, {"softcap": 1.5}),
    Directed(90, 20, 20, {"dtypes": MIXED[0], "mask": "pairs"}),
    Directed(90, 64, 64, {"dtypes": MIXED[1]}),
    Directed(80, 100, 100, {"dtypes": MIXED[0], "causal": True}),
)


@pytest.mark.parametrize("directed", FMA, ids=str)
def test_results_of_fma_are_within_their_bounds(directed: Directed) -> None:
    tile = run(directed)
    table = select.SIMT_SCORE_TILES if directed.one_by_one else select.SIMT_TILES
    assert not tile.matrix
    assert tile == table["float64", directed.bucket]


@pytest.mark.parametrize("directed", FMA, ids=str)
def test_gradients_of_fma_are_within_their_bounds(directed: Directed) -> None:
    for gradients, tile in run_backward(directed):
        assert not tile.matrix
        assert tile == tiles.SIMT_TILES[gradients, "float64", directed.bucket]


def test_sums_over_wide_rows_are_left_to_fma() -> None:
    options = {"n": 45, "m": 35}
    wide = Directed(90, 100, 100, options, (*QKV, "scale"))
    assert [tile.matrix for _, tile in run_backward(wide)] == [False, True]
    assert all(tile.matrix for _, tile in run_backward(Directed(80, 100, 100, options)))
