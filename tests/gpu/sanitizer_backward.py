"""Small backward problems for compute-sanitizer; sanitizer_problems.py runs them with its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cupy
import numpy as np

import cupy_flash
from backward_problems import Backward, names_of
from cupy_flash.accuracy import accumulation
from layouts import LAYOUTS, Strided, strided
from problems import DTYPES, KERNEL_DTYPES, ONE_DTYPE, Case, result_dtype

PATTERN = 7.0

# Head dims of each bucket, at its edge and below.
DIMS = {
    "naive": ((32, 32), (70, 130)),
    "simt": ((32, 24), (33, 64), (128, 97), (200, 256)),
    "sm80": ((32, 24), (50, 64), (96, 72), (128, 104), (192, 136), (256, 200)),
}
# What makes passes of its own: sums over keys, rows, heads and entries, pairs, statistics of sinks.
KINDS: dict[str, dict[str, Any]] = {
    "shared bias": {"bias": "pairs", "bias_dtype": "float16"},
    "own bias": {"bias": "full", "bias_dtype": "bfloat16", "causal": True},
    "bias of keys": {"bias": "keys of a head", "causal": True, "offset": 3},
    "bias of rows": {"bias": "rows", "mask": "keys of a batch entry"},
    "numbers": {"softcap": 3.0, "alibi": "heads", "sinks": "full"},
    "keys for all": {"squeeze": True, "window": (40, 20)},
    "everything": {
        **{"softcap": 3.0, "window": (40, 20), "mask": "pairs", "bias": "pairs of a head"},
        **{"alibi": "full", "sinks": "heads", "lengths": "both", "poison": True},
    },
}


@dataclass(frozen=True)
class SmallBackward:
    """A case, and what its gradients are asked of."""

    kernel: str
    case: Case
    wrt: tuple[str, ...] | None = None


def backward_problems() -> Iterator[SmallBackward]:
    """Yield problems of grouped heads, and sizes that end inside a tile."""
    for kernel, dims in DIMS.items():
        dtypes = KERNEL_DTYPES[kernel]
        plain = Case((2,), 2, 1, 67, 70, 32, 24, (ONE_DTYPE[kernel],) * 3)
        for number, (d, p) in enumerate(dims):
            dtype = dtypes[number % len(dtypes)]
            case = replace(plain, d=d, p=p, dtypes=(dtype,) * 3, causal=number % 2 == 1)
            yield SmallBackward(kernel, case, ("q", "k", "v"))
            yield SmallBackward(kernel, replace(case, m=130, n=141), ("v", "scale"))
        for number, options in enumerate(KINDS.values()):
            dtype = dtypes[number % len(dtypes)]
            yield SmallBackward(kernel, replace(plain, dtypes=(dtype,) * 3, **options))
        for first, second in itertools.pairwise(LAYOUTS):
            layouts = first, second, first
            yield SmallBackward(kernel, replace(plain, d=33, p=40, layouts=layouts))
        for sizes in ({"m": 1, "n": 129}, {"m": 5, "n": 1}, {"n": 0}, {"d": 0}, {"p": 0}):
            yield SmallBackward(kernel, replace(plain, **sizes))


def run_backward(small: SmallBackward, margin: int) -> float:
    """Compute a problem's gradients; return the worst error / bound.

    Without a margin, in bytes, gradients and the workspace are allocations that end where they end;
    with one, a pattern lies around them that must stay.
    """
    case, kernel = small.case, small.kernel
    call = Backward.of(case, small.wrt or names_of(case))
    arrays = call.arrays
    matrices = {name: x.cupy() for name, x in arrays.inputs().items()}
    options: dict[str, Any] = {
        name: cupy.asarray(x) if isinstance(x, np.ndarray) else x
        for name, x in arrays.options().items()
        if name not in arrays.small()
    }
    options |= {name: x.cupy() for name, x in arrays.small().items()} | {"kernel": kernel}
    o, lse = cupy_flash.attention(*matrices.values(), **options, return_lse=True)
    sources = matrices | options
    targets: dict[str, Strided] = {}
    size = cupy_flash.workspace_size(*matrices.values(), wrt=call.wrt, **options)
    memory = cupy.empty(max(size, 1), np.uint8)
    workspace = memory[:size]
    if margin:
        memory = cupy.full(2 * margin + size, int(PATTERN), np.uint8)
        workspace = memory[margin : margin + size]
        for name in call.wrt:
            shape = () if name == "scale" else sources[name].shape
            dtype = DTYPES[accumulation(result_dtype(case))]
            if name != "scale":
                dtype = sources[name].dtype
            missing = max(2 - len(shape), 0)
            x = strided(
                (1,) * missing + shape, dtype, "contiguous", PATTERN, margin // dtype.itemsize
            )
            targets[name] = replace(x, shape=x.shape[missing:], strides=x.strides[missing:])
    found = cupy_flash.attention_backward(
        *(call.do.cupy(), *matrices.values(), o, lse),
        dlse=None if call.dlse is None else call.dlse.cupy(),
        wrt=call.wrt,
        out=tuple(x.cupy() for x in targets.values()) or None,
        workspace=workspace,
        **options,
    )
    for name, x in targets.items():
        if (x.outside(x.fetch()) != x.outside()).any():
            raise SystemExit(f"bytes beside d{name} were written\n{small}")
    if margin:
        around = np.delete(memory.get(), np.s_[margin : margin + size])
        if (around != int(PATTERN)).any():
            raise SystemExit(f"bytes beside the workspace were written\n{small}")
    for name, x in (arrays.inputs() | {"do": call.do}).items():
        if x.fetch().tobytes() != x.buffer.tobytes():
            raise SystemExit(f"{name} was written\n{small}")
    results = {name: x.get() for name, x in zip(call.wrt, found, strict=True)}
    try:
        return call.check(results, kernel)
    except AssertionError as error:
        raise SystemExit(f"wrong gradient: {error}\n{small}, margin={margin}") from None
