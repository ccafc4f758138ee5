"""Defects of products by warpgroups, each with the problem that must bring it to light."""

from __future__ import annotations

from mutants import Mutant, sm80

GROUPS = "sm80_backward_groups.cuh"
PRODUCTS = "group_products.cuh"
BLOCK = "sm80_backward_block.cuh"
SCORES = "sm80_backward_scores.cuh"
TILE = "matrix_tile.cuh"
WGMMA = "ptx/wgmma.cuh"

# The key says what is wrong with the mutant.
BACKWARD_GROUP_MUTANTS: dict[str, Mutant] = {
    # What products may read.
    "groups: copies aren't shown to products": sm80(
        GROUPS,
        "show_products();\n    __syncthreads();\n    copy_arrays",
        "__syncthreads();\n    copy_arrays",
        ["groups of rows"],
    ),
    "groups: cleared others aren't shown to products": sm80(
        GROUPS,
        "stage);\n      show_products();\n      __syncthreads();",
        "stage);\n      __syncthreads();",
        ["groups, hidden NaN"],
    ),
    "groups: the next tile arrives while this one is read": sm80(
        GROUPS,
        "params, block, block.work(), next, stage ^ 1);\n    copy_statistics",
        "params, block, block.work(), next, stage);\n    copy_statistics",
        ["groups of rows"],
    ),
    "groups: sums are multiplied with the first stage": sm80(
        GROUPS,
        "group_sums<T>(dS, block.first(stage)",
        "group_sums<T>(dS, block.first(0)",
        ["groups of rows"],
    ),
    # When they have ended.
    "groups: nobody waits for S": sm80(
        GROUPS,
        "wait_products<kApart ? 1 : 0>();",
        "wait_products<kApart ? 2 : 1>();",
        ["groups of rows"],
    ),
    "groups: nobody waits for dP": sm80(
        GROUPS,
        "wait_products<Config::kSecond ? 1 : 0>();",
        "wait_products<Config::kSecond ? 2 : 1>();",
        ["groups of keys"],
    ),
    "groups: nobody waits for gradients": sm80(
        GROUPS,
        "    wait_products<0>();\n    if constexpr (Config::kSecond) settle",
        "    if constexpr (Config::kSecond) settle",
        ["groups of keys"],
    ),
    "groups: S is no group of its own": sm80(
        GROUPS,
        "block.first(stage), S);\n    commit_products();",
        "block.first(stage), S);",
        ["groups of rows"],
    ),
    "groups: products begin without a fence": sm80(
        GROUPS,
        "begin_products();\n    group_product<T>(block.own_first()",
        "group_product<T>(block.own_first()",
        ["groups of rows"],
    ),
    # What they multiply.
    "groups: S adds to what was there": sm80(PRODUCTS, "step > 0);", "true);", ["groups of rows"]),
    "groups: columns of S lie closer": sm80(
        PRODUCTS, "step % 4 * 32;", "step % 4 * 16;", ["groups of rows"]
    ),
    "groups: S has the own first panel alone": sm80(
        PRODUCTS,
        "a.further(step / 4 * OwnTile::kPanelBytes + within)",
        "a.further(within)",
        ["groups at 128"],
    ),
    "groups: sums have the first panel alone": sm80(
        PRODUCTS,
        "MatrixDescriptor::of(others.base, OthersTile::kPanelBytes);",
        "MatrixDescriptor::of(others.base, 16);",
        ["groups at 128"],
    ),
    "groups: rows of sums lie closer": sm80(
        PRODUCTS,
        "step * 16 * OthersTile::kPitch",
        "step * 8 * OthersTile::kPitch",
        ["groups of rows"],
    ),
    "groups: sums have the transpose": sm80(
        PRODUCTS, "multiply_group<T, true>", "multiply_group<T, false>", ["groups of rows"]
    ),
    "groups: both have the first one's rows": sm80(
        BLOCK, "threadIdx.x / 128 * kGroupRows", "threadIdx.x / 256 * kGroupRows", ["two groups"]
    ),
    "groups: eight rows are four": sm80(
        WGMMA, "kEightRows = 1024 >> 4", "kEightRows = 512 >> 4", ["groups of rows"]
    ),
    "groups: pieces aren't turned": sm80(
        TILE, "(piece % 8 ^ (row & 7)) * 16", "piece % 8 * 16", ["groups of rows"]
    ),
    "groups: panels overlap": sm80(
        TILE, "piece / 8 * kPanelBytes + row", "piece / 8 * 128 + row", ["groups at 128"]
    ),
    # What is made of the products.
    "groups: a warp leaves the others": sm80(
        SCORES,
        "idle = !of_group(block).template any_visible<Block::kStep, Block::kGroupRows>();",
        "idle = !sees.template any_visible<Block::kStep, Block::kWarpRows>();",
        ["groups, causal"],
    ),
    "groups: dS isn't told what P hides": sm80(
        SCORES,
        "(kTells ? __uint_as_float(kHiddenWeight) : 0.0f)",
        "0.0f",
        ["groups, hidden NaN"],
    ),
    "groups: dS is 0 where P is": sm80(
        SCORES,
        "kTells && __float_as_uint(s) == kHiddenWeight ? 0.0f : derivative()",
        "__float_as_uint(s) == kHiddenWeight ? derivative() : 0.0f",
        ["groups of rows"],
    ),
    "groups: a shared bias' sums begin anew": sm80(
        SCORES,
        "pair_sums(r, 2 * pair + i) += dp;",
        "pair_sums(r, 2 * pair + i) = dp;",
        ["groups of a shared bias"],
    ),
}
