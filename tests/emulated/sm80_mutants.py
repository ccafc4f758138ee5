"""Defects of the tensor-core kernel, each with the problems that must bring it to light."""

from __future__ import annotations

from mutants import BLOCK_SM80, FORWARD_SM80, Mutant, sm80

EPILOGUE = "sm80_epilogue.cuh"
MATRIX_TILE = "matrix_tile.cuh"
FRAGMENTS = "fragments.cuh"
CAUSAL = ("float16, causal",)

# The key says what is wrong with the mutant.
SM80_MUTANTS: dict[str, Mutant] = {
    # The order of copies, barriers and warps.
    "no barrier before a copy over what was used": sm80(
        FORWARD_SM80, "wait_async<0>();\n  __syncthreads();\n}", "wait_async<0>();\n}"
    ),
    "a wait leaves a copy on its way": sm80(
        FORWARD_SM80,
        "wait_async<0>();\n  __syncthreads();\n}",
        "wait_async<1>();\n  __syncthreads();\n}",
    ),
    "the copy goes over the tile in use": sm80(
        FORWARD_SM80, "run<kSkip>(block.V(),", "run<kSkip>({block.K().base},"
    ),
    "the same keys twice": sm80(
        FORWARD_SM80,
        "copy_k<false>(params, block, block.work(), key + kBlockN);",
        "copy_k<false>(params, block, block.work(), key);",
        ["float16, aligned"],
    ),
    "values of the tile before": sm80(
        FORWARD_SM80,
        "copy_v<Config::kLeft>(params, block, key);",
        "copy_v<Config::kLeft>(params, block, key > 0 ? key - kBlockN : 0);",
        ["float16, aligned"],
    ),
    "the work is read before it is written": sm80(
        FORWARD_SM80,
        "scale_q(params, block);\n    __syncthreads();",
        "scale_q(params, block);",
    ),
    "the next tile's work is written while this one's is read": sm80(
        FORWARD_SM80,
        "schedule.round = block.work().round;\n    __syncthreads();",
        "schedule.round = block.work().round;",
        ["float16, one block"],
    ),
    # The products.
    "Q isn't scaled": sm80(
        FORWARD_SM80,
        "Block::CopyQ::scale(block.Q(), {nullptr, params.q.row, params.q.column}, factor);",
        "",
        ["float16, negative scale"],
    ),
    "Q is scaled before it has come": sm80(
        FORWARD_SM80,
        "wait_async<0>();\n  Block::CopyQ::scale",
        "Block::CopyQ::scale",
        ["float16, negative scale"],
    ),
    "a warp of idle rows is taken for a busy one's": sm80(
        "mask.cuh", "minimum(rows, kRows) - 1 + right >= 0", "right >= 0", CAUSAL
    ),
    "all warps have the block's first rows": sm80(
        BLOCK_SM80, "return threadIdx.x / 32 * kWarpRows;", "return 0;"
    ),
    "the masked columns are a lane off": sm80(
        "sm80_scores.cuh",
        "int end = sees.end(Scores::row_of(lane, r)) - Scores::column_of(lane, 0);",
        "int end = sees.end(Scores::row_of(lane, r)) - Scores::column_of(lane + 1, 0);",
    ),
    "pieces aren't permuted alike": sm80(
        MATRIX_TILE, "(address ^ (steps % kTurned * 32))", "(address + (steps % kTurned * 32))"
    ),
    "rows beyond the array are copied": sm80(
        MATRIX_TILE,
        "r * kDown < below && (!kSkip || r * kDown >= above) ? count : 0",
        "count",
    ),
    "columns beyond the array are copied": sm80(
        MATRIX_TILE,
        "minimum(maximum(columns - piece * kPieceElements, 0), kPieceElements)",
        "kPieceElements",
    ),
    "V isn't transposed": sm80(FRAGMENTS, "load_matrix_transposed(V", "load_matrix(V"),
    "halves of K's fragment are swapped": sm80(
        FRAGMENTS, "S.sum[t][2 * j], a[t], b[0], b[1]", "S.sum[t][2 * j], a[t], b[1], b[0]"
    ),
    "rows of P are swapped": sm80(
        FRAGMENTS, "pack_pair<T>(pair[i % 2 * 2]", "pack_pair<T>(pair[2 - i % 2 * 2]"
    ),
    # Rescaling.
    "O is not rescaled": sm80(
        FORWARD_SM80,
        "if (!Block::kRescaleSeldom || any_rescales(alpha)) scale_rows(O, alpha);",
        "",
    ),
    "wide values are not rescaled where a maximum rose": sm80(
        FORWARD_SM80,
        "return __any_sync(0xffffffffu, any);",
        "return false;",
        ["float16, wide values"],
    ),
    "the maximum isn't subtracted from what is rescaled": sm80(
        "softmax.cuh", "exp2_approx(below * unit_log2)", "1.0f"
    ),
    # The way out. O takes the place of Q alone unless values are wider.
    "a block without keys doesn't wait for Q": sm80(
        FORWARD_SM80,
        "wait_async<0>();\n    __syncthreads();\n    store_rows",
        "__syncthreads();\n    store_rows",
        ["float16, no keys"],
    ),
    "O is written over tiles that other warps read": sm80(
        FORWARD_SM80,
        "wait_async<0>();\n    __syncthreads();\n    store_rows",
        "wait_async<0>();\n    store_rows",
        ["float16, wide values"],
    ),
    "O is read before the warp has written it": sm80(
        EPILOGUE, "__syncwarp();\n  store_tile", "store_tile"
    ),
    "every warp's O lies in the same place": sm80(
        EPILOGUE, "threadIdx.x / 32 * Tile::kBytes", "0 * Tile::kBytes"
    ),
    "pieces of O are swapped": sm80(
        EPILOGUE, "load_shared<Words4>(tile.at(row, column / 8))", "load_shared<Words4>(tile.base)"
    ),
    "pieces beyond p are stored": sm80(
        EPILOGUE, "if (row >= rows || column >= columns) continue;", "if (row >= rows) continue;"
    ),
    "elements beyond p are stored": sm80(
        EPILOGUE, "if (column + e < columns) {", "if (true) {", ["float16, ragged out"]
    ),
    "rows beyond m are stored": sm80(
        EPILOGUE,
        "if (row >= rows || column >= columns) continue;",
        "if (column >= columns) continue;",
    ),
    "the lse of rows beyond m is stored": sm80(
        EPILOGUE, "if (row < tile.row_end) store_global", "store_global"
    ),
    "neighbours in O are swapped": sm80(
        EPILOGUE, ">> 16 * (e % 2)", ">> 16 * (1 - e % 2)", ["float16, ragged out"]
    ),
    "columns of out are taken for dense": sm80(
        EPILOGUE, "piece + e * o.column", "piece + e", ["float16, sliced out"]
    ),
    "a strided row is stored in pieces": sm80(
        EPILOGUE, "whole = o.column == 1 &&", "whole =", ["float16, sliced out"]
    ),
    "whole pieces aren't stored": sm80(
        EPILOGUE, "store_global(reinterpret_cast<Words4*>(piece), words);", ""
    ),
    "rows at odd distances are stored in pieces": sm80(
        EPILOGUE, "o.row % 8 == 0 &&", "", ["float16, out of odd pitch"]
    ),
    "the last piece is stored as a whole": sm80(
        EPILOGUE, "columns % 8 == 0 &&", "", ["float16, ragged out"]
    ),
    "rows at an odd address are stored in pieces": sm80(
        EPILOGUE,
        "reinterpret_cast<unsigned long long>(target) % 16 == 0",
        "true",
        ["float16, out at an odd address"],
    ),
    "rows without keys are divided": sm80(
        EPILOGUE, "softmax.empty(r) || largest", "largest", ["float16, causal, far left"]
    ),
    "all rows are divided by the first one's sum": sm80(
        EPILOGUE, "1.0f / softmax.l[r]", "1.0f / softmax.l[0]"
    ),
    "beside a row without keys all are divided by the first one's sum": sm80(
        EPILOGUE, "O(r, c), inverse[r])", "O(r, c), inverse[0])", ["float16, causal, far left"]
    ),
}
