"""Record what the tensor cores make of chosen matrices, to fit the emulator's rounding to.

    python benchmarks/record_primitives.py --npz mma.npz

For each dtype the file holds the fragments that each lane gave to mma.m16n8k16, for TF32 to
mma.m16n8k8: `<dtype>_a` (cases, 32, 4) and `<dtype>_b` (cases, 32, 2) in uint32, pairs of 16 bits
or bits of float32; its accumulators before and after, `<dtype>_c` and `<dtype>_d` (cases, 32, 4) in
float32, and `<dtype>_kind` (cases,), what they probe.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.random import Generator

from cupy_flash.compile import OPTIONS
from cupy_flash.source import ELEMENT_TYPES, flatten

# Of TF32 NumPy has no type: an element is a float32, whose last 13 bits don't count.
DTYPES: dict[str, Any] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
}
FRACTION_BITS = {"float16": 10, "bfloat16": 7, "tf32": 10}
M, N = 16, 8
K = {"float16": 16, "bfloat16": 16, "tf32": 8}
CASES = 600

# Lanes' registers as matrices (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "for mma.m16n8k8"):
# lane, register and element of the register -> row and column.
_lane, _register, _half = np.ogrid[:32, :4, :2]
_of_pairs = (
    np.broadcast_arrays(_lane // 4 + _register % 2 * 8, _lane % 4 * 2 + _register // 2 * 8 + _half),
    np.broadcast_arrays(_lane % 4 * 2 + _register[:, :2] * 8 + _half, _lane // 4),
)
_one = np.zeros((1, 1, 1), int)
_of_single = (
    np.broadcast_arrays(_lane // 4 + _register % 2 * 8, _lane % 4 + _register // 2 * 4, _one)[:2],
    np.broadcast_arrays(_lane % 4 + _register[:, :2] * 4, _lane // 4, _one)[:2],
)
LEFT, RIGHT = (
    {"float16": _of_pairs[i], "bfloat16": _of_pairs[i], "tf32": _of_single[i]} for i in (0, 1)
)
C_ROWS, C_COLUMNS = np.broadcast_arrays(
    _lane[..., 0] // 4 + _register[..., 0] // 2 * 8, _lane[..., 0] % 4 * 2 + _register[..., 0] % 2
)

ELEMENTS = """
#line 1 "elements"
struct Float16 { unsigned short bits; };
struct BFloat16 { unsigned short bits; };
"""
KERNEL = """
#line 1 "mma"
struct Params { const unsigned* a; const unsigned* b; const float* c; float* d; };
extern "C" __global__ void ENTRY(const __grid_constant__ Params p) {
  const int lane = blockIdx.x * 32 + threadIdx.x;
  unsigned a[4];
  float c[4];
  for (int i = 0; i < 4; ++i) a[i] = load_global(p.a + 4 * lane + i);
  for (int i = 0; i < 4; ++i) c[i] = load_global(p.c + 4 * lane + i);
  const unsigned b[2] = {load_global(p.b + 2 * lane), load_global(p.b + 2 * lane + 1)};
  MULTIPLY;
  for (int i = 0; i < 4; ++i) store_global(p.d + 4 * lane + i, c[i]);
}
"""
PARAMS = np.dtype([(name, np.uint64) for name in "abcd"])

Matrices = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def kernel_text(dtype: str) -> tuple[str, str]:
    """Return the text of the kernel that multiplies one case per block, and its name."""
    entry = f"mma_{dtype}"
    if dtype == "tf32":
        text = flatten("ptx/matrix32.cuh")
        multiply = "multiply_accumulate(c, a[0], a[1], a[2], a[3], b[0], b[1])"
    else:
        text = flatten("ptx/matrix.cuh") + ELEMENTS
        multiply = f"multiply_accumulate<{ELEMENT_TYPES[dtype]}>(c, a, b[0], b[1])"
    text = flatten("ptx/memory.cuh") + text
    return text + KERNEL.replace("ENTRY", entry).replace("MULTIPLY", multiply), entry


def powers(rng: Generator, low: int, high: int, shape: tuple[int, ...]) -> Any:
    """Return powers of two with exponents from low to high, both included."""
    return np.ldexp(1.0, rng.integers(low, high + 1, shape))


def signs(rng: Generator, shape: tuple[int, ...]) -> Any:
    return rng.choice([-1.0, 1.0], shape)


def normals(rng: Generator, dtype: str) -> Matrices:
    depth = K[dtype]
    a, b, c = (rng.standard_normal(shape) for shape in ((M, depth), (depth, N), (M, N)))
    return a, b, c


def wide_exponents(rng: Generator, dtype: str) -> Matrices:
    a, b, c = normals(rng, dtype)
    span = 7 if dtype == "float16" else 30
    a *= powers(rng, -span, span, (M, K[dtype]))
    b *= powers(rng, -span, span, (K[dtype], N))
    return a, b, c * powers(rng, -2 * span, 2 * span, (M, N))


def subnormals(rng: Generator, dtype: str) -> Matrices:
    # Of the operands in float16; of the operands, products and sums in bfloat16.
    a, b, c = normals(rng, dtype)
    if dtype == "float16":
        a = a * powers(rng, -24, -14, (M, K[dtype]))
        b = b * np.where(rng.random((K[dtype], N)) < 0.5, powers(rng, -24, -14, (K[dtype], N)), 1)
        return a, b, c * powers(rng, -50, -14, (M, N))
    a = a * powers(rng, -133, -120, (M, K[dtype]))
    b = b * np.where(rng.random((K[dtype], N)) < 0.5, powers(rng, -20, 0, (K[dtype], N)), 1)
    return a, b, c * powers(rng, -149, -120, (M, N))


def subnormal_operand_aligned(rng: Generator, dtype: str) -> Matrices:
    # Whether a subnormal operand aligns as its normalised value or as the smallest exponent.
    least, smallest = (-24, -14) if dtype == "float16" else (-133, -126)
    scale = 1.0 if dtype == "float16" else 2.0**60
    a = np.zeros((M, K[dtype]))
    a[np.arange(M), rng.integers(K[dtype], size=M)] = powers(rng, least, smallest - 1, (M,))
    c = signs(rng, (M, N)) * powers(rng, smallest - 34, smallest - 20, (M, N)) * 1.9999
    return a, np.full((K[dtype], N), scale), c * scale


def cancellation(rng: Generator, dtype: str) -> Matrices:
    a, b, c = normals(rng, dtype)
    order = rng.permutation(K[dtype])
    a[:, order[1]] = -a[:, order[0]]
    b[order[1]] = b[order[0]]
    a[:, order[:2]] *= 2.0 ** rng.integers(0, 11)
    a[:, order[2:]] *= 2.0 ** -rng.integers(0, 11)
    return a, b, c * 2.0 ** -rng.integers(0, 25)


def unlike_c(rng: Generator, dtype: str) -> Matrices:
    # Large or small against the products, or none.
    a, b, c = normals(rng, dtype)
    low, high = ((5, 30), (-30, -10))[rng.integers(2)]
    return a, b, c * powers(rng, low, high, (M, N)) * (rng.random() < 0.7)


def small_terms(rng: Generator, dtype: str) -> Matrices:
    # 1 and a few terms near float32's last place: how many bits below it are kept, and which way
    # they are cut.
    a, b = np.zeros((M, K[dtype])), np.ones((K[dtype], N))
    for row in a:
        order = rng.permutation(K[dtype])
        count = rng.integers(1, K[dtype])
        row[order[1 : 1 + count]] = np.ldexp(1.0, -int(rng.integers(8, 15)))
        row[order[1 : 1 + count]] *= rng.choice([-1.0, 1.0]) if rng.random() < 0.5 else 1.0
        row[order[0]] = rng.choice([-1.0, 1.0]) * np.ldexp(1.0, int(rng.integers(10, 15)))
    c = rng.choice([0.0, 1.0, -1.0, 2.0**14, -(2.0**14)], (M, N))
    return a, b, c + signs(rng, (M, N)) * powers(rng, -16, -8, (M, N))


def c_against_small_terms(rng: Generator, dtype: str) -> Matrices:
    # An accumulator of 1 and products from 2^-22 to 2^-28, of one sign or of both.
    of_one_sign = rng.random((M, 1)) < 0.5
    a = powers(rng, -14, -11, (M, 1)) * np.where(of_one_sign, 1, signs(rng, (M, K[dtype])))
    b = np.tile(powers(rng, -14, -11, (1, N)), (K[dtype], 1))
    a[rng.random((M, K[dtype])) < rng.random((M, 1))] = 0
    return a, b, signs(rng, (M, N)) * (1 + rng.integers(0, 2, (M, N)) * 2.0**-23)


def blocks(rng: Generator, dtype: str) -> Matrices:
    # 2^g - 2^g and terms that survive only where they aren't summed together with one of the two:
    # the result tells which positions are.
    a, b = np.zeros((M, K[dtype])), np.ones((K[dtype], N))
    for row in a:
        first, second, *rest = rng.permutation(K[dtype])
        row[first], row[second] = np.ldexp([1.0, -1.0], int(rng.integers(12, 16)))
        for k in rest[: rng.integers(1, 6)]:
            row[k] = rng.choice([-1.0, 1.0]) * np.ldexp(1.0, -int(rng.integers(8, 15)))
    return a, b, signs(rng, (M, N)) * powers(rng, -14, 3, (M, N)) * rng.integers(0, 2, (M, N))


def c_cancels_a_product(rng: Generator, dtype: str) -> Matrices:
    a, b, _ = blocks(rng, dtype)
    a[a == a.min(axis=1, keepdims=True)] = 0
    return a, b, np.tile(-a.max(axis=1, keepdims=True), (1, N))


def large_significands(rng: Generator, dtype: str) -> Matrices:
    # Products from 2 to 4 have the exponent sum of those from 1 to 2.
    top = 2 - 2.0 ** -FRACTION_BITS[dtype]
    a = rng.choice([1.0, 1.5, top], (M, K[dtype])) * signs(rng, (M, K[dtype]))
    a *= np.where(rng.random((M, K[dtype])) < 0.2, 1, powers(rng, -14, -8, (M, K[dtype])))
    b = rng.choice([1.0, 1.5, top], (K[dtype], N)) * powers(rng, -13, 0, (1, N))
    return a, b, rng.choice([0.0, 1.0, -1.5, 3.5, 2.0**-25], (M, N))


def zeros_beside_small_terms(rng: Generator, dtype: str) -> Matrices:
    # Whether 0 times a large number, or a large number times 0, counts in the largest exponent.
    a = signs(rng, (M, K[dtype])) * powers(rng, -14, -10, (M, K[dtype]))
    b = signs(rng, (K[dtype], N)) * powers(rng, -14, -10, (K[dtype], N))
    first, second = rng.permutation(K[dtype])[:2]
    large = 2.0**15 if dtype == "float16" else 2.0**127
    a[:, first], b[first] = 0, large
    a[:, second], b[second] = -large, 0
    c = signs(rng, (M, N)) * powers(rng, -40, -20, (M, N))
    c[rng.random((M, N)) < 0.3] = -0.0
    return a, b, c


def specials(rng: Generator, dtype: str) -> Matrices:
    # Infinities, NaNs, signed zeros, and sums beyond float32.
    a, b, c = normals(rng, dtype)
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]
    for matrix in (a, b, c):
        chosen = rng.random(matrix.shape) < rng.choice([0.0, 0.02, 0.1])
        matrix[chosen] = rng.choice(values, int(chosen.sum()))
    if rng.random() < 0.5:
        largest = float(ml_dtypes.finfo(DTYPES[dtype]).max)
        a[:, :4], b[:4] = largest, signs(rng, (4, N)) * min(largest, 2.0**10)
        c = signs(rng, (M, N)) * float(np.finfo(np.float32).max)
    if rng.random() < 0.2:
        a, b, c = (np.copysign(0, matrix) for matrix in (a, b, c))
    return a, b, c


def any_bits(rng: Generator, dtype: str) -> Matrices:
    def values(bits: np.ndarray[Any, Any], kind: Any) -> np.ndarray[Any, Any]:
        with np.errstate(invalid="ignore"):
            x = bits.view(kind).astype(np.float64)
        x[~np.isfinite(x)] = 1
        # Two large factors would leave nothing but infinities.
        return np.where(abs(x) > 2.0**40, x / np.maximum(abs(x), 1) ** 2, x)

    bits = np.iinfo(f"u{DTYPES[dtype].itemsize}")
    return (
        values(rng.integers(0, bits.max + 1, (M, K[dtype]), bits.dtype), DTYPES[dtype]),
        values(rng.integers(0, bits.max + 1, (K[dtype], N), bits.dtype), DTYPES[dtype]),
        values(rng.integers(0, 2**32, (M, N), np.uint32), np.float32),
    )


KINDS: dict[str, Callable[[Generator, str], Matrices]] = {
    kind.__name__: kind
    for kind in (
        normals,
        wide_exponents,
        subnormals,
        subnormal_operand_aligned,
        cancellation,
        unlike_c,
        small_terms,
        c_against_small_terms,
        blocks,
        c_cancels_a_product,
        large_significands,
        zeros_beside_small_terms,
        specials,
        any_bits,
    )
}


def registers(matrices: np.ndarray[Any, Any], places: Any) -> np.ndarray[Any, Any]:
    """Return each lane's registers of matrices (cases, rows, columns): places are LEFT or RIGHT."""
    rows, columns = places
    return np.ascontiguousarray(matrices[:, rows, columns]).view(np.uint32)[..., 0]


def cases(dtype: str, count: int = CASES) -> dict[str, np.ndarray[Any, Any]]:
    """Return fragments a, b, c and the kinds, which take turns; the same on every call."""
    rng = np.random.default_rng(0)
    kinds = [list(KINDS)[i % len(KINDS)] for i in range(count)]
    drawn = [KINDS[kind](rng, dtype) for kind in kinds]
    with np.errstate(over="ignore"):
        a, b = (np.stack([case[i] for case in drawn]).astype(DTYPES[dtype]) for i in (0, 1))
        c = np.stack([case[2] for case in drawn]).astype(np.float32)
    return {
        "a": registers(a, LEFT[dtype]),
        "b": registers(b, RIGHT[dtype]),
        "c": np.ascontiguousarray(c[:, C_ROWS, C_COLUMNS]),
        "kind": np.array(kinds),
    }


def products(dtype: str, fragments: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return what the GPU makes of the fragments: the accumulators after one mma."""
    import cupy

    text, entry = kernel_text(dtype)
    arrays = [cupy.asarray(fragments[name], order="C") for name in "abc"]
    arrays.append(cupy.empty_like(arrays[2]))
    params = np.array(tuple(array.data.ptr for array in arrays), PARAMS)[()]
    function = cupy.RawModule(code=text, options=OPTIONS).get_function(entry)
    function((len(arrays[0]),), (32,), (params,))
    return arrays[3].get()  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--npz", type=Path, required=True)
    args = parser.parse_args()
    from gpu_timing import machine

    results: dict[str, Any] = {"machine": np.array(json.dumps(machine()))}
    for dtype in DTYPES:
        fragments = cases(dtype)
        fragments["d"] = products(dtype, fragments)
        results |= {f"{dtype}_{name}": array for name, array in fragments.items()}
        print(f"{dtype}: {len(fragments['d'])} cases")
    np.savez_compressed(args.npz, **results)


if __name__ == "__main__":
    main()
