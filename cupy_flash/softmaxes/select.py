"""Which kernels compute a softmax: by the length of a row in bytes, never by how many there are."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from cupy_flash.arrays import to_dtype
from cupy_flash.device import Device
from cupy_flash.softmaxes.problem import PACK_BYTES, SoftmaxProblem

# The launches of a row in parts; one that fits in registers takes the launch "row".
STAGES = {"online": ("reduce", "write"), "three_pass": ("maximum", "sum", "write")}
# What a block keeps in shared memory for its reductions (row_packs.cuh).
SCRATCH_BYTES = 256


@dataclass(frozen=True)
class RowTile:
    """How threads divide a row.

    Attributes
    ----------
    lanes : int
        Threads that share a row: a part of a warp, a warp, or the whole block.
    packs : int
        Packs of 16 bytes that a thread holds at a time.
    threads : int
        Threads of a block.
    blocks : int
        Blocks that a multiprocessor should hold at a time; bounds the registers of a thread.
    """

    lanes: int
    packs: int
    threads: int
    blocks: int

    @property
    def capacity(self) -> int:
        """Bytes of a row that fit in the threads' registers."""
        return self.lanes * self.packs * PACK_BYTES


# For rows up to each one's capacity.
_SHORT_ROWS = (
    RowTile(lanes=4, packs=1, threads=128, blocks=8),
    RowTile(lanes=4, packs=2, threads=128, blocks=8),
    RowTile(lanes=4, packs=4, threads=128, blocks=6),
    RowTile(lanes=8, packs=4, threads=128, blocks=6),
    RowTile(lanes=32, packs=4, threads=128, blocks=6),
)
_HALF_ROWS = (
    *_SHORT_ROWS,
    RowTile(lanes=128, packs=4, threads=128, blocks=6),
    RowTile(lanes=256, packs=4, threads=256, blocks=3),
    RowTile(lanes=512, packs=4, threads=512, blocks=2),
)
# At least two blocks, so that one has loads on their way while the other computes. Conversions to
# float32, and exp in float64, take the registers that would hold more packs.
ROW_TILES = {
    "float16": _HALF_ROWS,
    "bfloat16": _HALF_ROWS,
    "float32": (*_HALF_ROWS, RowTile(lanes=256, packs=16, threads=256, blocks=2)),
    "float64": (
        *_SHORT_ROWS,
        RowTile(lanes=128, packs=4, threads=128, blocks=6),
        RowTile(lanes=256, packs=4, threads=256, blocks=3),
        RowTile(lanes=256, packs=8, threads=256, blocks=2),
    ),
}
# For longer ones: of each of their parts, which has several of them. With one tile a part the next
# one's loads wait for the reduction of its sums: float16 ran at 0.80 to 0.91 of a copy's speed
# instead of 0.97, float64 at 0.6 instead of 0.93 (H200).
PART_TILE = RowTile(lanes=128, packs=4, threads=128, blocks=6)
LEAST_TILES = 4
# Enough for the multiprocessors of any GPU to share one row, few enough that a block reads what all
# of them found at little cost beside its own part.
MOST_PARTS = 512


@dataclass(frozen=True)
class SoftmaxVariant:
    """One kernel: everything that is a constant in its text, nothing that a call may change."""

    method: str
    stage: str
    arch: int
    dtype: str
    aligned: bool
    tile: RowTile
    call = "softmax"

    @property
    def file(self) -> str:
        """The source file that holds it."""
        return f"softmax_{self.method}.cuh"

    @property
    def function(self) -> str:
        """Name of its template there."""
        return f"softmax_{self.method}_{self.stage}"

    @property
    def entry(self) -> str:
        """Name of the kernel in the compiled module."""
        return f"cupy_flash_{self.function}"

    @property
    def accumulate(self) -> str:
        """Element type of maximum and sum."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def update(self) -> int:
        """Packs of one online update, of 16 columns."""
        return to_dtype(self.dtype).itemsize

    @property
    def exchange(self) -> int:
        """Packs that a thread passes through shared memory at a time where rows aren't aligned."""
        return 1 if to_dtype(self.dtype).itemsize == 2 else min(2, self.tile.packs)

    @property
    def shared_memory(self) -> int:
        """Bytes of dynamic shared memory of a block, as the kernel lays it out."""
        packs = 0 if self.aligned else self.tile.threads * self.exchange
        return SCRATCH_BYTES + packs * PACK_BYTES

    def __str__(self) -> str:
        """Say the variant in one line, for logs and errors."""
        rows = "aligned rows" if self.aligned else "any rows"
        return (
            f"{self.function} {self.dtype} {self.tile.lanes}x{self.tile.packs} sm_{self.arch} "
            f"({rows})"
        )


@dataclass(frozen=True)
class SoftmaxChoice:
    """The launches of a softmax.

    Attributes
    ----------
    variants : tuple of SoftmaxVariant
        In their order.
    parts, part_columns : int
        Into how many parts a row is divided, and the columns of every part but the last.
    """

    variants: tuple[SoftmaxVariant, ...]
    parts: int
    part_columns: int

    @property
    def reads(self) -> int:
        """How often x is read from memory; the result is written once."""
        return len(self.variants)


def choose_softmax(problem: SoftmaxProblem, device: Device) -> SoftmaxChoice:
    """Choose the kernels of a softmax.

    Row length, dtype and method alone decide about the order of its sums, so a row's bits depend
    on neither the other rows nor the memory layout nor the GPU's size.
    """
    itemsize = to_dtype(problem.dtype).itemsize
    row_bytes = problem.columns * itemsize
    for tile in ROW_TILES[problem.dtype]:
        if row_bytes <= tile.capacity:
            variant = _variant(problem, "row", device, tile)
            return SoftmaxChoice((variant,), 1, problem.columns)
    step = PART_TILE.capacity // itemsize
    # Two parts at least, or nothing was gained by dividing.
    least = min(LEAST_TILES, -(-problem.columns // (2 * step)))
    part_columns = max(least, -(-problem.columns // (MOST_PARTS * step))) * step
    variants = tuple(
        _variant(problem, stage, device, PART_TILE) for stage in STAGES[problem.method]
    )
    return SoftmaxChoice(variants, -(-problem.columns // part_columns), part_columns)


@functools.cache
def _intern(variant: SoftmaxVariant) -> SoftmaxVariant:
    """Return one object per variant, so that later look-ups hit the same key."""
    return variant


def _variant(problem: SoftmaxProblem, stage: str, device: Device, tile: RowTile) -> SoftmaxVariant:
    if problem.dtype == "float64" or not problem.aligned:
        # More registers for exp, or for the elements on their way through shared memory.
        threads = 640 if problem.aligned else 512
        tile = replace(tile, blocks=min(tile.blocks, threads // tile.threads))
    return _intern(
        SoftmaxVariant(
            method=problem.method,
            stage=stage,
            arch=device.arch,
            dtype=problem.dtype,
            aligned=problem.aligned,
            tile=tile,
        )
    )
