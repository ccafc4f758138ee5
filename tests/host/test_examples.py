"""The examples of docstrings, README.md, CONTRIBUTING.md and docs run as they are written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import cupy_flash

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
CUPY = re.compile(r"\bcupy as cp\b")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(cupy_flash.__path__, "cupy_flash.")
    if not module.name.endswith("__main__")
]


def docstring_examples(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return [test for test in found if test.examples]


def blocks(page: str) -> list[tuple[int, str]]:
    """Return a page's blocks of Python, with the line that each begins at."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.finditer(r"^```(?:python|pycon)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, fence.start(1)), fence[1]) for fence in fences]


def run(test: doctest.DocTest) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    failed = runner.run(test, out=report.append, clear_globs=False).failed
    assert not failed, "".join(report)


def run_page(page: str, names: dict[str, Any], numpy_for_cupy: bool = False) -> None:
    """Run all blocks of a page one after another, as one session."""
    for line, block in blocks(page):
        if numpy_for_cupy:
            block = CUPY.sub("numpy as cp", block)
        if block.startswith(">>> "):
            test = doctest.DocTestParser().get_doctest(block, {}, page, str(ROOT / page), line)
            test.globs = names
            run(test)
        else:
            exec(compile("\n" * line + block, str(ROOT / page), "exec"), names)


EXAMPLES = [module for module in MODULES if docstring_examples(module)]
SESSIONS = [page for page in PAGES if blocks(page)]


def test_there_are_examples():
    assert {"cupy_flash.api", "cupy_flash.explanation", "cupy_flash.activations"} <= {*EXAMPLES}
    pages = ("README.md", "docs/start.md", "docs/how-a-call-flows.md", "docs/semantics.md")
    assert {*pages} <= {*SESSIONS}


@pytest.mark.parametrize("module", EXAMPLES)
def test_docstrings(module):
    for test in docstring_examples(module):
        run(test)


@pytest.mark.parametrize("page", SESSIONS)
def test_pages_with_numpy_where_they_say_cupy(page):
    """The NumPy path has the same meaning: without a GPU too, what a page shows runs."""
    if any("cp.cuda." in block for _, block in blocks(page)):
        pytest.skip("what it shows exists on a GPU only")
    run_page(page, {}, numpy_for_cupy=True)


@pytest.mark.gpu
@pytest.mark.parametrize("page", SESSIONS)
def test_pages(page):
    run_page(page, {})


@pytest.mark.parametrize("fault", [">>> 1 + 1\n3\n", "assert 1 + 1 == 3\n", "import cupy as cpp\n"])
def test_a_wrong_example_fails(fault, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(f"# Page\n\n```python\n{fault}\n```\n", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises((AssertionError, ImportError)):
        run_page("page.md", {}, numpy_for_cupy=True)
