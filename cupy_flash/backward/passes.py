"""What computes the gradients of a call: its launches in their order, and their scratch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cupy_flash.axes import Operand, contiguous_strides
from cupy_flash.backward.problem import BackwardProblem, Gradient
from cupy_flash.backward.select import choose_forward, keys_in_one_pass, with_tile
from cupy_flash.backward.variant import BackwardVariant, StatisticsVariant, SumVariant
from cupy_flash.device import Device
from cupy_flash.variant import ITEMSIZE, WARP, Variant

# Mirrors kStatisticsRows.
STATISTICS_ROWS = 128
# Terms of a sum that a block shares.
TEAM_TERMS = 64
# Keys that a block takes of a bias whose gradient has a pass of its own, where it sums in memory:
# enough to make up for its tile of Q and dO, and few enough that there are blocks for every
# multiprocessor. Those of sm80 take a tile.
CHUNK_KEYS = 512
# Scratch arrays begin at its multiples.
ALIGNMENT = 256


@dataclass(frozen=True)
class Own:
    """Which entries have gradients of their own: extents of batch axes and heads, 1 if summed."""

    batch: tuple[int, ...]
    heads: int


@dataclass(frozen=True)
class Scratch:
    """An array that only the launches see.

    Attributes
    ----------
    operand : Operand
        Its element type and strides in the problem's axes.
    size : int
        Its bytes.
    """

    operand: Operand
    size: int


@dataclass(frozen=True)
class GradientPass:
    """A launch of the rows' or the keys' kernel.

    Attributes
    ----------
    variant : BackwardVariant
    own : Own
        Whose gradients they are.
    results : mapping
        Name of the struct's operand -> that of the gradient or scratch that it is.
    chunk_keys : int or None
        Keys that a block takes; None for all.
    """

    variant: BackwardVariant
    own: Own
    results: Mapping[str, str]
    chunk_keys: int | None = None


@dataclass(frozen=True)
class SumPass:
    """A launch that sums scratch over the axes that a gradient doesn't have.

    Attributes
    ----------
    variant : SumVariant
    source : str
        Name of the scratch array.
    operand : Operand
        Its strides.
    extents : tuple of int
        Its axes (batch..., head, row, column).
    gradient : Gradient
    """

    variant: SumVariant
    source: str
    operand: Operand
    extents: tuple[int, ...]
    gradient: Gradient


@dataclass(frozen=True)
class Passes:
    """Everything that a call launches.

    Attributes
    ----------
    forward : Variant
        What the kernels have in common.
    statistics : StatisticsVariant
        Of the first launch.
    gradients : tuple of GradientPass
    sums : tuple of SumPass
        Of the last launches.
    scratch : mapping
        The arrays between them, by name.
    """

    forward: Variant
    statistics: StatisticsVariant
    gradients: tuple[GradientPass, ...]
    sums: tuple[SumPass, ...]
    scratch: Mapping[str, Scratch]

    @property
    def workspace(self) -> int:
        """Bytes of all scratch, each array at a multiple of ``ALIGNMENT``."""
        return sum(-(-s.size // ALIGNMENT) * ALIGNMENT for s in self.scratch.values())


def make_passes(problem: BackwardProblem, device: Device) -> Passes:
    """Choose the launches of a call."""
    return _Builder(problem, device).build()


class _Builder:
    def __init__(self, problem: BackwardProblem, device: Device) -> None:
        self.problem = problem
        self.call = problem.forward
        self.device = device
        self.forward = choose_forward(problem, device)
        # Arrays without elements have no gradient to compute.
        self.wanted = {g.name: g for g in problem.gradients if 0 not in g.shape}
        self.everything = Own(self.call.batch, self.call.heads)
        self.scratch: dict[str, Scratch] = {}
        self.passes: list[GradientPass] = []
        self.sums: list[SumPass] = []

    def build(self) -> Passes:
        self._scratch("statistics", self._padded_rows(), numbers=2)
        self._rows_and_bias()
        self._keys()
        if "sinks" in self.wanted:
            self._sum("sinks", "sink_sums", "row")
        return Passes(
            forward=self.forward,
            statistics=statistics_variant(self.problem, self.forward),
            gradients=tuple(self.passes),
            sums=tuple(self.sums),
            scratch=self.scratch,
        )

    def _rows_and_bias(self) -> None:
        """Plan the passes of rows: dq, what each row adds to numbers, and pairs of a bias."""
        q, bias = self.wanted.get("q"), self.wanted.get("bias")
        results, sums = {}, {}
        for name, source in (("alibi_slopes", "slope_sums"), ("scale", "scale_sums")):
            if name in self.wanted:
                self._sum(name, source, "row")
                results[source], sums[source] = source, True
        if bias and bias.columns == 1 and not self._is_of_pairs(bias):
            self._sum("bias", "bias_sums", "row")
            results["bias_sums"], sums["bias_sums"] = "bias_sums", True
        own = _own(q) if q else self.everything
        if q:
            results["dq"] = "q"
        pairs = None
        if bias and self._is_of_pairs(bias):
            # A pair that only one entry has is written by the pass that computes dq.
            if own == _own(bias) == self.everything:
                results["dbias"], pairs = "bias", bias.operand.dtype
            else:
                self._bias_pass(bias)
        if results:
            self._add(False, own, results, first=q is not None, pairs=pairs, **sums)

    def _is_of_pairs(self, bias: Gradient) -> bool:
        return bias.rows == self.call.m and bias.columns == self.call.n

    def _bias_pass(self, bias: Gradient) -> None:
        """Plan the pass that sums a bias' pairs over the entries that share it."""
        target, own, pairs = "bias", _own(bias), bias.operand.dtype
        accumulate = self.call.accumulate
        # Sums run in the accumulation type; those of sm80 stay in registers.
        in_memory = self.forward.family != "sm80" and own != self.everything
        if in_memory and pairs != accumulate:
            target, pairs = "bias_pairs", accumulate
            shape = (*bias.batch, bias.heads, bias.rows, bias.columns)
            operand = _dense(shape, accumulate)
            self._store("bias_pairs", operand, math.prod(shape))
            variant = SumVariant(self.device.arch, accumulate, bias.operand.dtype, team=False)
            self.sums.append(SumPass(variant, "bias_pairs", operand, shape, bias))
        self._add(False, own, {"dbias": target}, pairs=pairs)

    def _keys(self) -> None:
        """Plan the passes of keys: dk, dv, and what each key adds to a bias of keys."""
        k, v, bias = (self.wanted.get(name) for name in ("k", "v", "bias"))
        sums: dict[str, str] = {}
        if bias and bias.rows == 1 and not self._is_of_pairs(bias) and bias.columns != 1:
            self._sum("bias", "key_sums", "column")
            sums = {"bias_sums": "key_sums"}
        if (
            k
            and v
            and _own(k) == _own(v)
            and keys_in_one_pass(self.forward, self.device, sums=bool(sums))
        ):
            results = {"dk": "k", "dv": "v", **sums}
            self._add(True, _own(k), results, first=True, second=True, bias_sums=bool(sums))
            return
        if k or sums:
            results = ({"dk": "k"} if k else {}) | sums
            own = _own(k) if k else self.everything
            self._add(True, own, results, first=k is not None, bias_sums=bool(sums))
        if v:
            self._add(True, _own(v), {"dv": "v"}, second=True)

    def _add(
        self,
        keys: bool,
        own: Own,
        results: Mapping[str, str],
        *,
        first: bool = False,
        second: bool = False,
        pairs: str | None = None,
        **sums: bool,
    ) -> None:
        variant = BackwardVariant(self.forward, keys, first, second, pairs, **sums)
        variant = with_tile(variant, self.device)
        chunk_keys = None
        if pairs and not first:
            chunk_keys = variant.tile.block_n if variant.family == "sm80" else CHUNK_KEYS
        self.passes.append(GradientPass(variant, own, dict(results), chunk_keys))

    def _sum(self, name: str, source: str, axis: str) -> None:
        """Plan scratch of one number for each row or key of each entry, and its sum."""
        gradient, accumulate = self.wanted[name], self.call.accumulate
        extent = self.call.m if axis == "row" else self.call.n
        operand, ends = self._scratch(source, extent), (extent, 1)
        if axis == "column":
            operand, ends = replace(operand, row=0, column=operand.row), (1, extent)
        extents = (*self.call.batch, self.call.heads, *ends)
        terms = self.call.entries * extent // math.prod(gradient.shape)
        variant = SumVariant(
            self.device.arch, accumulate, gradient.operand.dtype, team=terms >= TEAM_TERMS
        )
        self.sums.append(SumPass(variant, source, operand, extents, gradient))

    def _padded_rows(self) -> int:
        return -(-self.call.m // STATISTICS_ROWS) * STATISTICS_ROWS

    def _scratch(self, name: str, extent: int, numbers: int = 1) -> Operand:
        """Add an array of so many numbers for each of `extent` places of each entry."""
        shape = (*self.call.batch, self.call.heads, extent)
        operand = _dense((*shape, 1), self.call.accumulate)
        self._store(name, operand, numbers * math.prod(shape))
        return operand

    def _store(self, name: str, operand: Operand, elements: int) -> None:
        size = elements * ITEMSIZE[self.call.accumulate]
        self.scratch[name] = Scratch(operand, size)


def _own(gradient: Gradient) -> Own:
    return Own(gradient.batch, gradient.heads)


def _dense(shape: tuple[int, ...], dtype: str) -> Operand:
    """Return the strides of an array of these axes (batch..., head, row, column), C-contiguous."""
    strides = contiguous_strides(shape, 1)
    *batch, head, row, column = (
        stride if extent > 1 else 0 for stride, extent in zip(strides, shape, strict=True)
    )
    return Operand(dtype, tuple(batch), head, row, column)


def statistics_variant(problem: BackwardProblem, forward: Variant) -> StatisticsVariant:
    """Return the kernel of the rows' statistics: so many lanes as a row has packs of columns."""
    call = problem.forward
    pack = 16 // ITEMSIZE[call.dtype]
    aligned = call.o.unit == problem.do.unit == 16
    lanes = 1
    while lanes < WARP and lanes * pack < call.p:
        lanes *= 2
    sinks = call.sinks.dtype if call.sinks and "sinks" in problem.wrt else None
    return StatisticsVariant(forward.arch, call.dtype, sinks, lanes, aligned)


def scratch_places(passes: Passes) -> Iterator[tuple[str, int]]:
    """Yield where each scratch array begins in the workspace, in bytes."""
    place = 0
    for name, scratch in passes.scratch.items():
        yield name, place
        place += -(-scratch.size // ALIGNMENT) * ALIGNMENT
