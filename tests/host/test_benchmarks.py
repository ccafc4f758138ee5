"""The benchmark scripts: their cases, their protocol on a pretended GPU, and what they print."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from command_line import ROOT

pytest.importorskip("cupy")

import compare_peers
import cost_growth
import count_traffic
import gather_peers
import peers
import protocol
import time_attention
from cupy_flash import attention
from peers import Arrays, Case, Ours
from pretended_gpu import pretend

SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
# Modules of peers, which need the peers.
NOT_ALONE = {"peers_torch", "peers_torch_backward", "peers_jax", "peers_options"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_can_be_imported_without_a_gpu(script):
    if script in NOT_ALONE:
        compile((ROOT / "benchmarks" / f"{script}.py").read_text(), script, "exec")
        return
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, 'benchmarks']; import {script}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_papers_points_and_the_grouped_ones():
    cases = compare_peers.cases("bfloat16", compare_peers.LENGTHS, compare_peers.DIMS)
    assert len(set(cases)) == 36 + 4
    for case in cases[:36]:
        assert case.batch * case.n == 16_384
        assert case.heads * case.d == case.kv_heads * case.d == 2048
    assert {(c.n, c.d, c.causal) for c in cases[:36]} == {
        (n, d, causal)
        for n in (512, 1024, 2048, 4096, 8192, 16_384)
        for d in (64, 128, 256)
        for causal in (False, True)
    }
    assert {(c.batch, c.heads, c.kv_heads, c.d) for c in cases[36:]} == {(1, 64, 8, 128)}
    assert {(c.n, c.causal) for c in cases[36:]} == {
        (n, causal) for n in (4096, 16_384) for causal in (False, True)
    }
    assert all(case.layout == "bnhd" for case in cases)


def test_flops_are_those_of_the_papers():
    case = Case("float16", 1, 16, 16, 16_384, 128, False)
    assert case.flops == 4 * 16 * 16_384**2 * 128
    assert Case("float16", 1, 16, 16, 16_384, 128, True).flops == case.flops / 2


def test_words_of_peers():
    assert peers.peer_words("fa4,torch,fa4") == ["fa4", *peers.GROUPS["torch"]]
    assert peers.peer_words("") == []
    with pytest.raises(argparse.ArgumentTypeError, match="'fa5' is no peer; known are torch, jax"):
        peers.peer_words("fa5")


def test_a_peer_that_is_not_installed_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "peers_torch", raising=False)
    found, used = peers.chosen(["torch-fa2"])
    assert found == []
    assert "torch" in used["torch-fa2"]["not_usable"]
    assert "torch-fa2 can't be used: ModuleNotFoundError" in capsys.readouterr().out


def test_a_kernel_of_ours_says_what_it_cannot_do():
    assert Ours("auto").why_not(Case("float16", 1, 4, 4, 64, 64, True)) is None
    assert "float32" in Ours("sm80").why_not(Case("float32", 1, 4, 4, 64, 64, True))


class Peer(peers.Candidate):
    """Computes `factor` times attention, or fails."""

    def __init__(self, name, factor=1.0, fails=None):
        super().__init__(name)
        self.factor, self.fails = factor, fails

    def why_not(self, case):
        return "takes no causal mask" if case.causal else None

    def call(self, case, arrays):
        def run():
            if self.fails:
                raise self.fails
            return attention(arrays.q, arrays.k, arrays.v) * np.float32(self.factor)

        return run

    def sample(self, call, stream, calls):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


class OursOnNumpy(Ours):
    """Ours with NumPy arrays, for which there is no tile to describe."""

    def describe(self, case, arrays):
        return {"kernel": "blocked"}


@pytest.fixture
def pretended(monkeypatch):
    pretend(monkeypatch, peers, protocol)
    monkeypatch.setattr(protocol, "_clock", lambda stream: lambda: 1755.0)


def measured(case, *candidates, **how):
    how = protocol.Protocol(**{"rounds": 3, "calls": 4, **how})
    return protocol.measure(case, [OursOnNumpy("auto"), *candidates], how)


@pytest.mark.parametrize("layout", peers.LAYOUTS)
def test_a_case_is_checked_timed_and_timed_again_after_pauses(layout, pretended):
    case = Case("float32", 2, 4, 2, 40, 8, False, layout)
    failing = Peer("failing", fails=RuntimeError("no kernel image"))
    candidates = [peers.Unfused(), Peer("right"), Peer("wrong", 1.1), failing]
    point = measured(case, *candidates, pause=1e-4)
    found = point["candidates"]
    assert point["sm_clock_mhz"] == 1755
    assert point["layout"] == layout
    # 2 ms for 4 calls, and for the single ones after pauses.
    for name in ("auto", "unfused", "right"):
        assert found[name]["seconds"] == pytest.approx(0.5e-3)
        assert found[name]["paused_seconds"] == pytest.approx(2e-3)
        assert found[name]["tflops"] == pytest.approx(case.flops / 0.5e-3 / 1e12)
        assert "wrong" not in found[name]
    assert found["auto"]["error_over_bound"] <= 1
    assert found["wrong"]["wrong"] is True
    assert found["failing"] == {"not_possible": "RuntimeError: no kernel image"}
    assert found["right"]["not_captured"].endswith("when stream is capturing")
    assert protocol.best_peer(point, ["wrong", "right", "failing", "absent"]) == "right"
    assert protocol.best_peer(point, ["wrong"]) is None
    shown = "\n".join(" ".join(row) for row in time_attention.sustained([point]))
    assert "float32 40 8 4/2 full auto (blocked) 0.500" in shown
    assert "failing not possible" in shown
    assert shown.count("WRONG") == 1
    assert len(time_attention.paused([point])) == 1 + 4
    assert "right, float32: RuntimeError: operation not permitted when stream is capturing " in (
        "\n".join(time_attention.reasons([point]))
    )


def test_without_a_pause_there_is_no_second_figure(pretended):
    point = measured(Case("float64", 1, 2, 2, 24, 8, True), Peer("no masks"))
    assert point["candidates"]["no masks"] == {"not_possible": "takes no causal mask"}
    assert "paused_seconds" not in point["candidates"]["auto"]
    assert time_attention.paused([point])[1:] == []


def test_a_failure_of_ours_is_not_hidden(pretended, monkeypatch):
    def fail(*arrays, **options):
        raise RuntimeError("broken kernel")

    monkeypatch.setattr(peers, "attention", fail)
    with pytest.raises(RuntimeError, match="broken kernel"):
        measured(Case("float32", 1, 2, 2, 24, 8, True))


def test_a_result_that_nobody_wrote_is_wrong(pretended, monkeypatch):
    monkeypatch.setattr(peers, "attention", lambda *arrays, out, **options: out)
    found = measured(Case("float32", 1, 2, 2, 24, 8, True))["candidates"]["auto"]
    assert math.isinf(found["error_over_bound"])


def test_ratios_are_to_the_best_right_peer():
    def rates(tflops, paused, **more):
        return {"tflops": tflops, "paused_tflops": paused, **more}

    candidates = {
        "auto": {"tflops": 630.0, "paused_tflops": 660.0},
        "fast": rates(600.0, 600.0),
        "cooler": rates(500.0, 800.0),
        "wrong": rates(900.0, 900.0, wrong=True),
    }
    names = ["fast", "cooler", "wrong"]
    point = {"candidates": candidates}
    assert compare_peers.ratios(point, "auto", names) == {
        "ratio_beside": "fast",
        "ratio": pytest.approx(1.05),
        "paused_ratio_beside": "cooler",
        "paused_ratio": pytest.approx(0.825),
    }
    assert compare_peers.ratios(point, "auto", []) == {}
    points = [{"ratio": 1.1}, {"ratio": 0.9}, {}]
    assert compare_peers.summary(points) == (
        "1 of 2 points at 1.05 x the best peer or more; least 0.900, geometric mean 0.995"
    )
    case = {"dtype": "float16", "n": 512, "d": 64, "heads": 4, "kv_heads": 4, "causal": True}
    row = compare_peers.table(
        [{**case, **point, "sm_clock_mhz": 1700.0, "ratio": 1.05}], "auto", [*names, "absent"]
    )[1]
    assert row[5:] == ["630", "600", "500", "900 WRONG", "-", "-", "1.050", "-", "1700"]


def test_exponents_of_growth():
    points = []
    for n in (512, 1024, 2048, 4096, 8192, 16_384):
        ours = {"seconds": 1e-5 + 1e-12 * n**2, "array_bytes": 64 * n, "extra_bytes": 0}
        unfused = {**ours, "extra_bytes": 6 * n**2}
        able = {"ours": ours, "unfused": unfused if n < 10_000 else {"not_possible": "memory"}}
        points.append({"n": n, "candidates": able})
    grown = cost_growth.growth(points)
    assert grown["ours"]["longest_n"] == 16_384
    assert grown["unfused"]["longest_n"] == 8192
    assert grown["ours"]["exponent_of_bytes"] == pytest.approx(1.0)
    assert 1.9 < grown["unfused"]["exponent_of_bytes"] < 2
    assert 1.2 < grown["ours"]["exponent_of_seconds"] < 2


def test_arrays_of_both_layouts_hold_rows_of_the_same_shape(pretended):
    for layout in peers.LAYOUTS:
        case = Case("bfloat16", 2, 6, 3, 5, 4, False, layout)
        made = peers.make_arrays(case)
        assert isinstance(made, Arrays)
        assert [x.shape for x in (made.q, made.k, made.v, made.out)] == [
            (2, 6, 5, 4),
            (2, 3, 5, 4),
            (2, 3, 5, 4),
            (2, 6, 5, 4),
        ]
        assert made.q.swapaxes(1, 2).flags.c_contiguous is (layout == "bnhd")


def test_gathered_peers_lose_what_is_not_needed(tmp_path):
    kept = ["flash_attn/cute/a.py", "x/lib/libx.so", "x/lib/stubs/x86_64/libx.so"]
    dropped = ["x/lib/libx.a", "x/include/x.h", "x/lib/stubs/aarch64-linux/libx.so"]
    dropped.append("nvidia_cutlass_dsl/dsl_packages/iket/a.py")
    for name in kept + dropped:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    gather_peers.slim(tmp_path)
    assert all((tmp_path / name).exists() for name in kept)
    assert not any((tmp_path / name).exists() for name in dropped)


def test_an_archive_unpacks_to_what_was_gathered(tmp_path):
    folder = tmp_path / "fa3"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "a.so").write_bytes(b"\xe8abcd" * 1000)
    gather_peers.pack(folder, tmp_path / "fa3.tar.xz")
    with tarfile.open(tmp_path / "fa3.tar.xz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert (tmp_path / "unpacked/fa3/lib/a.so").read_bytes() == b"\xe8abcd" * 1000


def test_a_module_that_has_changed_is_not_patched():
    text = "\n".join(old for old, _ in gather_peers.DEW_CHANGES)
    assert gather_peers.without_fa2(text).splitlines() == [
        new for _, new in gather_peers.DEW_CHANGES
    ]
    with pytest.raises(ValueError, match="another version"):
        gather_peers.without_fa2("import jax")


def test_the_path_of_gathered_peers_has_the_packages_of_the_dsl(tmp_path):
    found = gather_peers.python_path(tmp_path, ["fa3", "fa4"]).split(":")
    expected = ["fa3", "fa4", "fa4/nvidia_cutlass_dsl/dsl_packages"]
    assert found == [str(tmp_path / name) for name in expected]


def test_the_page_tells_of_every_script():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    helpers = {
        "gpu_timing",
        "picture_parts",
        "pictures_memory",
        "readme_table",
        "speed_tables",
        "record_gpu_tests",
        "record_primitives",
    }
    for script in set(SCRIPTS) - helpers:
        assert f"`{script}.py`" in page, script


def test_the_counters_of_all_kernels_are_summed():
    counters = count_traffic.GROUPS[0]
    output = "\n".join(
        [
            "==PROF== Connected to process 7",
            '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"',
            '"","","byte","byte"',
            '"0","gemm","1,000","20"',
            '"1","softmax","500","3"',
            '"2","end_of_point","7","7"',
            '"3","gemm","8","0"',
            '"4","end_of_point","7","7"',
        ]
    )
    assert count_traffic.totals(output, counters) == [
        (2, dict(zip(counters, (1500, 23), strict=True))),
        (1, dict(zip(counters, (8, 0), strict=True))),
    ]
    assert count_traffic.totals("==ERROR== no permission", counters) == []


def test_every_point_of_traffic_has_a_prediction():
    by_what = {point.what: point.predicted() for point in count_traffic.points() if point.n == 4096}
    assert by_what["softmax three_pass"] > by_what["softmax online"]
    assert by_what["standard"] > by_what["fused"] >= 4 * 8 * 4096 * 128 * 2
