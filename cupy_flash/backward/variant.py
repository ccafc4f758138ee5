"""What the kernels of the backward pass are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from cupy_flash.variant import ITEMSIZE, MATRIX_PAD, STORED_BYTES, Tile, Variant

# Widest own operands that stay in simt's shared memory; wider ones pass through it.
SIMT_RESIDENT = 64
# What a block of simt keeps in shared memory beside its tiles.
SIMT_WORK_BYTES = 320
# What a block of sm80 keeps in shared memory beside its tiles.
SM80_WORK_BYTES = 320
# Bytes of a row's statistics in float32: lse and delta.
STATISTICS_BYTES = 8
# Bytes of shared memory in which the warps of a block put their parts of a sum.
SUM_BYTES = 128


@dataclass(frozen=True)
class BackwardVariant:
    """A kernel that computes gradients: of its own rows (q), or of its own keys (k and v).

    Attributes
    ----------
    forward : Variant
        Element types, head dims, options. Of its tile `block_m` counts own rows or keys, `block_n`
        the keys or rows that pass by.
    keys : bool
        Whether the gradients are those of keys.
    first, second : bool
        Whether it writes dq, or of keys dk; and dv.
    pairs : str or None
        Element type that it writes a gradient for each pair of row and key in, that of the bias.
    bias_sums, slope_sums, scale_sums : bool
        Whether it leaves the share that each row, or key, has in the gradients of a bias that
        broadcasts, of slopes, of the scale.
    """

    forward: Variant
    keys: bool
    first: bool
    second: bool
    pairs: str | None = None
    bias_sums: bool = False
    slope_sums: bool = False
    scale_sums: bool = False
    call = "attention_backward"

    @property
    def family(self) -> str:
        """Which file computes it."""
        return self.forward.family

    @property
    def arch(self) -> int:
        """Compute capability times ten."""
        return self.forward.arch

    @property
    def tile(self) -> Tile:
        """How a block divides its work."""
        return self.forward.tile

    @property
    def accumulate(self) -> str:
        """Element type of the running sums."""
        return self.forward.accumulate

    @property
    def code(self) -> str:
        """How its function and its source file are named, without its pass."""
        return "matrix" if self.tile.matrix else self.forward.code

    @property
    def file(self) -> str:
        """The source file that holds it."""
        return f"backward_{self.code}.cuh"

    @property
    def entry(self) -> str:
        """Name of the kernel in the compiled module."""
        return f"cupy_flash_backward_{self.family}"

    @property
    def scores_only(self) -> bool:
        """Whether P is all that it needs: of dv alone."""
        sums = self.bias_sums or self.slope_sums or self.scale_sums
        return not (self.first or self.pairs or sums)

    @property
    def shared_memory(self) -> int:
        """Bytes of dynamic shared memory of a block, as the kernel lays it out."""
        if self.family == "sm80":
            return self._sm80_bytes()
        if self.family == "simt":
            return self._simt_bytes()
        return 0

    def _simt_bytes(self) -> int:
        tile, itemsize = self.tile, ITEMSIZE[self.accumulate]
        d, p = self.forward.head_dim, self.forward.head_dim_v
        sums = self.bias_sums or self.slope_sums or self.scale_sums
        if tile.groups:
            own = tile.block_m * (d if self.scores_only else d + p)
            split = (own + tile.block_n * (d + p)) * self.forward.split_bytes
            turns = self.forward.scores_one_by_one or self.pairs or sums
            pairs = tile.block_m * (tile.block_n + 4) * itemsize if turns else 0
            return split + pairs + 3 * tile.block_m * sums * itemsize + SIMT_WORK_BYTES
        if tile.matrix:
            columns = d + p + 2 * MATRIX_PAD
            own = d + MATRIX_PAD if self.scores_only else columns
            pairs = tile.block_n + MATRIX_PAD
            elements = tile.block_m * (own + pairs + 3 * sums) + tile.block_n * columns
            return elements * itemsize + SIMT_WORK_BYTES
        pad = 16 // itemsize
        own = d + p + 2 * pad if max(d, p) <= SIMT_RESIDENT else tile.chunk_d + pad
        pairs = tile.block_m * (own + tile.block_n + pad)
        stage = max(tile.block_n * (tile.chunk_d + pad), tile.chunk_n * (max(d, p) + pad))
        return (pairs + stage + 3 * tile.block_m * sums) * itemsize + SIMT_WORK_BYTES

    def _sm80_bytes(self) -> int:
        tile, forward = self.tile, self.forward
        itemsize = ITEMSIZE[forward.q]
        d, p = forward.head_dim * itemsize, forward.head_dim_v * itemsize
        own = tile.block_m * (d if self.scores_only else d + p)
        if self.second:
            # In the end dv takes the place of the tiles.
            own = max(own, tile.block_m * (p + (d if self.first else 0)))
        others = tile.block_n * (d + p)
        exchanges = max(self.first + self.second, 1) if tile.split > 1 else 0
        exchange = tile.block_m * tile.block_n * itemsize
        bias = self._score_tile(forward.bias_along, STORED_BYTES.get(forward.bias or "", 4))
        mask = self._score_tile(forward.mask, 1)
        passing = tile.stages * others + exchanges * exchange
        if self.keys:
            stages = tile.stages if tile.split == 1 else 1
            passing += stages * tile.block_n * STATISTICS_BYTES
        return own + passing + tile.stages * (bias + mask) + SM80_WORK_BYTES

    def _score_tile(self, along: str | None, itemsize: int) -> int:
        """Return the bytes of a tile of the mask or the bias (sm80)."""
        if along is None:
            return 0
        rows, keys = self.tile.block_m, self.tile.block_n
        if self.keys:
            rows, keys = keys, rows
        return max((rows if along == "pairs" else 1) * keys * itemsize, 128)

    @property
    def gradients(self) -> tuple[str, ...]:
        """What it computes, in words."""
        wanted = {
            "dk" if self.keys else "dq": self.first,
            "dv": self.second,
            "dbias": self.pairs,
            "sums of dbias": self.bias_sums,
            "sums of dslope": self.slope_sums,
            "sums of dscale": self.scale_sums,
        }
        return tuple(name for name, given in wanted.items() if given)

    def __str__(self) -> str:
        """Say the variant in one line, for logs and errors."""
        return (
            f"{', '.join(self.gradients)} by backward_{str(self.forward).removeprefix('forward_')}"
        )


@dataclass(frozen=True)
class StatisticsVariant:
    """The kernel of each row's lse and delta.

    Attributes
    ----------
    arch : int
    dtype : str
        Element type of o and do.
    sinks : str or None
        Element type of the sinks, if their gradient is asked for.
    lanes : int
        Lanes that share a row.
    aligned : bool
        Whether rows of o and do consist of aligned packs of 16 bytes, which load at once.
    """

    arch: int
    dtype: str
    sinks: str | None
    lanes: int
    aligned: bool
    call = "attention_backward"
    family = "statistics"
    file = "backward_statistics.cuh"
    entry = "cupy_flash_backward_statistics"
    shared_memory = 0
    # Rows that a thread has a part of at a time.
    rows = 4

    @property
    def pack(self) -> int:
        """Neighbours in a row that a lane has, wherever they lie, so that sums have one order."""
        return 16 // ITEMSIZE[self.dtype]

    @property
    def accumulate(self) -> str:
        """Element type of the running sums."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def tile(self) -> Tile:
        """How a block divides its work: `block_m` rows."""
        threads = 256
        return Tile(threads // self.lanes * self.rows, 1, threads, 1)

    def __str__(self) -> str:
        """Say the variant in one line, for logs and errors."""
        sinks = f" ({self.sinks} sinks)" if self.sinks else ""
        lanes = f"{self.lanes} lanes of {'aligned packs' if self.aligned else 'elements'}"
        return f"backward_statistics {self.dtype} sm_{self.arch} {lanes}{sinks}"


@dataclass(frozen=True)
class SumVariant:
    """The kernel that sums what rows, keys or entries have of a gradient.

    Attributes
    ----------
    arch : int
    source, target : str
        Element types.
    team : bool
        Whether the threads of a block share a sum.
    """

    arch: int
    source: str
    target: str
    team: bool
    call = "attention_backward"
    family = "sum"
    file = "backward_sum.cuh"
    entry = "cupy_flash_backward_sum"
    shared_memory = SUM_BYTES
    tile = Tile(1, 1, 256, 1)

    def __str__(self) -> str:
        """Say the variant in one line, for logs and errors."""
        team = "a block" if self.team else "a thread"
        return f"backward_sum {self.source} to {self.target} by {team} sm_{self.arch}"
