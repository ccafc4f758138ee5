"""The emulated kernels as a way to compute gradients of plain arrays."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backward_problems import Backward
from emulated_backward import attention_backward
from gradient_paths import QKV, GradientPath
from probe_options import LEADING, LENGTHS, PAIRS
from problems import Arrays, Case

Array = np.ndarray[Any, Any]

# A call takes the next one, so that a repeated call meets another.
SCHEDULES = (3, 0, 4)


@dataclass
class Given:
    """A test's array where a drawn one usually stands."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def numpy(self) -> Array:
        return self.array


def emulated_path(
    kernel: str, folder: Path | None = None, strict: bool = True, arch: int = 90
) -> GradientPath:
    schedules = itertools.cycle(SCHEDULES)

    def gradients(
        do: Array,
        q: Array,
        k: Array,
        v: Array,
        dlse: Array | None = None,
        wrt: tuple[str, ...] = QKV,
        **options: Any,
    ) -> dict[str, Array]:
        lengths = {name: options.pop(name, None) for name in LENGTHS}
        small = {name: Given(options.pop(name)) for name in (*PAIRS, *LEADING) if name in options}
        case = Case(
            batch=(),
            heads=None,
            kv_heads=None,
            m=q.shape[-2],
            n=k.shape[-2],
            d=q.shape[-1],
            p=v.shape[-1],
            dtypes=tuple(x.dtype.name for x in (q, k, v)),
            **options,
        )
        arrays = Arrays(case, Given(q), Given(k), Given(v), **lengths, **small)
        call = Backward(arrays, Given(do), None if dlse is None else Given(dlse), wrt)
        how = {"schedule": next(schedules), "folder": folder, "strict": strict, "arch": arch}
        return attention_backward(call, kernel, **how).found

    return GradientPath(gradients, kernel)
