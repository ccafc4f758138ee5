"""The exact probes on the kernels' own source, emulated."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import emulated_attention
from probe_options import HIDING, LEADING, LENGTHS, PAIRS, hiding
from probes import KERNEL_PROBES, Attend, check_visible_keys
from problems import KERNELS_AND_DTYPES, ONE_DTYPE, Arrays, Case

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("cxx")]

# Around the edges of a warp and of a tile of 64; fewer for arrays, whose places are a matter of
# strides.
SIZES = (*range(13), 31, 32, 33, 63, 64, 65, 66)
FEW_SIZES = (0, 1, 2, 5, 31, 32, 33, 64, 65)
# Around the edges of a kernel's larger tiles.
LARGER_SIZES = {"sm80": (127, 128, 129)}
# What every dtype runs here; the others build a kernel for each option that they look at.
PROBES_OF_EVERY_DTYPE = ("P4 permutations", "P5 ones", "P6 linearity", "P12 integers")
# A call takes the next one, so that a repeated call meets another.
SCHEDULES = (3, 0, 4)
# Kernel, dtype, architecture. simt multiplies float32 by FMA on one and by warpgroups, whose
# emulation takes four times as long, on the other.
PATHS = {
    **{kernel: (kernel, dtype, 86) for kernel, dtype in ONE_DTYPE.items()},
    "simt by warpgroups": ("simt", "float32", 90),
}


def hidden(every: int) -> list[tuple[str, str]]:
    """Return paths with every so many ways to hide keys; warpgroups take a third of them."""
    steps = {path: every * (3 if path == "simt by warpgroups" else 1) for path in PATHS}
    return [(path, mask) for path, step in steps.items() for mask in [*HIDING][step // 2 :: step]]


@dataclass
class Given:
    """A probe's array where a drawn one usually stands."""

    array: np.ndarray[Any, Any]

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array

    @property
    def buffer(self) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(self.array)


def emulated(kernel: str, arch: int = 90) -> Attend:
    schedules = itertools.cycle(SCHEDULES)

    def attend(q: Any, k: Any, v: Any, **options: Any) -> Any:
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
        result = emulated_attention.attention(arrays, kernel, schedule=next(schedules), arch=arch)
        return result.out, result.lse

    return attend


@pytest.mark.parametrize(("path", "mask"), hidden(every=1))
def test_visible_keys_of_every_small_size(path: str, mask: str) -> None:
    kernel, dtype, arch = PATHS[path]
    attend = emulated(kernel, arch)
    arrays = "mask" in mask or "bias" in mask or mask == "everything"
    sizes = FEW_SIZES if arrays or path not in ONE_DTYPE else SIZES
    sizes += LARGER_SIZES.get(kernel, ())
    for m, n in itertools.product(sizes, sizes):
        check_visible_keys(attend, m, n, dtype, width=32, **hiding(mask, m, n))


@pytest.mark.parametrize(("path", "mask"), hidden(every=2))
def test_visible_keys_with_lengths(path: str, mask: str) -> None:
    kernel, dtype, arch = PATHS[path]
    attend = emulated(kernel, arch)
    for m, n, step in ((5, 9, 1), (66, 67, 13)):
        rows = np.arange(0, m + 1, step, dtype=np.int32)[:, None]
        keys = np.arange(0, n + 1, step, dtype=np.int32)
        lengths = {"q_lengths": rows, "k_lengths": keys}
        arrays = hiding(mask, m, n, (len(rows), len(keys)))
        check_visible_keys(attend, m, n, dtype, width=32, **lengths, **arrays)


def left_out(kernel: str, probe: str) -> bool:
    """Whether the usual run leaves a probe out: most of the naive kernel's, whose code is plain."""
    return kernel == "naive" and probe not in PROBES_OF_EVERY_DTYPE


@pytest.mark.parametrize(
    ("kernel", "dtype", "probe"),
    [
        pytest.param(kernel, dtype, probe, marks=[pytest.mark.thorough] * left_out(kernel, probe))
        for kernel, dtype in KERNELS_AND_DTYPES
        for probe in KERNEL_PROBES
        if dtype == ONE_DTYPE[kernel] or probe in PROBES_OF_EVERY_DTYPE
    ],
)
def test_probe(kernel: str, dtype: str, probe: str) -> None:
    KERNEL_PROBES[probe](emulated(kernel), dtype, d=20, p=24, family=kernel)
