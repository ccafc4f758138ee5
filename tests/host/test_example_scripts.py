"""The scripts in examples/ end in a check that passes, and that fails where attention is wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cupy_flash

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = [path.stem for path in sorted(EXAMPLES.glob("*.py")) if path.stem != "setting"]
# Their results; `attention_vjp` has them in its pair.
FUNCTIONS = ("attention", "attention_vjp", "attention_backward")


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, argv: list[str]) -> int:
    """Run an example; skip where it says that something isn't installed (status 2)."""
    status: int = module.main(argv)
    if status == 2:
        pytest.skip(module.INSTALL)
    return status


def wrong(result: Any) -> Any:
    """Return a result of `attention` that is off by a hundredth."""
    if hasattr(result, "_fields"):
        return type(result)(*map(wrong, result))
    if isinstance(result, tuple):
        return tuple(map(wrong, result))
    return result * 1.01 if hasattr(result, "dtype") else result


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_ends_in_a_check_that_passes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, picture = script(name, monkeypatch), tmp_path / "picture.png"
    drawn = ["--picture", str(picture)] if hasattr(module, "draw") else []
    assert run(module, ["--cpu", *drawn]) == 0
    printed = capsys.readouterr().out
    assert ": ok" in printed
    assert "WRONG" not in printed
    assert not drawn or picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_notices_a_wrong_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script(name, monkeypatch)
    for function in FUNCTIONS:
        right = getattr(cupy_flash, function)
        monkeypatch.setattr(
            cupy_flash, function, lambda *args, right=right, **given: wrong(right(*args, **given))
        )
    assert run(module, ["--cpu"]) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_passes_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(script(name, monkeypatch), []) == 0
