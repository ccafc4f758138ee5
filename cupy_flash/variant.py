"""What a kernel is compiled for: its constants, its tile, and the shared memory that follows."""

from __future__ import annotations

from dataclasses import dataclass

from cupy_flash.products import FMA, SIX_BFLOAT16, THREE_BFLOAT16, Products

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Bytes that an element of a bias has in shared memory where it isn't a float32 (sm80).
STORED_BYTES = {"float16": 2, "bfloat16": 2, "uint8": 1}
WARP = 32
# What a block of sm80 keeps in shared memory beside its tiles.
SM80_WORK_BYTES = 192
# And of sm90, for this tile and the next, beside its barriers.
SM90_WORK_BYTES = 2 * SM80_WORK_BYTES + 128

# Elements between rows in simt's shared memory where the tensor cores multiply, and those of V.
MATRIX_PAD = 4
ALTERNATE_PAD = 2


@dataclass(frozen=True)
class Tile:
    """How a block divides its work.

    Attributes
    ----------
    block_m, block_n : int
        Rows of q and keys of a tile.
    threads_m, threads_n : int
        Threads across rows and across keys or columns.
    chunk_d, chunk_n : int
        Columns of K, and rows of V, that lie in shared memory at a time (simt).
    blocks : int
        Blocks that a multiprocessor should hold at a time; bounds the registers of a thread.
    stages : int
        Tiles of what passes by that are in shared memory, or on their way (sm90 and the backward
        pass).
    split : int
        Warps that share rows and take turns at columns (the backward pass).
    matrix : bool
        Whether warps multiply float64 by mma.sync: thread t has rows and columns of fragments
        (simt).
    groups : bool
        Whether four warps multiply together by wgmma, which sm_90a alone can: sm90, float32
        (simt), and the backward pass.
    """

    block_m: int
    block_n: int
    threads_m: int
    threads_n: int
    chunk_d: int = 0
    chunk_n: int = 0
    blocks: int = 1
    stages: int = 0
    split: int = 1
    groups: bool = False
    matrix: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.threads_m * self.threads_n


@dataclass(frozen=True)
class Variant:
    """One kernel: everything that is a constant in its text, nothing that a call may change.

    Attributes
    ----------
    family : str
        Which file computes it.
    arch : int
        Compute capability times ten.
    q, k, v, o : str
        Element types.
    head_dim, head_dim_v : int
        Largest d and p; 0 for any.
    q_lengths, k_lengths, bias, alibi, sinks : str or None
        Element types of the arrays that a call may have; None for a call without.
    left, right : bool
        Whether a row's keys are bounded on this side. Causal is a bound on the right.
    offset_from_lengths : bool
        Whether row i's place depends on the batch entry.
    mask, bias_along : {None, "pairs", "keys"}
        "keys" where all rows have the same values, which are then read once a column.
    softcap : bool
        Whether scores are capped.
    tile : Tile
    unit : int
        Bytes that rows of q, k and v are copied in (sm80, sm90).
    tf32 : bool
        Whether products of float32 on the tensor cores may have the accuracy of TF32 (simt).
    """

    family: str
    arch: int
    q: str
    k: str
    v: str
    o: str
    head_dim: int
    head_dim_v: int
    q_lengths: str | None
    k_lengths: str | None
    left: bool
    right: bool
    offset_from_lengths: bool
    mask: str | None
    bias: str | None
    bias_along: str | None
    softcap: bool
    alibi: str | None
    sinks: str | None
    tile: Tile
    unit: int = 0
    tf32: bool = False
    call = "attention"

    @property
    def code(self) -> str:
        """How its function and its source file are named, without its pass."""
        return "split" if self.family == "simt" and self.tile.groups else self.family

    @property
    def file(self) -> str:
        """The source file that holds it."""
        return f"forward_{self.code}.cuh"

    @property
    def entry(self) -> str:
        """Name of the kernel in the compiled module."""
        return f"cupy_flash_forward_{self.family}"

    @property
    def accumulate(self) -> str:
        """Element type of the running sums."""
        return "float64" if self.o == "float64" else "float32"

    @property
    def products(self) -> Products:
        """What multiplies float32."""
        if self.family != "simt" or not self.tile.groups:
            return FMA
        return THREE_BFLOAT16 if self.tf32 else SIX_BFLOAT16

    @property
    def shared_memory(self) -> int:
        """Bytes of dynamic shared memory of a block, as the kernel lays it out."""
        if self.family == "naive":
            return 0
        tile, itemsize = self.tile, ITEMSIZE[self.accumulate]
        if self.family == "sm80":
            rows = (tile.block_m + tile.block_n) * self.head_dim + tile.block_n * self.head_dim_v
            bias = self._score_tile(self.bias_along, STORED_BYTES.get(self.bias or "", 4))
            # The mask of the next keys comes while that of these is read.
            masks = 2 * self._score_tile(self.mask, 1)
            tiles = rows * ITEMSIZE[self.q] + bias + masks
            # In the end O takes their place.
            output = tile.block_m * self.head_dim_v * ITEMSIZE[self.o]
            return max(tiles, output) + SM80_WORK_BYTES
        if self.family == "sm90":
            rows = tile.block_m * (2 * self.head_dim + self.head_dim_v)
            keys = tile.stages * tile.block_n * (self.head_dim + self.head_dim_v)
            return (rows + keys) * ITEMSIZE[self.q] + SM90_WORK_BYTES
        if tile.groups:
            return self._split_bytes()
        if tile.matrix:
            return self._matrix_bytes()
        pad = 16 // itemsize
        stage = max(tile.block_n * (tile.chunk_d + pad), tile.chunk_n * (self.head_dim_v + pad))
        q = tile.block_m * (self.head_dim + pad)
        p = tile.block_m * (tile.block_n + pad)
        return (q + p + stage) * itemsize

    @property
    def scores_one_by_one(self) -> bool:
        """Whether scores are changed or hidden one by one, which takes registers (simt)."""
        return bool(self.mask or self.bias or self.softcap or self.alibi)

    @property
    def split_bytes(self) -> int:
        """Bytes of an element of float32 that is split into terms of bfloat16 (simt)."""
        return (2 if self.tf32 else 3) * ITEMSIZE["bfloat16"]

    def _split_bytes(self) -> int:
        """Return the bytes of Q, K and V in terms of bfloat16, and of pairs."""
        tile = self.tile
        elements = (tile.block_m + tile.block_n) * self.head_dim + tile.block_n * self.head_dim_v
        pairs = (
            tile.block_m * (tile.block_n + 4) * ITEMSIZE["float32"] if self.scores_one_by_one else 0
        )
        return elements * self.split_bytes + pairs

    def _matrix_bytes(self) -> int:
        """Return the bytes of Q, K and V in float64, and of pairs where their rows take turns."""
        tile, d = self.tile, self.head_dim + MATRIX_PAD
        p = self.head_dim_v + ALTERNATE_PAD
        elements = (tile.block_m + tile.block_n) * d + tile.block_n * p
        elements += tile.block_m * (tile.block_n + MATRIX_PAD) if self.scores_one_by_one else 0
        return elements * ITEMSIZE[self.accumulate]

    def _score_tile(self, along: str | None, itemsize: int) -> int:
        """Return the bytes of a tile of the mask or the bias (sm80)."""
        if along is None:
            return 0
        rows = self.tile.block_m if along == "pairs" else 1
        return max(rows * self.tile.block_n * itemsize, 128)

    def __str__(self) -> str:
        """Say the variant in one line, for logs and errors."""
        features = [
            name
            for name, present in (
                ("left bound", self.left),
                ("right bound", self.right),
                (f"q_lengths {self.q_lengths}", self.q_lengths),
                (f"k_lengths {self.k_lengths}", self.k_lengths),
                (f"mask of {self.mask}", self.mask),
                (f"{self.bias} bias of {self.bias_along}", self.bias),
                ("softcap", self.softcap),
                (f"{self.alibi} ALiBi slopes", self.alibi),
                (f"{self.sinks} sinks", self.sinks),
                (f"units of {self.unit} bytes", self.unit in (2, 4)),
            )
            if present
        ]
        dtypes = self.q if self.q == self.k == self.v else f"{self.q}/{self.k}/{self.v}"
        dims = f" d<={self.head_dim} p<={self.head_dim_v}" if self.head_dim else ""
        listing = f" ({', '.join(features)})" if features else ""
        return f"forward_{self.family} {dtypes}{dims} sm_{self.arch}{listing}"
