"""Defects of float32 by warpgroups, each with the problems that must bring it to light."""

from __future__ import annotations

from mutants import Mutant

PRODUCTS = "split_products.cuh"
TILE = "split_tile.cuh"
BLOCK = "split_block.cuh"
ROLES = "split_roles.cuh"
FORWARD = "forward_split.cuh"
EPILOGUE = "simt_epilogue.cuh"

# The key says what is wrong with the mutant.
SPLIT_MUTANTS = {
    # Terms.
    "the largest of K times the smallest of Q is lost": Mutant(
        PRODUCTS,
        "i <= order; ++i) {\n      // Where",
        "i < order + (order == 0); ++i) {\n      // Where",
    ),
    "the smallest of V times the largest of P is lost": Mutant(
        PRODUCTS,
        "for (int i = 0; i <= order; ++i) {\n      const unsigned base",
        "for (int i = 0; i <= order; ++i) {\n"
        "      if (order - i == 2) {\n"
        "        for (auto& four : G.sum[0])\n          for (float& x : four) x = 0;\n"
        "        continue;\n      }\n"
        "      const unsigned base",
        ["one key"],
    ),
    "the terms of K are those of Q": Mutant(
        PRODUCTS, "others.term(order - i).base), 16)", "others.term(i).base), 16)"
    ),
    "the terms of V are those of P": Mutant(
        PRODUCTS, "others.term(order - i).base) + panel", "others.term(i).base) + panel"
    ),
    "two terms are all": Mutant(
        TILE,
        "terms[t] = pack_pair<BFloat16>(low, high);",
        "terms[t] = t < 2 ? pack_pair<BFloat16>(low, high) : 0u;",
    ),
    "one term is all": Mutant(
        TILE,
        "terms[t] = pack_pair<BFloat16>(low, high);",
        "terms[t] = t < 1 ? pack_pair<BFloat16>(low, high) : 0u;",
        ["two terms"],
    ),
    "the second number's rest is the first one's": Mutant(
        TILE,
        "high -= __uint_as_float(terms[t] & 0xffff0000u)",
        "high -= __uint_as_float(terms[t] << 16)",
    ),
    "a term's pairs are swapped": Mutant(
        TILE,
        "terms[t] = pack_pair<BFloat16>(low, high);",
        "terms[t] = pack_pair<BFloat16>(high, low);",
    ),
    "the largest terms are stored last": Mutant(
        TILE,
        "store_shared(tile.term(t).at(row, piece), words[t])",
        "store_shared(tile.term(Tile::kTerms - 1 - t).at(row, piece), words[t])",
        ["one key"],
    ),
    "terms share a place": Mutant(TILE, "base + t * Term::kBytes", "base"),
    "P's fragments are in another order": Mutant(
        PRODUCTS, "4 * step + i / 2 * 2;", "4 * step + i % 2 * 2;"
    ),
    "P's rows are swapped": Mutant(
        PRODUCTS,
        "split_pair(X(i % 2, c), X(i % 2, c + 1)",
        "split_pair(X(1 - i % 2, c), X(1 - i % 2, c + 1)",
    ),
    "a product adds to what was there": Mutant(
        PRODUCTS,
        "step / 4 * Others::Term::kPanelBytes + within),\n"
        "                                 order < kTerms - 1 || i > 0 || step > 0);",
        "step / 4 * Others::Term::kPanelBytes + within), true);",
    ),
    # Places in shared memory.
    "columns of S lie closer": Mutant(PRODUCTS, "step % 4 * 32;", "step % 4 * 16;"),
    "S has Q's first panel alone": Mutant(
        PRODUCTS,
        "a.further(step / 4 * Own::Term::kPanelBytes + within)",
        "a.further(within)",
        ["wide"],
    ),
    "S has K's first panel alone": Mutant(
        PRODUCTS,
        "b.further(step / 4 * Others::Term::kPanelBytes + within)",
        "b.further(within)",
        ["wide"],
    ),
    "every panel of O is the first": Mutant(
        PRODUCTS, " + panel * Others::Term::kPanelBytes;", ";", ["wide"]
    ),
    "rows of V lie closer": Mutant(
        PRODUCTS, "step * 16 * Others::Term::kPitch", "step * 8 * Others::Term::kPitch"
    ),
    "both groups have the first one's rows": Mutant(
        ROLES, "threadIdx.x / 128 * 64", "threadIdx.x / 256 * 64"
    ),
    "V takes K's place": Mutant(
        BLOCK, "{shared + QTile::kBytes + KTile::kBytes}", "{shared + QTile::kBytes}"
    ),
    "pairs take the place of V": Mutant(
        BLOCK,
        "shared_memory() + kTileBytes)",
        "shared_memory() + kTileBytes - VTile::kBytes)",
        ["mask"],
    ),
    # What is waited for and shown.
    "K isn't shown to products": Mutant(
        FORWARD,
        "show_products();\n    arrive<kThreads>(kKeysThere)",
        "arrive<kThreads>(kKeysThere)",
    ),
    "V isn't shown to products": Mutant(
        FORWARD,
        "show_products();\n    arrive<kThreads>(kValuesThere)",
        "arrive<kThreads>(kValuesThere)",
    ),
    "Q isn't shown to products": Mutant(
        FORWARD,
        "show_products();\n    meet<Block::kGroupThreads>(kGroupsMeet);\n    typename",
        "typename",
    ),
    "K is overwritten while it is multiplied": Mutant(
        FORWARD,
        "if (key > 0) meet<kThreads>(kKeysFree);",
        "if (key > 0) arrive<kThreads>(kKeysFree);",
    ),
    "V is overwritten while it is multiplied": Mutant(
        FORWARD,
        "if (key > 0) meet<kThreads>(kValuesFree);",
        "if (key > 0) arrive<kThreads>(kValuesFree);",
    ),
    "K is free before S is there": Mutant(
        FORWARD,
        "commit_products();\n    wait_products<0>();\n    settle(S.sum[0]);\n"
        "    if (!last) arrive<kThreads>(kKeysFree);\n",
        "commit_products();\n    if (!last) arrive<kThreads>(kKeysFree);\n"
        "    wait_products<0>();\n    settle(S.sum[0]);\n",
    ),
    "the last keys are waited for once more": Mutant(
        FORWARD,
        "settle(S.sum[0]);\n    if (!last) arrive",
        "settle(S.sum[0]);\n    arrive",
    ),
    "V is never free": Mutant(FORWARD, "O);\n    if (!last) arrive<kThreads>(kValuesFree);", "O);"),
    "S is multiplied before K is there": Mutant(
        FORWARD, "    meet<kThreads>(kKeysThere);", "    arrive<kThreads>(kKeysThere);"
    ),
    "P is multiplied before V is there": Mutant(
        FORWARD,
        "P(S);\n    meet<kThreads>(kValuesThere);",
        "P(S);\n    arrive<kThreads>(kValuesThere);",
    ),
    "the provider goes on before a tile ends": Mutant(
        FORWARD,
        "provide<Config>(params, block, tile);\n      meet<",
        "provide<Config>(params, block, tile);\n      arrive<",
        ["one block"],
    ),
    "a group that sees nothing of a tile takes no part": Mutant(
        FORWARD,
        "      if (!last) arrive<kThreads>(kKeysFree);\n      meet<kThreads>(kValuesThere);\n",
        "",
        ["NaN to the left"],
    ),
    "nobody waits for S": Mutant(
        FORWARD, "commit_products();\n    wait_products<0>();\n", "commit_products();\n"
    ),
    "nobody waits for the sums": Mutant(PRODUCTS, "    wait_products<0>();\n", ""),
    "products of P begin without a fence": Mutant(PRODUCTS, "    begin_products();\n", ""),
    "hidden values aren't cleared": Mutant(
        FORWARD, "      attended.clear_hidden_values(block, key);\n", "", ["hidden NaN"]
    ),
    "cleared values aren't shown": Mutant(
        FORWARD,
        "clear_hidden_values(block, key);\n      show_products();\n",
        "clear_hidden_values(block, key);\n",
        ["hidden NaN"],
    ),
    "half of a hidden row is cleared": Mutant(
        TILE, "piece < Term::kPieces; ++piece", "piece < Term::kPieces / 2; ++piece", ["hidden NaN"]
    ),
    # Sums.
    "sums aren't rescaled": Mutant(
        FORWARD, "return alpha[r]; }", "return 0.0f * alpha[r] + 1.0f; }"
    ),
    "sums are rescaled as the other row's": Mutant(
        FORWARD, "return alpha[r]; }", "return alpha[1 - r]; }"
    ),
    "columns of the second panel go to the first": Mutant(
        PRODUCTS, "G(r, panel * sums.kColumns + c)", "G(r, c)", ["wide"]
    ),
    # Copies.
    "the factor of q is forgotten": Mutant(
        FORWARD,
        "static_cast<float>(params.scale_q)",
        "1.0f + 0.0f * static_cast<float>(params.scale_q)",
    ),
    "the factor of q is K's too": Mutant(
        FORWARD,
        "attended.skipped, 1.0f, [&] {\n          if (key > 0) meet<kThreads>(kKeysFree)",
        "attended.skipped, 0.5f, [&] {\n          if (key > 0) meet<kThreads>(kKeysFree)",
    ),
    "rows beyond the end are read": Mutant(
        TILE, "here < rows && here >= skipped", "here >= skipped"
    ),
    "rows beyond the end aren't cleared": Mutant(
        TILE,
        "r < kAtOnce; ++r) store(",
        "r < kAtOnce; ++r) if (at + r * kDown < rows) store(",
        ["few keys"],
    ),
    "rows that are skipped are read": Mutant(
        TILE, "here < rows && here >= skipped", "here < rows", ["NaN to the left"]
    ),
    "a row too many is skipped": Mutant(
        TILE, "here >= skipped", "here > skipped", ["NaN to the left"]
    ),
    "columns beyond the end are read": Mutant(
        TILE,
        "e < count ? load_global(source + e * stride) : 0.0f",
        "load_global(source + e * stride)",
    ),
    "odd rows are taken for whole pieces": Mutant(
        TILE, "matrix.row_stride % 4 == 0", "true", ["odd pitch"]
    ),
    "odd addresses are taken for whole pieces": Mutant(
        TILE,
        "columns % kPiece == 0 &&\n                       "
        "reinterpret_cast<unsigned long long>(matrix.data) % 16 == 0",
        "columns % kPiece == 0",
        ["odd address"],
    ),
    "columns apart are taken for whole pieces": Mutant(
        TILE, "matrix.column_stride == 1", "true", ["sliced"]
    ),
    "a part of a piece is taken for a whole one": Mutant(
        TILE, "columns % kPiece == 0", "true", ["odd columns"]
    ),
    "rows of a thread are one apart": Mutant(TILE, "here = at + r * kDown", "here = at + r"),
    # Rows that aren't finite.
    "rows that aren't finite stay so": Mutant(
        EPILOGUE,
        "if (row < tile.row_end) attend_row",
        "if (false) attend_row",
        ["largest", "a large row"],
    ),
    "the other row of a thread is computed again": Mutant(
        EPILOGUE,
        "!softmax.finite(r, O);",
        "!softmax.finite(Block::kRows - 1 - r, O);",
        ["a large row"],
    ),
    "another lane's row is computed again": Mutant(
        EPILOGUE, "block.row_of(r), 4 * i)", "block.row_of(r), i)", ["a large row"]
    ),
    "every row is computed again": Mutant(
        EPILOGUE, "broken[r] && block.thread_m % 8 == i", "block.thread_m % 8 == i", ["a large row"]
    ),
    "results of a row computed again are overwritten": Mutant(
        EPILOGUE,
        "store_rows<Config>(params, block, tile, softmax, O);\n  if constexpr (Block::kSplit) {\n"
        "    __syncwarp();\n    attend_unsplit<Config>(params, block, tile, broken);\n  }",
        "if constexpr (Block::kSplit) attend_unsplit<Config>(params, block, tile, broken);\n"
        "  store_rows<Config>(params, block, tile, softmax, O);",
        ["a large row"],
    ),
}
