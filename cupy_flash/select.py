"""Which kernel computes a problem: one table of variants, and the reasons in words."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from cupy_flash.device import Device
from cupy_flash.problem import Problem

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Head dims that kernels are compiled for; d and p are rounded up to one of them.
HEAD_DIM_BUCKETS = {"simt": (32, 64, 128, 256), "sm80": (32, 64, 96, 128, 192, 256)}
WARP = 32
# Shared memory that a kernel has without opting in, on every GPU.
DEFAULT_SHARED_MEMORY = 49_152
# What a block of a family may need: what every GPU from sm_75 on gives it after opting in, and
# every GPU from sm_80 on.
SHARED_MEMORY = {"simt": 65_536, "sm80": 101_376}
# What a block of sm80 keeps in shared memory beside its tiles.
SM80_WORK_BYTES = 128
# Largest and smallest magnitude of a scale that sm80 splits between q in 16 bits and a float32.
SM80_SCALES = (2.0**-100, 2.0**100)
# sm80 counts keys in 32 bits.
SM80_KEYS = 2**30


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
    """

    block_m: int
    block_n: int
    threads_m: int
    threads_n: int
    chunk_d: int = 0
    chunk_n: int = 0
    blocks: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.threads_m * self.threads_n


@dataclass(frozen=True)
class Variant:
    """One kernel: everything that is a constant in its text, nothing that a call may change."""

    family: str
    arch: int
    q: str
    k: str
    v: str
    o: str
    head_dim: int
    head_dim_v: int
    causal: bool
    q_lengths: str | None
    k_lengths: str | None
    offset_from_lengths: bool
    tile: Tile
    unit: int = 0
    call = "attention"

    @property
    def file(self) -> str:
        """The source file that holds it."""
        return f"forward_{self.family}.cuh"

    @property
    def entry(self) -> str:
        """Name of the kernel in the compiled module."""
        return f"cupy_flash_forward_{self.family}"

    @property
    def accumulate(self) -> str:
        """Element type of the running sums."""
        return "float64" if self.o == "float64" else "float32"

    @property
    def shared_memory(self) -> int:
        """Bytes of dynamic shared memory of a block, as the kernel lays it out."""
        if self.family == "naive":
            return 0
        tile, itemsize = self.tile, ITEMSIZE[self.accumulate]
        if self.family == "sm80":
            rows = (tile.block_m + tile.block_n) * self.head_dim + tile.block_n * self.head_dim_v
            return rows * ITEMSIZE[self.q] + SM80_WORK_BYTES
        pad = 16 // itemsize
        stage = max(tile.block_n * (tile.chunk_d + pad), tile.chunk_n * (self.head_dim_v + pad))
        q = tile.block_m * (self.head_dim + pad)
        p = tile.block_m * (tile.block_n + pad)
        return (q + p + stage) * itemsize

    def __str__(self) -> str:
        """Say the variant in one line, for logs and errors."""
        features = [
            name
            for name, present in (
                ("causal", self.causal),
                (f"q_lengths {self.q_lengths}", self.q_lengths),
                (f"k_lengths {self.k_lengths}", self.k_lengths),
                (f"units of {self.unit} bytes", self.unit in (2, 4)),
            )
            if present
        ]
        dtypes = self.q if self.q == self.k == self.v else f"{self.q}/{self.k}/{self.v}"
        dims = f" d<={self.head_dim} p<={self.head_dim_v}" if self.head_dim else ""
        listing = f" ({', '.join(features)})" if features else ""
        return f"forward_{self.family} {dtypes}{dims} sm_{self.arch}{listing}"


# One warp a row, four rows a block; lane j has key j of a tile.
NAIVE_TILE = Tile(block_m=4, block_n=WARP, threads_m=4, threads_n=WARP)

# (accumulation type, head-dim bucket that both d and p fit) -> tile.
# benchmarks/time_tiles.py measures them against others.
SIMT_TILES = {
    ("float32", 32): Tile(64, 64, 8, 16, 32, 32, 3),
    ("float32", 64): Tile(64, 64, 8, 16, 32, 16, 3),
    ("float32", 128): Tile(64, 64, 8, 16, 32, 16, 2),
    ("float32", 256): Tile(32, 64, 8, 16, 32, 8, 2),
    ("float64", 32): Tile(64, 64, 8, 16, 16, 16, 2),
    ("float64", 64): Tile(32, 64, 8, 16, 16, 8, 3),
    ("float64", 128): Tile(32, 64, 8, 16, 16, 8, 2),
    ("float64", 256): Tile(16, 64, 8, 16, 16, 8, 2),
}

# Head-dim bucket that both d and p fit -> tile; docs/kernels.md has the measurements.
SM80_TILES = {
    32: Tile(128, 128, 4, WARP, blocks=2),
    64: Tile(128, 128, 4, WARP, blocks=2),
    96: Tile(128, 64, 4, WARP, blocks=2),
    128: Tile(128, 64, 4, WARP, blocks=2),
    192: Tile(64, 64, 4, WARP, blocks=2),
    256: Tile(64, 64, 4, WARP, blocks=2),
}


@dataclass(frozen=True)
class Choice:
    """A variant and why it was taken, or why each other family can't."""

    variant: Variant
    reasons: tuple[str, ...]


def choose(problem: Problem, device: Device) -> Choice:
    """Choose the kernel of a problem; raise ValueError if a forced one can't compute it."""
    obstacles = {
        family: _obstacles(family, problem, device) for family in ("sm90", "sm80", "simt", "naive")
    }
    if problem.kernel is not None:
        against = obstacles[problem.kernel]
        if against:
            able = ", ".join(repr(f) for f, why in obstacles.items() if not why)
            raise ValueError(
                f"attention: kernel={problem.kernel!r} can't compute this call: "
                f"{'; '.join(against)}. Able are {able}; kernel=None takes the fastest"
            )
        reason = f"{problem.kernel}: asked for by kernel={problem.kernel!r}"
        return Choice(_variant(problem.kernel, problem, device), (reason,))
    reasons = []
    for family, against in obstacles.items():
        if not against:
            reasons.append(f"{family}: the fastest family that can")
            return Choice(_variant(family, problem, device), tuple(reasons))
        reasons.append(f"{family}: no, {'; '.join(against)}")
    raise AssertionError("the naive family computes every problem")


def _obstacles(family: str, problem: Problem, device: Device) -> tuple[str, ...]:
    """Why a family can't compute a problem on a device; empty if it can."""
    if family == "sm90":
        return ("this version doesn't have it yet",)
    if family == "naive":
        return ()
    against = []
    if family == "sm80":
        if problem.dtype not in ("float16", "bfloat16"):
            against.append(f"it computes float16 and bfloat16, not {problem.dtype}")
        if device.arch < 80:
            against.append(f"it needs compute capability 8.0, {device.name} has less")
        smallest, largest = SM80_SCALES
        if problem.scale and not smallest <= abs(problem.scale) <= largest:
            against.append(f"scale is {problem.scale}, outside +-[2**-100, 2**100]")
        if problem.n > SM80_KEYS:
            against.append(f"n is {problem.n}, above 2**30")
    if device.shared_memory < SHARED_MEMORY[family]:
        against.append(
            f"a block of {device.name} has {device.shared_memory:,} bytes of shared memory, below "
            f"{SHARED_MEMORY[family]:,}"
        )
    widest = HEAD_DIM_BUCKETS[family][-1]
    if problem.d > widest:
        against.append(f"d is {problem.d}, above {widest}")
    if problem.p > widest:
        against.append(f"p is {problem.p}, above {widest}")
    return tuple(against)


def _bucket(family: str, size: int) -> int:
    return next(bucket for bucket in HEAD_DIM_BUCKETS[family] if size <= bucket)


def _variant(family: str, problem: Problem, device: Device) -> Variant:
    head_dim = head_dim_v = unit = 0
    tile = NAIVE_TILE
    if family != "naive":
        head_dim, head_dim_v = _bucket(family, problem.d), _bucket(family, problem.p)
    widest = max(head_dim, head_dim_v)
    if family == "simt":
        tile = SIMT_TILES[problem.accumulate, widest]
        tile = replace(tile, chunk_d=min(tile.chunk_d, head_dim))
    elif family == "sm80":
        unit = min(problem.q.unit, problem.k.unit, problem.v.unit)
        tile = _sm80_tile(widest, unit, device)
    return _intern(
        Variant(
            family=family,
            arch=device.arch,
            q=problem.q.dtype,
            k=problem.k.dtype,
            v=problem.v.dtype,
            o=problem.dtype,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            causal=problem.causal,
            q_lengths=problem.q_lengths.dtype if problem.q_lengths else None,
            k_lengths=problem.k_lengths.dtype if problem.k_lengths else None,
            offset_from_lengths=problem.causal and problem.offset is None,
            tile=tile,
            unit=unit,
        )
    )


def _sm80_tile(widest: int, unit: int, device: Device) -> Tile:
    """Return the tile of a head-dim bucket, of half the rows where so many registers spill.

    That is where rows don't consist of 16-byte units, and from sm_100 on. No bit depends on it:
    the order of a row's sums is that of the tiles of keys.
    """
    tile = SM80_TILES[widest]
    if tile.block_m > 64 and (unit < 16 or device.arch >= 100):
        return replace(tile, block_m=64, blocks=3)
    return tile


@functools.cache
def _intern(variant: Variant) -> Variant:
    """Return one object per variant, so that later look-ups hit the same key."""
    return variant
