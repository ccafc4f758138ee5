"""How blocks of the backward pass divide their work; docs/kernels.md has the measurements."""

from __future__ import annotations

from cupy_flash.variant import WARP, Tile

# One warp an own row or key; lane j has the j-th of the others that pass by.
NAIVE_TILE = Tile(block_m=4, block_n=WARP, threads_m=4, threads_n=WARP)

# (gradients that the pass computes, accumulation type, head-dim bucket that d and p fit) -> tile.
# From 256 columns on, and of two gradients from 128 on, twice the threads share the registers. Two
# of 256 columns in float64 don't fit: there dk and dv have a pass each.
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
    (2, "float64", 128): Tile(32, 64, 16, 16, 16, 8, 1),
}

# Widest head-dim bucket whose dk and dv one pass computes.
SM80_JOINT = 128
# (what the pass computes, head-dim bucket) -> tile: own rows or keys, others, warps. `chunk_n`
# others are multiplied at a time.
SM80_TILES = {
    ("q", 32): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("q", 64): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("q", 96): Tile(128, 32, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("q", 128): Tile(128, 32, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("q", 192): Tile(64, 32, 4, WARP, chunk_n=32, blocks=1, stages=2),
    ("q", 256): Tile(64, 32, 4, WARP, chunk_n=32, blocks=1, stages=2),
    ("kv", 32): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("kv", 64): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("kv", 96): Tile(64, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("kv", 128): Tile(64, 64, 4, WARP, chunk_n=64, blocks=2, stages=2),
    ("k", 32): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("k", 64): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("k", 96): Tile(128, 32, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("k", 128): Tile(128, 32, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("k", 192): Tile(64, 32, 4, WARP, chunk_n=32, blocks=1, stages=2),
    ("k", 256): Tile(64, 32, 4, WARP, chunk_n=32, blocks=1, stages=2),
    ("v", 32): Tile(128, 64, 4, WARP, chunk_n=64, blocks=2, stages=2),
    ("v", 64): Tile(128, 64, 4, WARP, chunk_n=64, blocks=2, stages=2),
    ("v", 96): Tile(128, 64, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("v", 128): Tile(128, 32, 4, WARP, chunk_n=32, blocks=2, stages=2),
    ("v", 192): Tile(64, 32, 4, WARP, chunk_n=32, blocks=1, stages=2),
    ("v", 256): Tile(64, 32, 4, WARP, chunk_n=32, blocks=1, stages=2),
}
