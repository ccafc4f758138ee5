"""Which kernel computes a problem: one table of variants, and the reasons in words."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from cupy_flash.axes import Operand
from cupy_flash.device import Device
from cupy_flash.problem import Problem
from cupy_flash.variant import WARP, Tile, Variant

# Head dims that kernels are compiled for; d and p are rounded up to one of them.
HEAD_DIM_BUCKETS = {
    "simt": (32, 64, 128, 256),
    "sm80": (32, 64, 96, 128, 192, 256),
    "sm90": (64, 128),
}
# Shared memory that a kernel has without opting in, on every GPU.
DEFAULT_SHARED_MEMORY = 49_152
# What a block of a family may need: what every GPU from sm_75 on gives it after opting in, and
# every GPU from sm_80 on.
SHARED_MEMORY = {"simt": 65_536, "sm80": 101_376, "sm90": 232_448}
# Largest and smallest magnitude of a scale that sm80 splits between q in 16 bits and a float32.
SM80_SCALES = (2.0**-100, 2.0**100)
# The tensor cores' kernels count keys in 32 bits.
MOST_KEYS = 2**30

# One warp a row, four rows a block; lane j has key j of a tile.
NAIVE_TILE = Tile(block_m=4, block_n=WARP, threads_m=4, threads_n=WARP)


def _matrix_tile(rows: int, keys: int, columns: int, *, blocks: int = 1) -> Tile:
    """Return a tile whose warps multiply 16 rows each on the float64 tensor cores."""
    return Tile(rows, keys, rows // 2, 4, columns, keys, blocks, matrix=True)


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
# The same where scores are changed or hidden one by one (mask, bias, softcap, ALiBi). With those
# above 8 to 48 bytes spilled in one of eight combinations of options.
SIMT_SCORE_TILES = SIMT_TILES | {
    ("float32", 32): Tile(64, 64, 8, 16, 32, 32, 2),
    ("float32", 64): Tile(64, 64, 8, 16, 32, 16, 2),
    ("float64", 32): Tile(32, 64, 8, 16, 16, 16, 2),
    ("float64", 64): Tile(32, 64, 8, 16, 16, 8, 2),
}

# Head-dim bucket that both d and p fit -> tiles of float64 on the tensor cores, the fastest first:
# the first is taken whose shared memory the GPU has.
MATRIX_TILES = {
    32: (_matrix_tile(64, 32, 32, blocks=3),),
    64: (_matrix_tile(128, 32, 64),),
    128: (
        _matrix_tile(128, 32, 128),
        _matrix_tile(128, 16, 128),
        _matrix_tile(64, 16, 128, blocks=2),
    ),
}
# Head-dim buckets of float32 by warpgroups (wgmma), and their tile: four warps have 64 rows, and
# four more bring keys.
SPLIT_HEAD_DIMS = (64, 128)
SPLIT_TILE = Tile(128, 64, 96, 4, groups=True)

# Head-dim bucket that both d and p fit -> tile; docs/kernels.md has the measurements.
SM80_TILES = {
    32: Tile(128, 128, 4, WARP, blocks=2),
    64: Tile(128, 128, 4, WARP, blocks=2),
    96: Tile(128, 64, 4, WARP, blocks=2),
    128: Tile(128, 64, 4, WARP, blocks=2),
    192: Tile(64, 64, 4, WARP, blocks=2),
    256: Tile(64, 64, 4, WARP, blocks=2),
}
# The same of sm90: four warps have 64 rows, and four more bring keys. Without options head dims to
# 64 have room for a third group.
SM90_TILES = {
    64: Tile(128, 128, 96, 4, stages=2, groups=True),
    128: Tile(128, 128, 96, 4, stages=2, groups=True),
}
SM90_WIDE_TILE = Tile(192, 128, 128, 4, stages=2, groups=True)
# Rows of sm90's tiles above which blocks take one tile each where tiles differ in how many keys
# they see: whoever is done first takes the next.
MOST_ROWS_IN_ROUNDS = 4096
# What a multiprocessor keeps of its shared memory for each block.
RESERVED_SHARED_MEMORY = 1024


# From the fastest on.
FAMILIES = ("sm90", "sm80", "simt", "naive")


@dataclass(frozen=True)
class Choice:
    """A variant and why it was taken, or why each other family can't."""

    variant: Variant
    reasons: tuple[str, ...]


def choose(problem: Problem, device: Device) -> Choice:
    """Choose the kernel of a problem; raise ValueError if a forced one can't compute it."""
    obstacles = {family: _obstacles(family, problem, device) for family in FAMILIES}
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
        if not against and family == "sm90":
            reasons.append("sm90: no, only kernel='sm90' takes it until it is verified on a GPU")
            continue
        if not against:
            reasons.append(f"{family}: the fastest family that can")
            return Choice(_variant(family, problem, device), tuple(reasons))
        reasons.append(f"{family}: no, {'; '.join(against)}")
    raise AssertionError("the naive family computes every problem")


def _obstacles(family: str, problem: Problem, device: Device) -> tuple[str, ...]:
    """Why a family can't compute a problem on a device; empty if it can."""
    if family == "naive":
        return ()
    against = []
    if family == "sm90":
        if device.arch != 90:
            against.append(f"it needs compute capability 9.0, {device.name} has another one")
        elif not device.warpgroups:
            against.append(
                "it needs the target sm_90a: NVRTC 12.9 or newer, and CUPY_COMPILE_WITH_PTX unset"
            )
        for name in ("mask", "bias"):
            if getattr(problem, name) is not None:
                against.append(f"it takes no {name}")
    if family in ("sm80", "sm90"):
        if problem.dtype not in ("float16", "bfloat16"):
            against.append(f"it computes float16 and bfloat16, not {problem.dtype}")
        if family == "sm80" and device.arch < 80:
            against.append(f"it needs compute capability 8.0, {device.name} has less")
        smallest, largest = SM80_SCALES
        if problem.scale and not smallest <= abs(problem.scale) <= largest:
            against.append(f"scale is {problem.scale}, outside +-[2**-100, 2**100]")
        if problem.n > MOST_KEYS:
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
        tiles = SIMT_SCORE_TILES if _scores_one_by_one(problem) else SIMT_TILES
        tile = tiles[problem.accumulate, widest]
        tile = replace(tile, chunk_d=min(tile.chunk_d, head_dim))
    elif family == "sm90":
        unit = min(problem.q.unit, problem.k.unit, problem.v.unit)
        tile = _sm90_tile(widest, problem)
    elif family == "sm80":
        unit = min(problem.q.unit, problem.k.unit, problem.v.unit)
        tile = _sm80_tile(widest, device)
    variant = Variant(
        family=family,
        arch=device.arch,
        q=problem.q.dtype,
        k=problem.k.dtype,
        v=problem.v.dtype,
        o=problem.dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        q_lengths=_dtype(problem.q_lengths),
        k_lengths=_dtype(problem.k_lengths),
        left=problem.left is not None,
        right=problem.right is not None,
        offset_from_lengths=problem.offset is None and _uses_offset(problem),
        mask=_along(problem.mask),
        bias=_dtype(problem.bias),
        bias_along=_along(problem.bias),
        softcap=problem.softcap is not None,
        alibi=_dtype(problem.alibi_slopes),
        sinks=_dtype(problem.sinks),
        tile=tile,
        unit=unit,
    )
    if family == "simt" and problem.n <= MOST_KEYS:
        variant = _on_tensor_cores(variant, problem.precision, device)
    if family == "sm80" and (problem.mask is not None or problem.bias is not None):
        variant = _fitting(variant, device)
    return _intern(variant)


def _dtype(operand: Operand | None) -> str | None:
    return operand.dtype if operand else None


def _along(operand: Operand | None) -> str | None:
    """Say whether an array over rows and keys differs from row to row."""
    if operand is None:
        return None
    return "pairs" if operand.row else "keys"


def _uses_offset(problem: Problem) -> bool:
    return (problem.left, problem.right, problem.alibi_slopes) != (None, None, None)


def _scores_one_by_one(problem: Problem) -> bool:
    """Whether scores are changed or hidden one by one, which takes registers."""
    options = (problem.mask, problem.bias, problem.softcap, problem.alibi_slopes)
    return any(option is not None for option in options)


def _on_tensor_cores(variant: Variant, precision: str | None, device: Device) -> Variant:
    """Return the variant with a tile of the tensor cores, if there is one for it."""
    dtypes, widest = {variant.q, variant.k, variant.v}, max(variant.head_dim, variant.head_dim_v)
    if dtypes == {"float32"} and device.warpgroups and widest <= SPLIT_HEAD_DIMS[-1]:
        d, p = (max(x, SPLIT_HEAD_DIMS[0]) for x in (variant.head_dim, variant.head_dim_v))
        tf32 = precision == "tf32"
        return replace(variant, head_dim=d, head_dim_v=p, tile=SPLIT_TILE, tf32=tf32)
    if dtypes == {"float64"} and device.float64_matrix:
        for tile in MATRIX_TILES.get(widest, ()):
            found = replace(variant, tile=replace(tile, chunk_d=variant.head_dim))
            if found.shared_memory <= device.shared_memory:
                return found
    return variant


def _sm80_tile(widest: int, device: Device) -> Tile:
    """Return the tile of a head-dim bucket, from sm_100 on of at most 64 rows.

    There 128 rows spilled 16 to 56 bytes in 5 of 21 kernels.
    """
    tile = SM80_TILES[widest]
    return replace(tile, block_m=64) if device.arch >= 100 else tile


def _sm90_tile(widest: int, problem: Problem) -> Tile:
    """Return the tile of a head-dim bucket; with options scores take registers."""
    plain = not _scores_one_by_one(problem) and problem.sinks is None
    return SM90_WIDE_TILE if widest == 64 and plain else SM90_TILES[widest]


def resident_blocks(problem: Problem, variant: Variant, device: Device) -> int | None:
    """Return how many blocks a launch has at most, which take tiles in turns; None for any number.

    sm90 brings the next tile while it computes one.
    """
    if variant.family != "sm90":
        return None
    bounded = problem.left is not None or problem.right is not None
    uneven = bounded or problem.k_lengths is not None or problem.q_lengths is not None
    return None if uneven and problem.m > MOST_ROWS_IN_ROUNDS else device.sm_count


def _fitting(variant: Variant, device: Device) -> Variant:
    """Return the variant with as many keys in a tile as shared memory has room for.

    The widest tile of which a multiprocessor holds two blocks; where none is so narrow, one. Arrays
    count as if each differed from row to row: those of a row alone don't, and it must have the
    tiles, and so the bits, that it has among others.
    """
    tile = variant.tile
    largest = replace(
        variant,
        mask=variant.mask and "pairs",
        bias_along=variant.bias_along and "pairs",
    )
    widths = [n for n in (tile.block_n, tile.block_n // 2, tile.block_n // 4) if n >= WARP]
    tiles = [replace(tile, block_n=n) for n in widths]
    two = (device.shared_memory + RESERVED_SHARED_MEMORY) // 2 - RESERVED_SHARED_MEMORY
    for room in (two, device.shared_memory):
        for narrower in tiles:
            if replace(largest, tile=narrower).shared_memory <= room:
                return replace(variant, tile=narrower)
    raise AssertionError("SHARED_MEMORY holds the narrowest tile")


@functools.cache
def _intern(variant: Variant) -> Variant:
    """Return one object per variant, so that later look-ups hit the same key."""
    return variant
