"""Defects of what sm80 copies and writes in the backward pass, each with what shows it."""

from __future__ import annotations

from mutants import Mutant, sm80

COPIES = "sm80_backward_copies.cuh"
EPILOGUE = "sm80_backward_epilogue.cuh"

# The key says what is wrong with the mutant.
BACKWARD_SM80_MEMORY_MUTANTS: dict[str, Mutant] = {
    "own rows beyond the end are read": sm80(
        COPIES,
        "static_cast<int>(minimum(work.own.end, extent) - begin)",
        "Config::kBlockM",
        ["rows"],
    ),
    "the own matrix isn't scaled": sm80(
        COPIES, "if (factor == 1.0f) return;", "return;", ["negative scale"]
    ),
    "the own matrix is scaled before it has come": sm80(
        COPIES,
        "wait_async<0>();\n  TileCopy<typename Block::T, typename Block::OwnFirst",
        "TileCopy<typename Block::T, typename Block::OwnFirst",
        ["negative scale"],
    ),
    "keys beyond the end are read": sm80(
        COPIES,
        "block.first(stage), {work.first, first.row, first.column}, at, work.others - at,",
        "block.first(stage), {work.first, first.row, first.column}, at, Block::kOthers,",
        ["rows"],
    ),
    "rows before the first that sees are read": sm80(
        COPIES,
        "params.forward.d), kSkip ? work.skipped - at : 0",
        "params.forward.d), 0",
        ["NaN above"],
    ),
    "all tiles have the first one's statistics": sm80(
        COPIES, "work.statistics + at + pair * 2", "work.statistics + pair * 2", ["keys"]
    ),
    "the mask of keys is that of the first rows": sm80(
        COPIES, "row = Config::kOfKeys ? at : 0;", "row = 0;", ["mask of keys"]
    ),
    "arrays beyond the last key are read": sm80(
        COPIES,
        "Config::kOfKeys ? work.own_count : work.others - at",
        "Block::kTileKeys",
        ["mask of keys"],
    ),
    "no barrier before a copy over what was used": sm80(
        COPIES, "wait_async<0>();\n  __syncthreads();\n}", "wait_async<0>();\n}", ["rows"]
    ),
    "no wait before a tile is used": sm80(
        COPIES, "wait_async<0>();\n  __syncthreads();\n}", "__syncthreads();\n}", ["rows"]
    ),
    "gradients are read before the warp has written them": sm80(
        EPILOGUE, "    __syncwarp();\n", "", ["rows"]
    ),
    "gradients are read before other warps have written them": sm80(
        EPILOGUE,
        "if (Block::kExchange) {\n    __syncthreads();",
        "if (Block::kExchange) {",
        ["split"],
    ),
    "sums go over P that is still read": sm80(
        EPILOGUE,
        "parts = block.exchange(0).base;\n    __syncthreads();",
        "parts = block.exchange(0).base;",
        ["sums in a split"],
    ),
    "sums are read before all are written": sm80(
        EPILOGUE,
        "__float_as_uint(sums[r]));\n    }\n    __syncthreads();",
        "__float_as_uint(sums[r]));\n    }",
        ["sums in a split"],
    ),
    "hidden rows of dO are multiplied": sm80(
        COPIES,
        "store_shared(block.second(stage).at(other, piece), Words4{});",
        "",
        ["hidden NaN of dO"],
    ),
    "a block's first row alone decides what is hidden": sm80(
        COPIES, "own < work.own_count && !seen", "own < 1", ["hidden NaN"]
    ),
    "what dS isn't multiplied with is cleared": sm80(
        COPIES,
        "if constexpr (Config::kSecond) {\n#pragma unroll 1",
        "{\n#pragma unroll 1",
        ["hidden NaN in one step"],
    ),
    "all parts write the first columns": sm80(
        EPILOGUE,
        "first = block.part() * (OwnTile::kColumns / Block::kSplit)",
        "first = 0",
        ["split"],
    ),
    "parts of a sum lie in one place": sm80(
        EPILOGUE,
        "(block.part() * Config::kBlockM + row) * 4",
        "row * 4",
        ["sums in a split"],
    ),
    "gradients of all tiles go to the first rows": sm80(
        EPILOGUE, "(work.own.begin + row) * operand.row", "row * operand.row", ["rows"]
    ),
    "sums of rows beyond the end are stored": sm80(
        EPILOGUE, "block.part() == 0 && row < work.own_count", "block.part() == 0", ["scale"]
    ),
    "pairs before the first tile aren't cleared": sm80(
        EPILOGUE, "key >= first && key < behind", "key < behind", ["own pairs of a window"]
    ),
    "pairs lie as many keys off as rows": sm80(
        EPILOGUE, "return work.own.begin + work.entry", "return work.entry", ["own pairs"]
    ),
}
