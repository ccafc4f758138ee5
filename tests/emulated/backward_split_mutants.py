"""Defects of float32 gradients by warpgroups, each with the problems that bring it to light."""

from __future__ import annotations

from mutants import Mutant

SPLIT = "backward_split.cuh"
BLOCK = "split_backward_block.cuh"
ENTRIES = "simt_backward_entries.cuh"
GRADIENTS = "simt_backward_gradients.cuh"
ROLES = "split_roles.cuh"
PRODUCTS = "split_products.cuh"
TILE = "split_tile.cuh"

# The key says what is wrong with the mutant.
BACKWARD_SPLIT_MUTANTS: dict[str, Mutant] = {
    # Where the roles meet.
    "others aren't shown to products": Mutant(
        SPLIT,
        "show_products();\n  arrive<Block::kThreads>(kThere",
        "arrive<Block::kThreads>(kThere",
        ["rows"],
    ),
    "own operands aren't shown to products": Mutant(
        SPLIT,
        "show_products();\n  meet<Block::kGroupThreads>(kGroupsMeet);\n  for",
        "meet<Block::kGroupThreads>(kGroupsMeet);\n  for",
        ["rows"],
    ),
    "others are there before they are stored": Mutant(
        SPLIT,
        "  SplitCopy<Block::kProviders, Tile, Block::kPieces>",
        "  arrive<Block::kThreads>(kThere[kNumber]);\n"
        "  if (first) return;\n"
        "  SplitCopy<Block::kProviders, Tile, Block::kPieces>",
        ["rows"],
    ),
    "the provider doesn't wait for a free place": Mutant(
        SPLIT, "if (!first) meet<Block::kThreads>(kFree[kNumber]);", "", ["rows"]
    ),
    "the provider waits for the first place": Mutant(
        SPLIT, "if (!first) meet<Block::kThreads>", "meet<Block::kThreads>", ["rows"]
    ),
    "others are stored before their place is free": Mutant(
        TILE,
        "if (done == 0) until_free();\n#pragma unroll\n      for (int r = 0; r < kAtOnce; ++r) "
        "store(tile, at + r * kDown, piece, factor, value[r]);",
        "for (int r = 0; r < kAtOnce; ++r) "
        "store(tile, at + r * kDown, piece, factor, value[r]);\n"
        "      if (done == 0) until_free();",
        ["rows"],
    ),
    "nobody waits for the second of the others": Mutant(
        SPLIT,
        "meet<kThreads>(kThere[2]);\n      start_product",
        "start_product",
        ["rows"],
    ),
    "dv's dO isn't waited for": Mutant(
        SPLIT, "if constexpr (!Block::kScores) meet<kThreads>(kThere[2]);", "", ["v"]
    ),
    "both operands have one free place": Mutant(
        SPLIT, "kFree[3] = {0, 3, 4}", "kFree[3] = {0, 3, 3}", ["rows"]
    ),
    "a place is free while dP is multiplied": Mutant(
        SPLIT,
        "wait_products<0>();\n    settle(X.sum[0]);\n"
        "    if constexpr (Block::kScores) settle(dP.sum[0]);\n"
        "    if (!Config::kSecond && !last) arrive<kThreads>(kFree[2]);\n",
        "if (!Config::kSecond && !last) arrive<kThreads>(kFree[2]);\n"
        "    wait_products<0>();\n    settle(X.sum[0]);\n"
        "    if constexpr (Block::kScores) settle(dP.sum[0]);\n",
        ["rows"],
    ),
    "a place is free before dq or dk is added": Mutant(
        SPLIT,
        "add_split_sums(dS, block.template others<1>(), one, G.first);\n"
        "      if (!last) arrive<kThreads>(kFree[1]);",
        "if (!last) arrive<kThreads>(kFree[1]);\n"
        "      add_split_sums(dS, block.template others<1>(), one, G.first);",
        ["rows"],
    ),
    "a place is free before dv is added": Mutant(
        SPLIT,
        "add_split_sums(P, block.template others<2>(), one, G.second);\n"
        "      if (!last) arrive<kThreads>(kFree[2]);",
        "if (!last) arrive<kThreads>(kFree[2]);\n"
        "      add_split_sums(P, block.template others<2>(), one, G.second);",
        ["keys"],
    ),
    "a place isn't freed where dv alone is wanted": Mutant(
        SPLIT, "if (!Config::kFirst && !last) arrive<kThreads>(kFree[1]);", "", ["v"]
    ),
    "a place isn't freed where dv isn't wanted": Mutant(
        SPLIT, "if (!Config::kSecond && !last) arrive<kThreads>(kFree[2]);", "", ["k"]
    ),
    "the last place of an entry is freed": Mutant(
        SPLIT,
        "G.first);\n      if (!last) arrive<kThreads>(kFree[1])",
        "G.first);\n      arrive<kThreads>(kFree[1])",
        ["rows"],
    ),
    "the last place of dv is freed": Mutant(
        SPLIT,
        "G.second);\n      if (!last) arrive",
        "G.second);\n      arrive",
        ["keys"],
    ),
    "a barrier is of the groups alone": Mutant(
        SPLIT,
        "arrive<Block::kThreads>(kThere[kNumber])",
        "arrive<Block::kGroupThreads>(kThere[kNumber])",
        ["rows"],
    ),
    "a barrier of the groups is of the block": Mutant(
        SPLIT,
        "show_products();\n  meet<Block::kGroupThreads>(kGroupsMeet);\n  for",
        "show_products();\n  meet<Block::kThreads>(kGroupsMeet);\n  for",
        ["rows"],
    ),
    "the early operand is provided twice": Mutant(
        SPLIT, "provide_others<3 - kEarly<Config>,", "provide_others<kEarly<Config>,", ["rows"]
    ),
    "the provider leaves after the first entry": Mutant(
        SPLIT,
        "share < params.shares; ++share) {\n        begin_entry<Config>(params, schedule, block, "
        "share);\n        provide_entry",
        "share < 1; ++share) {\n        begin_entry<Config>(params, schedule, block, "
        "share);\n        provide_entry",
        ["heads"],
    ),
    "the provider knows of no second pass": Mutant(
        SPLIT, "careful = needs_care<Config>(true);", "careful = false;", ["hidden NaN"]
    ),
    # When products have ended.
    "nobody waits for S": Mutant(SPLIT, "wait_products<0>();\n    settle(X", "settle(X", ["rows"]),
    "products begin without a fence": Mutant(
        SPLIT, "begin_products();\n  split_product", "split_product", ["rows"]
    ),
    "S is no group": Mutant(SPLIT, "X);\n  commit_products();", "X);", ["rows"]),
    # What they multiply.
    "the own factor is forgotten": Mutant(
        SPLIT,
        "static_cast<float>(params.forward.scale_q) : 1.0f",
        "0.0f * static_cast<float>(params.forward.scale_q) + 1.0f : 1.0f",
        ["rows"],
    ),
    "both own operands have the factor": Mutant(
        SPLIT, "kNumber == 1 ? static_cast<float>", "kNumber > 0 ? static_cast<float>", ["rows"]
    ),
    "dP and S are swapped": Mutant(
        SPLIT,
        "start_product<2>(block, dP);\n    }\n    meet<kThreads>(kThere[1]);\n"
        "    start_product<1>(block, X);",
        "start_product<2>(block, X);\n    }\n    meet<kThreads>(kThere[1]);\n"
        "    if constexpr (Block::kScores) start_product<1>(block, dP);\n"
        "    if constexpr (!Block::kScores) start_product<1>(block, X);",
        ["rows"],
    ),
    "others are swapped": Mutant(
        SPLIT,
        "block.group_row(), block.template others<kNumber>(), X)",
        "block.group_row(), block.template others<3 - kNumber>(), X)",
        ["rows"],
    ),
    "the others' columns are swapped": Mutant(
        SPLIT,
        "Sides<Config>::template columns<kNumber>(params), work.others.begin",
        "Sides<Config>::template columns<3 - kNumber>(params), work.others.begin",
        ["rows"],
    ),
    "dv is made of dS": Mutant(SPLIT, "P(X);", "P(dP);", ["keys"]),
    "dk is made of P": Mutant(SPLIT, "dS(Config::kSecond ? dP : X)", "dS(X)", ["keys"]),
    "both groups have the first one's rows": Mutant(
        ROLES, "threadIdx.x / 128 * 64", "threadIdx.x / 256 * 64", ["rows"]
    ),
    "the second operand lies on the first one": Mutant(
        BLOCK, "kNumber == 1 ? kOthers1 : kOthers2", "kNumber == 1 ? kOthers1 : kOthers1", ["rows"]
    ),
    "P's smallest terms are lost": Mutant(
        PRODUCTS,
        "for (int t = 0; t < kTerms; ++t) a[t][step][i] = terms[t];",
        "for (int t = 0; t < kTerms; ++t) a[t][step][i] = t < 2 ? terms[t] : 0u;",
        ["keys"],
    ),
    # What others are and are not.
    "others beyond the end are read": Mutant(
        SPLIT,
        "other, work.others.end,",
        "other, other + Block::kBlockN,",
        ["rows"],
    ),
    "the tail of the others isn't zero": Mutant(
        TILE,
        "r < kAtOnce; ++r) store(",
        "r < kAtOnce; ++r) if (at + r * kDown < rows) store(",
        ["few keys"],
    ),
    "others before the first that is seen are read": Mutant(
        SPLIT, "template run<Block::kSkip>", "template run<false>", ["NaN to the left"]
    ),
    "keys' others are never skipped": Mutant(
        BLOCK,
        "kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft",
        "kSkip = !Config::kOfKeys && Config::kLeft",
        ["NaN above"],
    ),
    "hidden others of dq and dk aren't cleared": Mutant(
        SPLIT,
        "if constexpr (Config::kFirst) block.template others<1>().clear(j);",
        "",
        ["hidden NaN"],
    ),
    "hidden others of dv aren't cleared": Mutant(
        SPLIT,
        "if constexpr (Config::kSecond) block.template others<2>().clear(j);",
        "",
        ["hidden NaN of dO"],
    ),
    "cleared others aren't shown to products": Mutant(
        SPLIT,
        "      show_products();\n      meet<Block::kGroupThreads>(kGroupsMeet);\n    }",
        "      meet<Block::kGroupThreads>(kGroupsMeet);\n    }",
        ["hidden NaN"],
    ),
    "a group goes on before hidden others are cleared": Mutant(
        SPLIT,
        "      show_products();\n      meet<Block::kGroupThreads>(kGroupsMeet);\n    }",
        "      show_products();\n    }",
        ["hidden NaN"],
    ),
    # Sums.
    "spans don't end": Mutant(
        SPLIT, "if (G.ends_span(block, other)) G.end_span(params, block);", "", ["many keys"]
    ),
    "what spans hold isn't looked at": Mutant(
        GRADIENTS, "(broken >> r & 1u) == 0 && (", "(", ["hidden NaN of many keys"]
    ),
    "sums begin with what the entry before left": Mutant(
        ENTRIES, "*block.sums_of(block.row_of(r)) = {};", "{}", ["slopes of heads"]
    ),
    # Rows that aren't finite.
    "rows that aren't finite stay so": Mutant(
        ENTRIES,
        "if (own < tile.end) differentiate_own",
        "if (false) differentiate_own",
        ["a large row"],
    ),
    "a thread's other row is computed again": Mutant(
        ENTRIES, "&& !G.finite(r);", "&& !G.finite(Block::kRows - 1 - r);", ["a large row"]
    ),
    "another lane's row is computed again": Mutant(
        ENTRIES, "block.row_of(r), 4 * i)", "block.row_of(r), i)", ["a large row"]
    ),
    "a row that is computed again is overwritten": Mutant(
        ENTRIES,
        "G.store(params, block, tile);\n  if constexpr (Block::kSplit) {\n    __syncwarp();\n"
        "    differentiate_unsplit<Config>(params, schedule, block, tile, broken);\n  }",
        "if constexpr (Block::kSplit) {\n"
        "    differentiate_unsplit<Config>(params, schedule, block, tile, broken);\n"
        "    __syncwarp();\n  }\n  G.store(params, block, tile);",
        ["a large row"],
    ),
}
