"""`info` tells the truth of every machine, and names what doesn't fit together."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from command_line import BLOCK_CUPY, fresh, two_gpus
from cupy_flash.__main__ import main
from cupy_flash.arrays import FLOAT_NAMES
from cupy_flash.commands import info as info_command
from cupy_flash.commands import machine
from cupy_flash.commands.mismatches import Facts, mismatches
from cupy_flash.explanation import explain

needs_cupy = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy isn't installed")

SECTIONS = ["versions", "gpus", "compiler", "mismatches", "runs where", "environment"]


def test_info_without_a_gpu():
    done = fresh("info")
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "Versions",
        f"NumPy  .* {np.__version__}",
        "GPUs\n  none: ",
        "CUPY_CACHE_DIR",
        "NumPy arrays: the blocked NumPy path",
        "CUPY_FLASH_LOG",
    ):
        assert re.search(words.replace("  .* ", " +"), done.stdout), words


def test_info_without_cupy():
    done = fresh("info", "--json", code=BLOCK_CUPY)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report) == SECTIONS
    why = "No module named 'cupy'"
    assert why in report["versions"]["CuPy"]["unknown"]
    assert why in report["gpus"]["unknown"]
    assert all("unknown" in report["compiler"][name] for name in ("its file", "CUDA headers"))
    assert report["versions"]["NumPy"] == np.__version__
    assert why in report["compiler"]["cuBLAS"]["unknown"]


@needs_cupy
def test_a_cupy_that_fails_to_import_is_reported(tmp_path):
    file = tmp_path / "file"
    file.touch()
    done = fresh("info", CUPY_CACHE_DIR=str(file / "below"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "CuPy can't be imported (NotADirectoryError" in done.stdout
    assert "NOT writable" in done.stdout
    assert repr(str(file / "below")) in done.stdout


@pytest.mark.parametrize(
    "probe",
    [
        "gpus",
        "driver_version",
        "runtime_version",
        "highest_arch",
        "nvrtc_path",
        "header_folder",
        "kernel_cache",
    ],
)
def test_a_failing_probe_says_why_and_stops_nothing(probe, monkeypatch, capsys):
    def fail():
        raise RuntimeError("it broke\nin two lines")

    monkeypatch.setattr(machine, probe, fail)
    monkeypatch.setattr(machine, "gpu_problem", lambda index=0: None)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "RuntimeError: it broke" in text
    assert "two lines" not in text
    assert main(["info", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == SECTIONS


@needs_cupy
def test_the_loaded_nvrtc_is_found():
    # The compile tests may have loaded a second one into this process.
    for path in map(Path, machine.nvrtc_path().split(", ")):
        assert path.is_file()
        assert path.name.startswith("libnvrtc.")


def test_info_shows_every_gpu_and_what_it_runs(monkeypatch):
    two_gpus(monkeypatch)
    report = info_command.collect()
    assert [gpu["arch"] for gpu in report["gpus"]] == [90, 75]
    routes = report["runs where"]
    assert [(route["gpu"], route["dtype"]) for route in routes] == [
        (gpu, dtype) for gpu in (0, 1) for dtype in FLOAT_NAMES
    ]
    for route in routes:
        arch = report["gpus"][route["gpu"]]["arch"]
        for head_dim, family in route["families"].items():
            x = ((1024, int(head_dim)), route["dtype"])
            assert explain(x, x, x, arch=arch).kernel == family
    text = "\n".join(info_command._as_text(report))
    assert "16.0 GiB, 132 multiprocessors" in text
    assert re.search(r"GPU 1, float64 +\w+ +\w+ +\w+ +naive", text)


GOOD = {
    "distributions": {"cupy-cuda12x": "14.2.0", "nvidia-cuda-nvrtc-cu12": "12.9.86"},
    "nvrtc": (12, 9),
    "nvrtc_path": "/lib/libnvrtc.so.12",
    "highest_arch": 121,
    "driver": (12, 9),
    "runtime": (12, 9),
    "archs": (90,),
}


def test_parts_that_fit_make_no_mismatch():
    assert mismatches(Facts(**GOOD)) == []
    assert mismatches(Facts()) == []
    assert mismatches(Facts(**GOOD | {"driver": (13, 1)})) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"distributions": {"cupy": "14.2.0", "cupy-cuda13x": "14.1.0"}},
            ["cupy 14.2.0 and cupy-cuda13x 14.1.0", "pip uninstall cupy cupy-cuda13x"],
        ),
        (
            {"distributions": {"nvidia-cuda-nvrtc": "13.0.48"}},
            ["nvidia-cuda-nvrtc 13.0.48", "loaded NVRTC 12.9 from /lib/libnvrtc.so.12"],
        ),
        (
            {"distributions": {"nvidia-cuda-nvrtc-cu12": "12.8.93"}},
            ["nvidia-cuda-nvrtc-cu12 12.8.93", "loaded NVRTC 12.9"],
        ),
        ({"driver": (12, 4)}, ["NVRTC 12.9 is newer", "CUDA 12.4", "kernels load"]),
        ({"driver": (12, 4), "ptx": True}, ["NVRTC 12.9 is newer", "unset CUPY_COMPILE_WITH_PTX"]),
        ({"nvrtc": (13, 0)} | {"distributions": {}}, ["NVRTC 13.0 is newer", "may not load"]),
        ({"runtime": (13, 0)}, ["CuPy is built for CUDA 13", "install cupy-cuda12x"]),
        ({"archs": (90, 130)}, ["the GPU is sm_130", "none newer than sm_121"]),
        ({"nvrtc": (12, 8), "distributions": {}}, ["NVRTC 12.8 is older than 12.9", "sm90"]),
    ],
)
def test_a_mismatch_is_named(facts, words):
    (found,) = mismatches(Facts(**GOOD | facts))
    for word in words:
        assert word in found


def test_info_shows_a_mismatch(monkeypatch, capsys):
    installed = {"cupy": "14.2.0", "cupy-cuda12x": "14.2.0"}
    monkeypatch.setattr(machine, "distributions", lambda: installed)
    main(["info"])
    assert "Mismatches\n  cupy 14.2.0 and cupy-cuda12x 14.2.0" in capsys.readouterr().out
