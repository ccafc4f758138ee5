"""Hypothesis profiles, and what happens where a tool or a GPU is missing."""

from __future__ import annotations

import functools
import os
from typing import Any

# Before NumPy is imported: the two processes share the cores, where more threads would wait for
# each other in a loop.
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))

import pytest
from hypothesis import HealthCheck, settings

import nvrtc
from cupy_flash.device import gpu_is_available
from emulation import compiler

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# Deterministic draws: a failure is a change's, not the day's; --hypothesis-profile=explore
# draws anew.
settings.register_profile(
    "fixed",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("explore", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("fixed")


@functools.cache
def compiler_problem() -> str | None:
    return None if compiler() else "no host C++ compiler: install g++, or set CXX"


@functools.cache
def gpu_problem() -> str | None:
    return None if gpu_is_available() else "no GPU that CuPy can use"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--repeats",
        type=int,
        default=20,
        help="runs of each backward call in tests/gpu/test_backward_repeats.py (20)",
    )

    parser.addoption(
        "--thorough",
        action="store_true",
        help="also the tests that the usual run leaves out: more of the same kinds",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--thorough"):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    problems = [nvrtc.problem(*marker.args) for marker in item.iter_markers("needs_nvrtc")]
    if item.get_closest_marker("needs_compiler"):
        problems.append(compiler_problem())
    for problem in filter(None, problems):
        if IN_CI:
            pytest.fail(f"CI must run this test: {problem}", pytrace=False)
        pytest.skip(problem)
    if item.get_closest_marker("gpu") and gpu_problem():
        pytest.skip(gpu_problem())


@pytest.fixture(scope="session")
def cxx() -> str:
    path = compiler()
    if path is None:
        pytest.skip("no host C++ compiler")
    return path


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the random tests drew, from all test processes."""
    reports = [
        (report.nodeid, text)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, text in report.user_properties
        if name == "drawn"
    ]
    if reports:
        terminalreporter.section("random problems")
    for nodeid, text in sorted(reports):
        terminalreporter.write_line(f"{nodeid}: {text}")
