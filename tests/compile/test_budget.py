"""Every variant compiles for every architecture, without spills, within its budget of registers."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from cover import cover
from cupy_flash.backward.variant import BackwardVariant
from cupy_flash.device import assumed, nvrtc_version
from cupy_flash.select import (
    MATRIX_TILES,
    SIMT_SCORE_TILES,
    SIMT_TILES,
    SM80_TILES,
    SM90_TILES,
    SPLIT_HEAD_DIMS,
)
from cupy_flash.softmaxes.select import PART_TILE, ROW_TILES, STAGES, SoftmaxVariant
from cupy_flash.source import AnyVariant
from cupy_flash.variant import Variant
from nvrtc import PINS, compilers, versions
from renew_budget import BUDGET, budget, differences, text
from variants import FAMILIES, SOFTMAX_FAMILIES, compile_report, name, rows, variants

TABLE = budget()
VARIANTS = variants()
RANKS = {variant: i for i, variant in enumerate(VARIANTS)}
COMPILED = {version: variants(version) for version in PINS}
REGISTERS_OF_A_MULTIPROCESSOR = 65_536
# Bytes that a thread of sm80 may spill of a tile of 128 keys with options: at d = 64, on an H200,
# calls that spilled so much were up to 14 % faster than with 64 keys, where nothing spills.
MOST_STACK = 128
# The same of other tiles.
LITTLE_STACK = 16

# The same of the backward pass, whose gradients take up to 128 registers of a thread. Without
# options it is 24 of dk and dv at d = 128 and 64 at 256, whose tiles without any are 4 % and 24 %
# slower.
MOST_BACKWARD_STACK = 192

# The same of float64 on the tensor cores, whose sums take 128 registers at d = 128: of tiles that
# were measured there none is without, 32 bytes by NVRTC 12.9 and 96 by 13.5. And some of d = 32
# with options.
MOST_MATRIX_STACK = 96

# The same of float32 by warpgroups: dk and dv in one pass 8 bytes, dk at d = 128 with options 8 or
# 16, passes that leave sums or pairs beside gradients up to 56; results at d = 128 with options 8,
# and 80 with precision="tf32".
MOST_SPLIT_STACK = 96

# The same of sm90, outside of its loop over keys.
MOST_SM90_STACK = 80

each_compiler = pytest.mark.parametrize(
    "version",
    [pytest.param(version, marks=pytest.mark.needs_nvrtc(version)) for version in versions()],
)


@pytest.mark.parametrize("family", [*FAMILIES, *SOFTMAX_FAMILIES])
def test_the_cover_holds_every_pair(family: str) -> None:
    axes = FAMILIES.get(family) or SOFTMAX_FAMILIES[family]
    found = rows(family) if family in FAMILIES else cover(axes)
    for a, b in itertools.combinations(axes, 2):
        pairs = {(row[a], row[b]) for row in found}
        assert pairs == set(itertools.product(axes[a], axes[b])), (a, b)


def test_a_cover_keeps_its_first_rows_and_is_not_much_longer_than_it_must_be() -> None:
    axes = {"a": range(2), "b": range(5), "c": range(7), "d": range(3)}
    first = [{"a": 1, "b": 4, "c": 6, "d": 2}, {"c": 6, "a": 0}]
    found = cover(axes, first)
    assert found[0] == first[0]
    assert found[1].items() >= first[1].items()
    assert 35 <= len(found) <= 37


def test_what_may_spill() -> None:
    kernels = {name(variant): variant for variant in VARIANTS}
    for figures in TABLE.values():
        for key, found in figures.items():
            if "stack" not in found:
                continue
            variant = kernels[key]
            if isinstance(variant, BackwardVariant) and variant.family == "simt":
                most = MOST_SPLIT_STACK if variant.tile.groups else MOST_MATRIX_STACK
                assert found["stack"] <= most
                assert variant.tile.groups or variant.tile.matrix
                continue
            if variant.tile.matrix or (variant.family == "simt" and variant.tile.groups):
                assert found["stack"] <= (
                    MOST_MATRIX_STACK if variant.tile.matrix else MOST_SPLIT_STACK
                )
                continue
            if variant.family == "sm90":
                assert found["stack"] <= MOST_SM90_STACK
                continue
            assert variant.family == "sm80"
            if isinstance(variant, BackwardVariant):
                assert found["stack"] <= MOST_BACKWARD_STACK
                continue
            assert isinstance(variant, Variant)
            assert variant.mask or variant.bias or variant.softcap or variant.alibi
            most = MOST_STACK if variant.tile.block_n == 128 else LITTLE_STACK
            assert found["stack"] <= most


def test_names_are_unique() -> None:
    assert len({name(variant) for variant in VARIANTS}) == len(VARIANTS)


def test_the_budget_lists_what_is_compiled() -> None:
    names = {version: set(map(name, found)) for version, found in COMPILED.items()}
    assert {version: set(kernels) for version, kernels in TABLE.items()} == names, (
        "run tests/compile/renew_budget.py"
    )


def test_renewing_an_unchanged_budget_changes_no_byte() -> None:
    assert text(TABLE) == BUDGET.read_text()


def test_renewing_says_which_figures_changed() -> None:
    old = {"12.9": {"a": {"registers": 40, "shared": 0}, "b": {"registers": 8, "shared": 0}}}
    new = {"12.9": {"a": {"registers": 48, "shared": 0}}, "13.5": {"a": {"registers": 41}}}
    assert differences(old, new) == [
        "NVRTC 12.9 a: registers 40 -> 48",
        "NVRTC 12.9 b: registers 8 -> none",
        "NVRTC 12.9 b: shared 0 -> none",
        "NVRTC 13.5 a: registers none -> 41",
    ]


def test_every_tile_of_the_table_is_compiled() -> None:
    forward = [variant for variant in VARIANTS if isinstance(variant, Variant)]
    for scored, simt_tiles in ((False, SIMT_TILES), (True, SIMT_SCORE_TILES)):
        some = [v for v in forward if bool(v.mask or v.bias or v.softcap or v.alibi) == scored]
        simt = {(v.accumulate, max(v.head_dim, v.head_dim_v)) for v in some if v.family == "simt"}
        assert set(simt_tiles) == simt
        wanted_tiles = {(key, tiles[0].block_n) for key, tiles in MATRIX_TILES.items()}
        assert wanted_tiles <= {
            (max(v.head_dim, v.head_dim_v), v.tile.block_n) for v in some if v.tile.matrix
        }
        split = [v for v in some if v.tile.groups and v.family == "simt" and not v.tf32]
        groups = {(v.head_dim, v.head_dim_v) for v in split}
        assert groups == set(itertools.product(SPLIT_HEAD_DIMS, SPLIT_HEAD_DIMS))
        sm90 = {max(v.head_dim, v.head_dim_v) for v in some if v.family == "sm90"}
        assert set(SM90_TILES) == sm90
        sm80 = {max(v.head_dim, v.head_dim_v) for v in some if v.family == "sm80"}
        assert set(SM80_TILES) == sm80
    softmax = [variant for variant in VARIANTS if isinstance(variant, SoftmaxVariant)]
    tiles = {(v.tile.lanes, v.tile.packs) for v in softmax}
    wanted = {PART_TILE, *itertools.chain.from_iterable(ROW_TILES.values())}
    assert tiles == {(tile.lanes, tile.packs) for tile in wanted}
    passes = {(method, stage) for method, stages in STAGES.items() for stage in ("row", *stages)}
    assert passes == {(v.method, v.stage) for v in softmax}


def test_cupy_keeps_the_nvrtc_that_it_has_without_these_tests() -> None:
    pytest.importorskip("cupy")
    alone = "from cupy_flash.device import nvrtc_version; print(*nvrtc_version())"
    found = subprocess.run([sys.executable, "-c", alone], check=True, capture_output=True)
    compilers()
    assert nvrtc_version() == tuple(map(int, found.stdout.split()))


def usual(version: str, variant: AnyVariant) -> bool:
    """Whether the usual run compiles a variant by a compiler.

    Each variant of results by one of them, two thirds by the one that cuda12x installs; a third of
    those of gradients, which are as many as all others, by each.
    """
    third = RANKS[variant] % 3 == 0
    return third if isinstance(variant, BackwardVariant) else third == (version != min(PINS))


@pytest.mark.parametrize(
    ("version", "variant"),
    [
        pytest.param(
            version,
            one,
            id=f"{version}-{name(one)}",
            marks=[
                pytest.mark.needs_nvrtc(version),
                *[pytest.mark.thorough] * (not usual(version, one)),
            ],
        )
        for version in versions()
        for one in COMPILED.get(version, VARIANTS)
    ],
)
def test_within_budget(version: str, variant: AnyVariant) -> None:
    report = compile_report(variant, compilers()[version])
    tile = variant.tile
    assert "warning" not in report.log.lower(), report.log
    # What ptxas says where it serializes wgmma (C7510 to C7518), as information.
    assert "performance loss" not in report.log.lower(), report.log
    assert report.shared <= assumed(variant.arch).shared_memory
    assert report.registers * tile.threads * tile.blocks <= REGISTERS_OF_A_MULTIPROCESSOR
    allowed = TABLE.get(version, {}).get(name(variant), {})
    stack = allowed.get("stack", 0)
    assert report.stack <= stack, f"stack frame of {report.stack} bytes, {stack} allowed"
    if allowed:
        assert report.registers <= allowed["registers"]
        assert report.shared <= allowed["shared"]
