"""Every variant compiles for every architecture, without spills, within its budget of registers."""

from __future__ import annotations

import itertools
import json

import pytest

from cupy_flash.device import nvrtc_version
from cupy_flash.select import SIMT_SHARED_MEMORY, SIMT_TILES, Variant
from renew_budget import BUDGET
from variants import AXES, compile_report, cover, name, variants

pytestmark = pytest.mark.needs_nvrtc

TABLE = json.loads(BUDGET.read_text())
VARIANTS = list(variants())
REGISTERS_OF_A_MULTIPROCESSOR = 65_536


def test_the_cover_holds_every_pair() -> None:
    rows = cover()
    for a, b in itertools.combinations(AXES, 2):
        pairs = {(row[a], row[b]) for row in rows}
        assert pairs == set(itertools.product(AXES[a], AXES[b])), (a, b)


def test_the_budget_lists_what_is_compiled() -> None:
    assert set(TABLE["kernels"]) == {name(variant) for variant in VARIANTS}, (
        "run tests/compile/renew_budget.py"
    )


def test_every_tile_of_the_table_is_compiled() -> None:
    compiled = {(v.accumulate, max(v.head_dim, v.head_dim_v)) for v in VARIANTS}
    assert set(SIMT_TILES) <= compiled


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_within_budget(variant: Variant) -> None:
    report = compile_report(variant)
    tile = variant.tile
    assert "warning" not in report.log.lower(), report.log
    assert report.stack == 0, f"stack frame of {report.stack} bytes"
    assert report.spills == 0, f"{report.spills} bytes spilled"
    assert report.shared <= SIMT_SHARED_MEMORY
    assert report.registers * tile.threads * tile.blocks <= REGISTERS_OF_A_MULTIPROCESSOR
    if ".".join(map(str, nvrtc_version())) == TABLE["nvrtc"]:
        budget = TABLE["kernels"][name(variant)]
        assert report.registers <= budget["registers"]
        assert report.shared <= budget["shared"]
