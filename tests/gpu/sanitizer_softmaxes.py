"""Small softmaxes for compute-sanitizer; sanitizer_problems.py runs them with its own problems."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import cupy
import numpy as np

import cupy_flash
from layouts import LAYOUTS, PITCHES, strided
from problems import DTYPES
from softmaxes import METHODS, SoftmaxCase, check_softmax, drawn

# A warp's rows, a block's, and rows that are split; they end inside a pack of 16 bytes and on one.
LENGTHS = (1, 33, 1000, 5001, 20_000)
PATTERN = 7.0


def softmaxes() -> Iterator[SoftmaxCase]:
    for dtype, n in itertools.product(DTYPES, LENGTHS):
        for method in METHODS:
            yield SoftmaxCase((3, n), -1, dtype, method)
    for layout, method in itertools.product((*LAYOUTS, *PITCHES), METHODS):
        yield SoftmaxCase((2, 5, 67), 1, "float32", method, layout)
        yield SoftmaxCase((2, 2, 301), -1, "float16", method, layout)
    for method in METHODS:
        yield SoftmaxCase((0, 8), -1, "float32", method)
        yield SoftmaxCase((3, 0), -1, "float32", method)


def run_softmax(case: SoftmaxCase, margin: int) -> float:
    """Compute a softmax; return the worst error / bound.

    Without a margin, in bytes, x and the result are allocations that end where the arrays end, if
    the layout lets them; with one, NaN lies around x, and a pattern around the result that must
    stay.
    """
    dtype = DTYPES[case.dtype]
    around = margin // dtype.itemsize
    x = strided(case.shape, dtype, case.layout, np.nan, margin=around)
    rows = np.moveaxis(x.numpy(), case.axis, -1)
    if rows.size:
        rows[...] = drawn(rows.shape, case.dtype, case.values, case.seed)
    target = None
    if margin:
        # Elements of a result may not share memory.
        layout = "contiguous" if case.layout == "broadcast" else case.layout
        target = strided(case.shape, dtype, layout, PATTERN, margin=around)
    out = cupy_flash.softmax(
        x.cupy(), case.axis, method=case.method, out=None if target is None else target.cupy()
    )
    if x.fetch().tobytes() != x.buffer.tobytes():
        raise SystemExit(f"x was written\n{case}")
    if target is not None and (target.outside(target.fetch()) != target.outside()).any():
        raise SystemExit(f"bytes beside the result were written\n{case}")
    try:
        return check_softmax(x.numpy(), cupy.asnumpy(out), case.axis) if rows.size else 0.0
    except AssertionError as error:
        raise SystemExit(f"wrong result: {error}\n{case}, margin={margin}") from None
