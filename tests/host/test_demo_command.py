"""`demo` shows what it measured and nothing else."""

from __future__ import annotations

import re

import numpy as np
import pytest

from command_line import NO_GPU, hide_gpu, replaced_attend, scaled
from cupy_flash import blocked
from cupy_flash.__main__ import main
from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands import demo as demo_command
from cupy_flash.commands.measure import Cpu


@pytest.fixture
def no_gpu(monkeypatch):
    hide_gpu(monkeypatch)


def test_demo_shows_errors_times_and_memory(no_gpu, capsys):
    assert main(["demo", "--size", "1,3,300,8"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"NumPy arrays: {NO_GPU}\n")
    errors, costs = text.split("\n\n")[1:3]
    for table in (errors, costs):
        for name in ("MiniLM layer0/301", *(f"random 1,3,300,8 +{dtype}" for dtype in FLOAT_NAMES)):
            assert re.search(name, table), name
    assert "tracemalloc" in costs
    assert "the blocked NumPy path" in text
    shares = [float(share) for share in re.findall(r" ([\d.]+)% ", errors)]
    assert len(shares) == 8
    assert max(shares) <= 100


def test_demo_fails_when_a_result_is_wrong(no_gpu, monkeypatch, capsys):
    monkeypatch.setattr(blocked, "attend", replaced_attend(scaled))
    assert main(["demo", "--size", "1,1,20,8"]) == 1
    shares = re.findall(r" ([\d.]+)% ", capsys.readouterr().out)
    assert max(float(share) for share in shares) > 100


def test_demo_without_unfused_attention_shows_no_ratio():
    q = np.ones((1, 1, 9, 4), np.float32)
    inputs = demo_command.Inputs("ones", q, q, q, [(0, 0)], np.arange(9))
    why = "needs cuBLAS: pip install nvidia-cublas-cu12"
    measured = [demo_command._measure(inputs, Cpu(), f"{why}\n(more)")]
    row = next(x for x in demo_command._costs(measured, Cpu()) if x.startswith("ones"))
    assert why in row
    first, last = row.split(why)
    assert len(re.findall(r"\d (s|ms|us)\b", first)) == 2
    assert re.fullmatch(r" +- +[\d.]+ (B|KiB) +-", last)
    assert why in demo_command._errors(measured)[3]


def test_demo_survives_unfused_attention_that_does_not_fit(no_gpu, monkeypatch, capsys):
    def too_large(*arrays):
        raise MemoryError

    monkeypatch.setattr(demo_command, "standard_attention", too_large)
    assert main(["demo", "--size", "1,1,20,8"]) == 0
    assert capsys.readouterr().out.count("out of memory") == 16


def test_extra_memory_counts_the_peak_without_the_result():
    mib = 2**20

    def call():
        first = np.zeros(3 * mib, np.uint8)
        second = np.zeros(2 * mib, np.uint8)
        del first
        third = np.zeros(mib, np.uint8)
        del second
        return third

    assert Cpu().extra_bytes(call) == pytest.approx(4 * mib, rel=0.01)


def test_amounts_are_readable():
    shown = [demo_command._time(x) for x in (2.5e-6, 1.5e-3, 0.25, 12.0)]
    assert shown == ["2 us", "1.50 ms", "250.00 ms", "12.00 s"]
    sizes = [demo_command._memory(x) for x in (0, 1000, 2048, 3 * 2**20, 5 * 2**30)]
    assert sizes == ["0 B", "1000 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
