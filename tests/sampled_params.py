"""Parameters of which the usual run takes some, and --thorough all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], every: int, name: Callable[[Any], str] = str) -> list[Any]:
    """Mark all but one of `every` so many as thorough."""
    return [
        pytest.param(value, id=name(value), marks=[pytest.mark.thorough] if i % every else [])
        for i, value in enumerate(values)
    ]
