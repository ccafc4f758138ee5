"""Small problems for compute-sanitizer; run_sanitizers.sh runs them under each of its tools.

    python tests/gpu/sanitizer_problems.py              every problem, each against float64
    python tests/gpu/sanitizer_problems.py --planted T  a kernel with the fault that T looks for

Every problem runs twice, for what a tool sees depends on where the arrays lie:

* tight: CuPy's memory pool is off, so every array is an allocation of its own that ends where it
  ends, and what a kernel must not read, padding beyond the lengths and gaps between the elements,
  is never written. So memcheck sees an access beyond an array, and initcheck one beside its
  elements.
* guarded: every array has 4 KiB on both sides, which no tool takes for a fault: around inputs NaN,
  around results a pattern that must be intact after the call.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

import cupy_flash
from cupy_flash import accuracy, reference
from cupy_flash.device import actual
from cupy_flash.products import loosest
from layouts import LAYOUTS, PITCHES, Strided, strided
from problems import DTYPES, KERNEL_DTYPES, ONE_DTYPE
from sanitizer_backward import backward_problems, run_backward
from sanitizer_options import KINDS, hidden_keys, values_of
from sanitizer_softmaxes import run_softmax, softmaxes

Array = np.ndarray[Any, Any]

GUARD = 4096
PATTERN = 7.0

# (d, p) of each bucket of head dims, at its edge and below; naive sums 128 columns at a time. sm80
# copies in units of 16, 4 and 2 bytes.
DIMS = {
    "naive": ((32, 32), (70, 130)),
    "simt": ((32, 32), (33, 64), (128, 97), (200, 256)),
    "sm80": (
        *((32, 24), (25, 32), (64, 40), (50, 64), (96, 72), (66, 96)),
        *((128, 104), (97, 128), (192, 136), (130, 192), (256, 200), (193, 256)),
    ),
    "sm90": ((64, 40), (50, 64), (128, 104), (97, 128)),
}
SIXTEEN_BITS = KERNEL_DTYPES["sm80"]
# With the pitches, rows of 33 columns of 16 bits begin at units of 16 or 4 bytes, and end in one.
IN_EVERY_LAYOUT = {
    "naive": (("float32", 33, 40),),
    "simt": (("float32", 33, 40),),
    "sm80": (("float16", 33, 41), ("bfloat16", 40, 24)),
    "sm90": (("float16", 33, 41), ("bfloat16", 40, 24)),
}
UNITS = {("sm80", 16), ("sm80", 4), ("sm80", 2)}

# Each has the fault that one tool looks for, in 64 threads.
PLANTED = {
    "memcheck": "y[threadIdx.x + 1] = x[threadIdx.x];",
    "initcheck": "y[threadIdx.x] = x[threadIdx.x];",
    "racecheck": """
        __shared__ float shared[64];
        shared[threadIdx.x] = x[threadIdx.x];
        y[threadIdx.x] = shared[63 - threadIdx.x];
    """,
    "synccheck": """
        y[threadIdx.x] = x[threadIdx.x];
        if (threadIdx.x % 2 == 1) __syncwarp(0x55555555u);  // of lanes that the mask leaves out
    """,
}


@dataclass(frozen=True)
class Small:
    """One problem: grouped heads, and sizes that end inside a tile."""

    kernel: str
    dtype: str
    d: int
    p: int
    m: int = 67
    n: int = 70
    causal: bool = False
    lengths: tuple[tuple[int, int], tuple[int, int]] | None = None
    layout: str = "contiguous"
    options: str = "none"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes (entries, heads, rows, columns) of the inputs and the results."""
        return {
            "q": (2, 2, self.m, self.d),
            "k": (2, 1, self.n, self.d),
            "v": (2, 1, self.n, self.p),
            "out": (2, 2, self.m, self.p),
            "lse": (2, 2, self.m),
        }

    def read(self) -> dict[str, tuple[slice, slice]]:
        """Return which rows of each entry of an input may be read at all."""
        rows, keys = self.lengths or ((self.m, self.m), (self.n, self.n))
        first = 25 if self.options == "window" else 0
        of_keys = slice(first, keys[0]), slice(first, keys[1])
        return {"q": (slice(rows[0]), slice(rows[1])), "k": of_keys, "v": of_keys}


def kinds_of(kernel: str) -> list[str]:
    """Return the options that a kernel takes: sm90 no mask and no bias."""
    arrays = {"mask", "bias"} if kernel == "sm90" else set()
    return [name for name, (_, given) in KINDS.items() if not arrays & {*given}]


def problems(*, hopper: bool) -> Iterator[Small]:
    for kernel, dims in DIMS.items():
        if kernel == "sm90" and not hopper:
            continue
        dtypes = KERNEL_DTYPES.get(kernel, SIXTEEN_BITS)
        kinds = kinds_of(kernel)
        both = itertools.product(dtypes, dims)
        for number, (dtype, (d, p)) in enumerate(both):
            causal = number % 2 == 1
            lengths = ((67, 3), (0, 41)) if number % 3 == 0 else None
            yield Small(kernel, dtype, d, p, causal=causal, lengths=lengths)
        layouts = (*LAYOUTS, *PITCHES)
        for layout, (dtype, d, p) in itertools.product(layouts, IN_EVERY_LAYOUT[kernel]):
            yield Small(kernel, dtype, d, p, causal=True, layout=layout)
        for number, options in enumerate(kinds):
            d, p = dims[number % len(dims)]
            dtype = dtypes[number % len(dtypes)]
            lengths = ((67, 3), (0, 41)) if options == "everything" else None
            yield Small(kernel, dtype, d, p, options=options)
            yield Small(kernel, dtype, d, p, m=1, options=options)
            yield Small(kernel, dtype, d, p, m=130, n=141, lengths=lengths, options=options)
        in_layouts = [name for name in ("mask of pairs", "everything") if name in kinds]
        for layout, options in itertools.product(layouts, in_layouts):
            dtype, d, p = IN_EVERY_LAYOUT[kernel][0]
            yield Small(kernel, dtype, d, p, layout=layout, options=options)
        yield Small(kernel, "float16", 64, 64, m=1, n=129, lengths=((1, 0), (65, 129)))
        yield Small(kernel, "float16", 64, 64, m=5, n=1)
        yield Small(kernel, "float16", 64, 64, m=140, n=200, causal=True)
        for empty in ({"d": 0}, {"p": 0}, {"n": 0}):
            yield Small(kernel, ONE_DTYPE.get(kernel, "float16"), **{"d": 8, "p": 8, **empty})


def placed(
    shape: tuple[int, ...], dtype: np.dtype[Any], layout: str, fill: float, guarded: bool
) -> Strided:
    return strided(shape, dtype, layout, fill, margin=GUARD // dtype.itemsize if guarded else 0)


def drawn(small: Small, guarded: bool) -> dict[str, Strided]:
    """Draw the inputs; rows that aren't read, and keys that a mask or bias hides, are NaN."""
    rng = np.random.default_rng(0)
    inputs = {}
    hides = any("n" in letters for letters, _ in KINDS[small.options][1].values())
    for name, read in small.read().items():
        shape = small.shapes()[name]
        x = placed(shape, DTYPES[small.dtype], small.layout, np.nan, guarded)
        values = np.full(shape, np.nan, np.float32)
        for entry, rows in enumerate(read):
            part = values[entry, :, rows]
            part[...] = rng.standard_normal(part.shape, np.float32)
        if name != "q" and hides and small.options != "bias in integers":
            values[:, :, hidden_keys(small.n)] = np.nan
        x.numpy()[...] = values.astype(DTYPES[small.dtype])
        inputs[name] = x
    return inputs


def drawn_options(small: Small, guarded: bool) -> dict[str, Strided]:
    """Draw the arrays of the options and the lengths."""
    arrays = {}
    if small.lengths is not None:
        for name, counts, kind in zip(("q", "k"), small.lengths, (np.int32, np.int64), strict=True):
            x = placed((2,), np.dtype(kind), "contiguous", -1, guarded)
            x.numpy()[...] = counts
            arrays[f"{name}_lengths"] = x
    for name, values in values_of(small.options, small.m, small.n).items():
        layout = small.layout if values.ndim >= 2 else "contiguous"
        fill = 99 if values.dtype.kind == "i" else np.nan
        x = placed(values.shape, values.dtype, layout, fill, guarded)
        x.numpy()[...] = values
        arrays[name] = x
    return arrays


def elements_alone(x: Strided, read: tuple[slice, slice] | None = None) -> Any:
    """Upload the elements into a new allocation, whose other bytes are never written.

    Of the inputs only the rows that may be read.
    """
    dtype = x.buffer.dtype
    memory = cupy.empty(x.buffer.shape, dtype)
    steps = tuple(step * dtype.itemsize for step in x.strides)
    view = cupy.ndarray(x.shape, dtype, memory.data + x.start * dtype.itemsize, steps)
    bits = view.view(f"u{dtype.itemsize}")
    values = cupy.asarray(np.ascontiguousarray(x.numpy()).view(bits.dtype))
    if read is None:
        bits[...] = values
    for entry, rows in enumerate(read or ()):
        bits[entry, :, rows] = values[entry, :, rows]
    return view


def run(small: Small, guarded: bool) -> tuple[float, int]:
    """Compute a problem; return the worst error / bound and the kernel's unit of copies."""
    inputs = drawn(small, guarded)
    shapes, dtype = small.shapes(), DTYPES[small.dtype]
    options: dict[str, Any] = {"causal": small.causal} | KINDS[small.options][0]
    given = drawn_options(small, guarded)
    results: dict[str, Strided] = {}
    if guarded:
        # Elements of a result may not share memory.
        layout = "contiguous" if small.layout == "broadcast" else small.layout
        results["out"] = placed(shapes["out"], dtype, layout, PATTERN, guarded)
        accumulate = np.dtype(accuracy.accumulation(small.dtype))
        results["lse"] = placed(shapes["lse"], accumulate, "contiguous", PATTERN, guarded)
        arrays = [x.cupy() for x in inputs.values()]
        on_device = options | {name: x.cupy() for name, x in given.items()}
    else:
        arrays = [elements_alone(x, small.read()[name]) for name, x in inputs.items()]
        on_device = options | {name: elements_alone(x) for name, x in given.items()}
    targets = tuple(x.cupy() for x in results.values()) or None
    variant = cupy_flash.explain(*arrays, **on_device, kernel=small.kernel).variant
    out, lse = cupy_flash.attention(
        *arrays, **on_device, return_lse=True, out=targets, kernel=small.kernel
    )
    check_surroundings(small, inputs | given if guarded else {}, results)
    q, k, v = (x.numpy() for x in inputs.values())
    arrays_of_options = {n: x.numpy() for n, x in given.items()}
    products = loosest(small.kernel, small.dtype)
    exact = reference.attention(q, k, v, **options, **arrays_of_options, products=products)
    scale = reference.default_scale(small.d)
    bound = accuracy.out_bound(exact, small.dtype, q, k, v, scale, small.kernel)
    lse_bound = accuracy.lse_bound(exact, small.dtype, q, k, scale)
    worst = 0.0
    for got, want, allowed in ((out, exact.out, bound), (lse, exact.lse, lse_bound)):
        compared = accuracy.compare(got.get(), want, allowed)
        if not compared.ok:
            raise SystemExit(f"wrong result: {compared}\n{small}, guarded={guarded}")
        worst = max(worst, compared.ratio)
    return worst, variant.unit


def check_surroundings(
    small: Small, inputs: dict[str, Strided], results: dict[str, Strided]
) -> None:
    for name, x in inputs.items():
        if x.fetch().tobytes() != x.buffer.tobytes():
            raise SystemExit(f"{name} was written\n{small}")
    for name, x in results.items():
        if (x.outside(x.fetch()) != x.outside()).any():
            raise SystemExit(f"bytes beside {name} were written\n{small}")


def planted(tool: str) -> None:
    code = f'extern "C" __global__ void fault(const float* x, float* y) {{ {PLANTED[tool]} }}'
    x = cupy.empty(64, np.float32) if tool == "initcheck" else cupy.asarray(np.ones(64, np.float32))
    y = cupy.empty(64, np.float32)
    cupy.RawKernel(code, "fault")((1,), (64,), (x, y))
    cupy.cuda.Device().synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planted", choices=PLANTED, help="run a faulty kernel instead")
    tool = parser.parse_args().planted
    cupy.cuda.set_allocator(None)
    if tool is not None:
        planted(tool)
        return
    worst = 0.0
    counts: Counter[str] = Counter()
    units = set()
    for small in problems(hopper=actual(0).warpgroups):
        for guarded in (False, True):
            ratio, unit = run(small, guarded)
            worst = max(worst, ratio)
            units.add((small.kernel, unit))
        counts[small.kernel] += 1
    for case in softmaxes():
        worst = max(worst, *(run_softmax(case, margin) for margin in (0, GUARD)))
        counts["softmax"] += 1
    for backward in backward_problems():
        worst = max(worst, *(run_backward(backward, margin) for margin in (0, GUARD)))
        counts["backward"] += 1
    if missing := UNITS - units:
        raise SystemExit(f"no problem took the units of {sorted(missing)}")
    listing = ", ".join(f"{kernel} {count}" for kernel, count in counts.items())
    print(
        f"{counts.total()} problems ({listing}), each tight and guarded, "
        f"worst error / bound {worst:.3f}"
    )


if __name__ == "__main__":
    main()
