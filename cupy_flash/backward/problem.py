"""A call of the backward pass as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from cupy_flash.axes import Operand
from cupy_flash.problem import Problem


@dataclass(frozen=True)
class Gradient:
    """Where one gradient goes."""

    name: str
    operand: Operand
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    batch: tuple[int, ...]
    heads: int
    rows: int
    columns: int


@dataclass(frozen=True)
class BackwardProblem:
    """Everything that decides the gradients' values and places, except the data."""

    forward: Problem
    do: Operand
    dlse: Operand | None
    wrt: tuple[str, ...]
    gradients: tuple[Gradient, ...]
    deterministic: bool
