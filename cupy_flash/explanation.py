"""`explain`: which kernel a call gets, why, what memory it needs and what accuracy it has."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy_flash import device as devices
from cupy_flash.accuracy import ROUNDS_P
from cupy_flash.arrays import ArrayInfo, describe, planned, to_dtype
from cupy_flash.axes import Operand
from cupy_flash.options import Options, check_options
from cupy_flash.problem import SMALL_ARRAYS, Problem, make_problem
from cupy_flash.products import FMA, THREE_BFLOAT16, Products
from cupy_flash.select import choose
from cupy_flash.variant import Variant


@dataclass(frozen=True)
class Explanation:
    """What a call would do.

    Attributes
    ----------
    kernel : str
        The family, or "blocked" for NumPy arrays.
    variant : Variant or None
        The constants of the kernel; None for NumPy arrays.
    reasons : tuple of str
        Why this family, and why not the faster ones.
    workspace : int
        Bytes allocated besides the results.
    accuracy : str
        In which precision products and sums run, and the error bound's module.
    notes : tuple of str
        What to know about speed.
    problem : Problem
        Shapes, strides and options as understood.
    """

    kernel: str
    variant: Variant | None
    reasons: tuple[str, ...]
    workspace: int
    accuracy: str
    notes: tuple[str, ...]
    problem: Problem

    def __str__(self) -> str:
        """Return the explanation as text."""
        problem = self.problem
        heads = f"{problem.heads} heads" if problem.heads > 1 else "1 head"
        if problem.kv_heads != problem.heads:
            heads += f" on {problem.kv_heads} key heads"
        lines = [
            f"attention: batch {problem.batch}, {heads}, m={problem.m} n={problem.n} "
            f"d={problem.d} p={problem.p}, {problem.dtype}",
            f"kernel:    {self.variant or 'blocked NumPy path'}",
        ]
        if self.variant is not None:
            tile = self.variant.tile
            lines.append(
                f"tile:      {tile.block_m} rows x {tile.block_n} keys, {tile.threads} threads, "
                f"{self.variant.shared_memory:,} bytes of shared memory"
            )
        options = "; ".join(_options(problem))
        lines += [f"options:   {options}"] * bool(options)
        lines += [f"why:       {reason}" for reason in self.reasons]
        lines.append(f"workspace: {self.workspace:,} bytes")
        lines.append(f"accuracy:  {self.accuracy}")
        lines += [f"note:      {note}" for note in self.notes]
        return "\n".join(lines)


def explain(q: Any, k: Any, v: Any, /, *, arch: int | None = None, **options: Any) -> Explanation:
    """Say which kernel computes a call, and why, without computing it.

    Works without a GPU and without CuPy.

    Parameters
    ----------
    q, k, v : array or (shape, dtype)
        The arrays of the call, or pairs such as ``((2, 8, 1024, 64), "float32")`` that stand for
        contiguous CuPy arrays.
    arch : int, optional
        Compute capability times ten of the GPU to explain for: 75, 80, 86, 89, 90, 100, 120.
        Default: the arrays' device; for pairs the current device, without a GPU 90.
    **options
        As for `attention`, except `out`; such pairs stand for arrays here too.

    Returns
    -------
    Explanation
        Printable; its fields are for programs.

    Raises
    ------
    TypeError, ValueError
        As `attention` with the same arguments.

    Examples
    --------
    >>> import cupy_flash as cf
    >>> x = ((8, 4096, 512), "float32")
    >>> cf.explain(x, x, x, arch=90).kernel
    'naive'
    """
    matrices, checked = stand_ins(q, k, v, options)
    problem = make_problem(*matrices, checked)
    if problem.module == "numpy":
        return Explanation(
            kernel="blocked",
            variant=None,
            reasons=("NumPy arrays take the blocked NumPy path",),
            workspace=0,
            accuracy=_accuracy(problem, "blocked"),
            notes=(),
            problem=problem,
        )
    choice = choose(problem, _device(problem, arch))
    return Explanation(
        kernel=choice.variant.family,
        variant=choice.variant,
        reasons=choice.reasons,
        workspace=0,
        accuracy=_accuracy(problem, choice.variant.family, choice.variant.products),
        notes=_notes(choice.variant),
        problem=problem,
    )


def stand_ins(
    q: Any, k: Any, v: Any, options: Mapping[str, Any], call: str = "explain"
) -> tuple[tuple[ArrayInfo, ArrayInfo, ArrayInfo], Options]:
    """Check the options of a call whose arrays may be pairs that stand for them."""
    small = {
        name: _info(name, options[name], call)
        for name in SMALL_ARRAYS
        if options.get(name) is not None
    }
    matrices = _info("q", q, call), _info("k", k, call), _info("v", v, call)
    return matrices, check_options(**{**options, **small})


def _info(name: str, x: Any, call: str) -> ArrayInfo:
    if not isinstance(x, tuple):
        return describe(name, x)
    try:
        shape, dtype = x
        sizes = tuple(operator.index(size) for size in shape)
        element = to_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    except (TypeError, ValueError):
        sizes, dtype = (-1,), None
    if dtype is None or any(size < 0 for size in sizes):
        raise TypeError(
            f"{call}: {name} is {x!r}; allowed are an array and a pair (shape, dtype) such as "
            "((2, 8, 1024, 64), 'float32')"
        )
    return planned(sizes, element)


def _options(problem: Problem) -> Iterator[str]:
    """Say the options that change what is computed."""
    if problem.left is not None or problem.right is not None:
        first = None if problem.left is None else _place(problem, -problem.left)
        last = None if problem.right is None else _place(problem, problem.right)
        if first is None:
            yield f"row i sees keys up to {last}"
        else:
            yield f"row i sees keys from {first} {'on' if last is None else f'to {last}'}"
    if problem.softcap is not None:
        yield f"softcap {problem.softcap:g}"
    for name in SMALL_ARRAYS:
        operand: Operand | None = getattr(problem, name)
        if operand is not None:
            kind = name if name == "mask" else f"{name} in {operand.dtype}"
            shared = name in ("mask", "bias") and operand.row == 0 and problem.m > 1
            yield f"{kind}, the same for all rows" if shared else kind


def _place(problem: Problem, shift: int) -> str:
    """Say which key lies `shift` beyond the one that row i stands at."""
    place = "i"
    if problem.offset is None:
        place = "i + k_length - q_length"
    else:
        shift += problem.offset
    return f"{place} {'-' if shift < 0 else '+'} {abs(shift)}" if shift else place


def _device(problem: Problem, arch: int | None) -> devices.Device:
    if arch is not None:
        return devices.assumed(arch)
    if devices.gpu_is_available():
        return devices.actual(problem.device or 0)
    return devices.assumed(90)


# Where unfused CuPy (cuBLAS) is faster today: (accumulation type, largest bucket) -> TFLOP/s
# of ours and of unfused CuPy. H200, n = 4096, not causal: benchmarks/results/time_attention.json.
SLOWER_THAN_UNFUSED = {
    ("float32", 256): (26.2, 35.4),
    ("float64", 256): (9.6, 37.6),
}
# The same by fused multiply-adds, where that H200 has its tensor cores multiply since.
SLOWER_BY_FMA = {("float64", 64): (13.5, 20.9), ("float64", 128): (13.9, 28.4)}


def _notes(variant: Variant) -> tuple[str, ...]:
    memory = "it keeps m n scores per head in memory, this kernel none"
    if variant.family == "naive":
        return (
            "the naive kernel is for correctness: 0.4 TFLOP/s at d = 256 on an H200, where unfused "
            f"CuPy (matmul, softmax, matmul) reaches 34 to 95; but {memory}",
        )
    key = variant.accumulate, max(variant.head_dim, variant.head_dim_v)
    on_tensor_cores = variant.tile.matrix or variant.tile.groups
    units: tuple[str, ...] = ()
    if variant.accumulate == "float64" and on_tensor_cores:
        units = ("multiplies on the tensor cores",)
    elif variant.o in ("float32", "float64"):
        units = (f"multiplies {variant.products.how}",)
    slower = SLOWER_THAN_UNFUSED | ({} if on_tensor_cores else SLOWER_BY_FMA)
    if key not in slower:
        return units
    ours, unfused = slower[key]
    return (
        *units,
        f"slower than unfused CuPy today: {ours} against {unfused} TFLOP/s on an H200 at "
        f"n = 4096, but {memory}",
    )


def _accuracy(problem: Problem, family: str, products: Products = FMA) -> str:
    text = f"products and sums in {problem.accumulate}, results rounded once to {problem.dtype}"
    if family in ROUNDS_P:
        text += f", and P to {problem.dtype} before P v"
    if products == THREE_BFLOAT16:
        text += "; by precision='tf32' factors of products have 16 bits, where TF32 has 11"
    elif problem.precision == "tf32":
        text += "; precision='tf32' permits less, and changes nothing here"
    return text
