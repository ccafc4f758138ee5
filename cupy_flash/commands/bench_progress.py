"""Progress on stderr: a tqdm bar where tqdm is installed, else a line for every step."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def progress(steps: Sequence[T]) -> Iterator[T]:
    """Iterate over steps and show on stderr which one is being done."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield from _lines(steps)
        return
    # The description of the step in work, which lasts longer than drawing it.
    with tqdm(total=len(steps), unit="problem", dynamic_ncols=True) as bar:
        shown: Any = bar
        for step in steps:
            shown.set_description(str(step))
            yield step
            shown.update()


def _lines(steps: Sequence[T]) -> Iterator[T]:
    width = len(str(len(steps)))
    for number, step in enumerate(steps, 1):
        print(f"[{number:{width}}/{len(steps)}] {step}", file=sys.stderr, flush=True)
        yield step
