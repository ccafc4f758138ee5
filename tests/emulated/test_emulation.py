"""Building, launching and isolating emulated kernels from Python."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import emulation_build
from emulation import BuildError, EmulatedKernel, Region, build, compiler, run_isolated
from tiny_kernels import EMPTY, PARAMS, PRELUDE, kernel_of, kernel_text, launch

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Building.


def test_compiler_errors_name_the_kernel_file() -> None:
    with pytest.raises(BuildError, match=r"softmax\.cuh:7:\d+: error: .*undeclared_name"):
        build('#line 6 "softmax.cuh"\n\nint f() { return undeclared_name; }', "kernel", 1)


@pytest.mark.parametrize(
    "body",
    [
        "__shared__ float tile[32];",
        "sm[threadIdx.y] = 0.f;",
        "__syncwarp(0x3u);",
        "sm[i] = fabs(sm[i]);",
        "sm[i] = fmax(sm[i], 0.f);",
    ],
)
def test_what_kernels_may_not_use_does_not_compile(body: str) -> None:
    with pytest.raises(BuildError, match=r"body\.cuh:1:\d+: error"):
        kernel_of(body)


def test_warnings_are_errors_unless_asked() -> None:
    body = "int unused = 0;"
    with pytest.raises(BuildError, match=r"unused"):
        kernel_of(body)
    kernel_of(body, strict=False)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_one_library_serves_those_who_mind_warnings_and_those_who_do_not(
    tmp_path: Path, order: tuple[bool, bool]
) -> None:
    text = kernel_text("int unused = 0;", np.float32, PRELUDE)

    def built(strict: bool) -> Path:
        return build(text, "kernel", PARAMS.itemsize, strict=strict, cache=tmp_path)

    for strict in order:
        if strict:
            with pytest.raises(BuildError, match=r"body\.cuh:1:\d+: warning: unused"):
                built(strict)
        else:
            built(strict)
    assert len(list(tmp_path.glob("*.so"))) == 1


def test_params_of_another_size_are_refused() -> None:
    with pytest.raises(BuildError, match=r"expected 32 bytes, but the struct of kernel has 24"):
        build(EMPTY, "kernel", 32)


def test_build_is_cached_and_shared_between_workers(tmp_path: Path) -> None:

    def built(_: int) -> tuple[Path, int]:
        path = build(EMPTY, "kernel", PARAMS.itemsize, cache=tmp_path)
        return path, path.stat().st_mtime_ns

    with ThreadPoolExecutor(2) as workers:
        first, second = workers.map(built, range(2))
    assert first == second == built(0)
    assert [path.name for path in tmp_path.glob("*.so")] == [first[0].name]
    other = build(EMPTY + "\n", "kernel", PARAMS.itemsize, cache=tmp_path)
    assert other != first[0]


def test_emulator_is_built_once_for_each_set_of_flags(tmp_path: Path) -> None:

    def built(number: int) -> Path:
        text = EMPTY + "\n" * (number // 2)
        return build(text, "kernel", PARAMS.itemsize, ucontext=number % 2 == 1, cache=tmp_path)

    with ThreadPoolExecutor(4) as workers:
        assert len(set(workers.map(built, range(4)))) == 4
    assert len(list(tmp_path.glob("emulator-*.o"))) == 2
    x = np.zeros(32, np.float32)
    for number in range(4):
        launch(EmulatedKernel(built(number), "kernel", PARAMS.itemsize), x, x)


def test_kernels_take_the_precompiled_header(tmp_path: Path, cxx: str) -> None:
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True, check=True)
    if "Free Software Foundation" not in version.stdout:
        pytest.skip("only GCC's are used")
    build(EMPTY, "kernel", PARAMS.itemsize, cache=tmp_path)
    (header,) = tmp_path.glob("emulator-*.hpp")
    header.write_text("#error not precompiled")
    build(EMPTY + "\n", "kernel", PARAMS.itemsize, cache=tmp_path)
    header.with_suffix(".hpp.gch").unlink()
    with pytest.raises(BuildError, match=r"error: #error not precompiled"):
        build(EMPTY + "\n\n", "kernel", PARAMS.itemsize, cache=tmp_path)


def test_another_emulator_is_built_anew_and_without_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(EMPTY, "kernel", PARAMS.itemsize, cache=tmp_path)
    changed = tmp_path / "emulator"
    shutil.copytree(emulation_build.EMULATOR, changed)
    monkeypatch.setattr(emulation_build, "EMULATOR", changed)
    uncached = emulation_build._emulator_text.__wrapped__
    monkeypatch.setattr(emulation_build, "_emulator_text", uncached)
    text = (changed / "thread.cpp").read_text()
    for addition, builds in (("// Changed.\n", True), ("static int unused;\n", False)):
        (changed / "thread.cpp").write_text(text + addition)
        if builds:
            assert build(EMPTY, "kernel", PARAMS.itemsize, cache=tmp_path) != first
        else:
            with pytest.raises(BuildError, match=r"thread\.cpp:\d+:\d+: error: .*unused"):
                build(EMPTY, "kernel", PARAMS.itemsize, cache=tmp_path)


def test_cache_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPY_FLASH_EMULATION_CACHE", str(tmp_path / "new"))
    assert build(EMPTY, "kernel", PARAMS.itemsize).parent == tmp_path / "new"


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler() is None
    with pytest.raises(BuildError, match=r"no C\+\+ compiler: install g\+\+ or set CXX"):
        build("", "kernel", 1)


# Launching.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": b"short"}, r"params has 5 bytes; kernel takes 24"),
        ({"threads": 48}, r"threads=48: allowed are multiples of 32 up to 1024"),
        ({"threads": 0}, r"threads=0"),
        ({"threads": 1056}, r"threads=1056"),
        ({"grid": 0}, r"grid=0: at least one block"),
        ({"schedule": 8}, r"schedule=8: allowed are"),
    ],
)
def test_launch_names_a_bad_argument(change: dict[str, Any], message: str) -> None:
    arguments = {"params": bytes(24), "grid": 1, "threads": 32, "smem": 0, "regions": []}
    with pytest.raises(ValueError, match=message):
        kernel_of("").launch(**{**arguments, **change})


def test_concurrent_launches_do_not_mix() -> None:
    kernel = kernel_of(
        """
        float sum = 0;
        for (int k = 0; k < 200; ++k) sum += __shfl_xor_sync(0xffffffffu, 1.f * p.n, 1);
        store(p.y + i, sum);
        """
    )
    results = [np.zeros(32, np.float32) for _ in range(4)]
    workers = [
        threading.Thread(
            target=launch,
            args=(kernel, y, y),
            kwargs={"n": n, "regions": [Region.of("y", y, True)]},
        )
        for n, y in enumerate(results)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    np.testing.assert_array_equal(np.array(results)[:, 0], [0, 200, 400, 600])


# Isolation.


def crash() -> None:
    ctypes.string_at(0)


def test_isolated_crash_is_reported() -> None:
    assert run_isolated(crash) == "killed by SIGSEGV"


def test_isolated_hang_is_killed() -> None:
    start = time.monotonic()
    assert run_isolated(signal.pause, timeout=0.2) == "timed out after 0.2 s"
    assert time.monotonic() - start < 10


def test_isolated_kernel_that_never_stops_is_killed() -> None:
    kernel = kernel_of("volatile int k = 0;\nwhile (k == 0) {}")
    x = np.zeros(32, np.float32)
    assert run_isolated(launch, kernel, x, x, timeout=0.5) == "timed out after 0.5 s"


def test_isolated_verdicts() -> None:
    x = np.arange(32, dtype=np.float32)
    kernel = kernel_of("store(p.y + i, 7.f);")
    passing = [Region.of("x", x, writable=True)]
    assert run_isolated(lambda: launch(kernel, x, x, regions=passing)) == "passed"
    assert x[0] == 0, "the child must not write the parent's memory"
    verdict = run_isolated(lambda: launch(kernel, x, x, regions=[Region.of("x", x)]))
    assert verdict.startswith("EmulationError: kernel: block 0, thread 0: write of 4 bytes at x+0")
