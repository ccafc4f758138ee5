"""How blocks of the backward pass divide their work; docs/kernels.md has the measurements."""

from __future__ import annotations

from cupy_flash.variant import WARP, Tile

# One warp an own row or key; lane j has the j-th of the others that pass by.
NAIVE_TILE = Tile(block_m=4, block_n=WARP, threads_m=4, threads_n=WARP)

# (gradients that the pass computes, accumulation type, head-dim bucket that d and p fit) -> tile.
# From 256 columns on, and of two gradients from 128 on, twice the threads share the registers. In
# float64 dk and dv have a pass each from 128 columns on, where both in one take longer.
SIMT_TILES = {
    (1, "float32", 32): Tile(64, 64, 8, 16, 32, 32, 3),
    (1, "float32", 64): Tile(64, 64, 8, 16, 32, 16, 3),
    (1, "float32", 128): Tile(64, 64, 8, 16, 32, 16, 2),
    (1, "float32", 256): Tile(64, 64, 16, 16, 32, 8, 1),
    (2, "float32", 32): Tile(64, 64, 8, 16, 32, 32, 2),
    (2, "float32", 64): Tile(64, 64, 8, 16, 32, 16, 2),
    (2, "float32", 128): Tile(64, 64, 16, 16, 32, 16, 1),
    (2, "float32", 256): Tile(64, 64, 16, 16, 32, 8, 1),
    (1, "float64", 32): Tile(32, 64, 8, 16, 16, 16, 2),
    (1, "float64", 64): Tile(32, 64, 8, 16, 16, 8, 2),
    (1, "float64", 128): Tile(32, 64, 8, 16, 16, 8, 2),
    (1, "float64", 256): Tile(32, 64, 16, 16, 16, 8, 1),
    (2, "float64", 32): Tile(32, 64, 8, 16, 16, 16, 2),
    (2, "float64", 64): Tile(32, 64, 8, 16, 16, 8, 2),
}


def _matrix(own: int, others: int, *, parts: int = 1) -> Tile:
    """Return a tile whose warps multiply 16 own rows each on the float64 tensor cores.

    `parts` warps share own rows, and columns of what they multiply among them.
    """
    return Tile(own, others, own // 2, 4 * parts, matrix=True)


# The same of float64 on the tensor cores, the fastest first: the first is taken whose shared memory
# the GPU has. Warps that share rows leave no sums over them.
MATRIX_TILES = {
    (1, 32): (_matrix(128, 32),),
    (1, 64): (_matrix(128, 32), _matrix(64, 32)),
    (1, 128): (_matrix(64, 32, parts=2), _matrix(32, 32, parts=2)),
    (2, 32): (_matrix(128, 32),),
    (2, 64): (_matrix(128, 32), _matrix(64, 32)),
    (2, 128): (_matrix(64, 32, parts=2), _matrix(32, 32, parts=2)),
}


def _split(own: int) -> Tile:
    """Return a tile of groups of four warps with 64 own rows or keys each, and one more group."""
    return Tile(own, 64, own // 2 + 32, 4, groups=True)


# float32 by warpgroups (wgmma), (what a pass computes, head-dim bucket that d and p fit) -> tile.
SPLIT_TILES = {
    ("q", 64): _split(128),
    ("q", 128): _split(64),
    ("kv", 64): _split(128),
    ("k", 64): _split(128),
    ("k", 128): _split(64),
    ("v", 64): _split(128),
    ("v", 128): _split(128),
}

# Head-dim buckets that take the kernels of another one: 192 columns can't be split among warps. Its
# own tiles took 15.5 ms (an H200, n = 8192, 10 heads). Ten heads of 256 would take 14.0 by the time
# of eight; what calls of 192 take now hasn't been measured.
SM80_WIDER = {192: 256}
# Head-dim buckets whose dk and dv one pass computes, where shared memory has room for its tile.
SM80_JOINT = (32, 64, 96, 128, 256)


def _tile(
    own: int,
    others: int,
    step: int,
    *,
    warps: int = 4,
    split: int = 1,
    blocks: int = 2,
    stages: int = 2,
) -> Tile:
    """Return a tile; `step` is how many of the others a warp multiplies at a time."""
    return Tile(own, others, warps, WARP, 0, step, blocks, stages, split)


def _groups(own: int, others: int, *, blocks: int = 1, stages: int = 2) -> Tile:
    """Return a tile whose warps multiply in fours, each with 64 own rows or keys."""
    return Tile(own, others, own // 16, WARP, 0, others, blocks, stages, groups=True)


# (what the pass computes, head dim) -> tiles of warpgroups (wgmma), where the GPU has them and each
# of the two head dims is one of these: the fastest first. "pairs" are those of a bias that entries
# share, "sums" what rows add to numbers. With a bias blocks of 128 keys beat those of 64 at
# d = 64 (4.7 and 5.6 ms).
GROUP_HEAD_DIMS = (64, 128)
# As SM80_WIDER, where both head dims are then warpgroups': at d = 96 9.4 ms instead of 12.6.
GROUP_WIDER = {96: 128}
GROUP_TILES = {
    ("q", 64): (_groups(64, 64, blocks=4),),
    ("q", 64, "arrays"): (
        _groups(64, 128, blocks=3),
        _groups(64, 128, blocks=2),
        _groups(64, 64, blocks=2),
        _groups(64, 64),
    ),
    ("q", 128): (_groups(64, 64, blocks=3), _groups(64, 64, blocks=2), _groups(128, 64)),
    ("kv", 64): (_groups(64, 128, blocks=2), _groups(64, 64, blocks=3), _groups(64, 64, blocks=2)),
    ("kv", 128): (_groups(64, 64, blocks=2), _groups(128, 64)),
    ("k", 64): (_groups(64, 64, blocks=3), _groups(64, 64, blocks=2)),
    ("k", 128): (_groups(64, 64, blocks=3), _groups(64, 64, blocks=2), _groups(128, 64)),
    ("v", 64): (_groups(64, 64, blocks=3), _groups(64, 64, blocks=2)),
    ("v", 128): (_groups(64, 64, blocks=3), _groups(64, 64, blocks=2), _groups(128, 64)),
    ("pairs", 64): (
        _groups(64, 128, blocks=2, stages=1),
        _groups(64, 64, stages=1),
    ),
    ("pairs", 128): (
        _groups(64, 128, blocks=2, stages=1),
        _groups(64, 64, blocks=2, stages=1),
        _groups(64, 64, stages=1),
    ),
    ("sums", 64): (_groups(64, 64, blocks=3), _groups(64, 64, blocks=2)),
    ("sums", 128): (_groups(64, 64, blocks=2), _groups(64, 64)),
}

# (what the pass computes, head-dim bucket of its gradients) -> tiles, the fastest first: the first
# that fits is taken. All lists but those of "kv" end with one that fits on every GPU from sm_80 on,
# with any options and any width of the other matrices.
SM80_TILES = {
    ("q", 32): (
        _tile(128, 128, 32),
        _tile(128, 64, 32),
        _tile(128, 32, 32),
        _tile(128, 32, 32, stages=1),
        _tile(64, 32, 32),
    ),
    ("q", 64): (
        _tile(128, 128, 32),
        _tile(128, 64, 32),
        _tile(128, 32, 32),
        _tile(128, 32, 32, stages=1),
        _tile(64, 32, 32),
    ),
    ("q", 96): (_tile(128, 32, 32), _tile(64, 32, 32), _tile(64, 32, 32, stages=1)),
    ("q", 128): (
        _tile(128, 32, 32),
        _tile(128, 32, 32, stages=1),
        _tile(64, 32, 32),
        _tile(64, 32, 32, stages=1),
    ),
    ("q", 256): (
        _tile(128, 64, 32, warps=8, split=2, blocks=1, stages=1),
        _tile(64, 64, 32, split=2, blocks=1, stages=1),
        _tile(32, 32, 16, split=2, blocks=1, stages=1),
    ),
    ("kv", 32): (
        _tile(128, 128, 32),
        _tile(128, 64, 32),
        _tile(128, 32, 32),
        _tile(128, 32, 32, stages=1),
        _tile(64, 32, 32),
    ),
    ("kv", 64): (
        _tile(128, 128, 32),
        _tile(128, 64, 32),
        _tile(128, 32, 32),
        _tile(128, 32, 32, stages=1),
        _tile(64, 32, 32),
    ),
    ("kv", 96): (_tile(64, 64, 32), _tile(64, 32, 32), _tile(64, 32, 32, stages=1)),
    ("kv", 128): (
        _tile(64, 64, 32, split=2),
        _tile(64, 64, 32, split=2, stages=1),
        _tile(64, 32, 32, stages=1),
    ),
    ("kv", 256): (
        _tile(64, 128, 32, warps=8, split=4, blocks=1, stages=1),
        _tile(64, 64, 16, warps=8, split=4, blocks=1),
        _tile(64, 64, 16, warps=8, split=4, blocks=1, stages=1),
        _tile(32, 64, 16, warps=4, split=4, blocks=1, stages=1),
    ),
    ("k", 32): (_tile(128, 64, 32), _tile(64, 32, 32)),
    ("k", 64): (_tile(128, 64, 32), _tile(64, 32, 32)),
    ("k", 96): (_tile(128, 32, 32), _tile(64, 32, 32), _tile(64, 32, 32, stages=1)),
    ("k", 128): (
        _tile(128, 32, 32),
        _tile(128, 32, 32, stages=1),
        _tile(64, 32, 32),
        _tile(64, 32, 32, stages=1),
    ),
    ("k", 256): (
        _tile(128, 64, 32, warps=8, split=2, blocks=1, stages=1),
        _tile(64, 64, 32, split=2, blocks=1, stages=1),
        _tile(32, 32, 16, split=2, blocks=1, stages=1),
    ),
    ("v", 32): (_tile(128, 64, 32), _tile(64, 32, 32)),
    ("v", 64): (_tile(128, 64, 32), _tile(64, 32, 32)),
    ("v", 96): (_tile(128, 64, 32), _tile(128, 32, 32), _tile(64, 32, 32, stages=1)),
    ("v", 128): (_tile(128, 64, 64), _tile(128, 32, 32), _tile(64, 32, 32, stages=1)),
    ("v", 256): (
        _tile(128, 64, 32, warps=8, split=2, blocks=1),
        _tile(64, 32, 32, blocks=1, stages=1),
    ),
}
# Widest head-dim bucket -> tiles of passes that leave sums and pairs alone, without a gradient that
# takes registers.
SM80_SCORE_TILES = {
    **dict.fromkeys(
        (32, 64, 96, 128),
        (
            _tile(128, 64, 64, stages=1),
            _tile(64, 64, 64, stages=1),
            _tile(64, 32, 32, stages=1),
        ),
    ),
    256: (
        _tile(64, 64, 64, blocks=1, stages=1),
        _tile(64, 32, 32, blocks=1, stages=1),
        _tile(32, 32, 16, split=2, blocks=1, stages=1),
    ),
}
