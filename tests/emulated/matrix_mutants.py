"""Defects of float64 on the tensor cores, each with the problems that must bring it to light."""

from __future__ import annotations

from mutants import SIMT, Mutant

THREADS = "matrix_threads.cuh"
BACKWARD_BLOCK = "simt_backward_block.cuh"

# Of the forward pass.
MATRIX_MUTANTS = {
    # Fragments.
    "rows of fragments overlap": Mutant(THREADS, "(8 * kRows) + thread_m % 8", "8 + thread_m % 8"),
    "eight rows further is forgotten": Mutant(THREADS, "thread_m % 8 + r * 8", "thread_m % 8"),
    "columns of sums are four apart": Mutant(
        THREADS,
        "(j / 2 * kThreadsN + thread_n) * 2 + j % 2;",
        "j / 2 * kThreadsN * 2 + thread_n + j % 2 * 4;",
    ),
    "rows of the left fragment are swapped": Mutant(
        THREADS, "row_of(2 * t + i % 2), column", "row_of(2 * t + 1 - i % 2), column"
    ),
    "columns of the left fragment are another's": Mutant(
        THREADS, "column + i / 2 * 4 + place()", "column + i / 2 + place() * 4"
    ),
    "columns of K are in another order than Q's": Mutant(
        THREADS, "right_of(j), k + 4 * i + place());", "right_of(j), k + i + 4 * place());"
    ),
    "every 16 columns of Q are the first": Mutant(
        THREADS, "load_left(rows, column + k, a)", "load_left(rows, column, a)"
    ),
    "keys of P are in another order than V's": Mutant(
        THREADS, "others.at(other_of(k + i), right", "others.at(4 * k + 4 * i + place(), right"
    ),
    "rows of P take their keys' place": Mutant(
        THREADS, "weights(2 * t + i % 2, k + i / 2)", "weights(2 * t + i / 4, k + i % 4)"
    ),
    "every product of P has the first keys": Mutant(
        THREADS, "weights(2 * t + i % 2, k + i / 2)", "weights(2 * t + i % 2, i / 2)"
    ),
    "the second column's sum goes to the first": Mutant(
        THREADS, "X(2 * t, 2 * j + 1) = c[1];", "X(2 * t, 2 * j) = c[1];"
    ),
    "a sum of the second row is lost": Mutant(THREADS, "X(2 * t + 1, 2 * j + 1) = c[3];", ""),
    "a sum begins anew": Mutant(
        THREADS, "X(2 * t + 1, 2 * j), X(2 * t", "0.0 * X(2 * t + 1, 2 * j), X(2 * t"
    ),
    # When copies arrive.
    "nobody waits for a tile": Mutant(
        THREADS, "const Tile&, A) const {\n    wait_async<0>();", "const Tile&, A) const {"
    ),
    "nobody waits for the tile after the last": Mutant(
        THREADS, "finish() const { wait_async<0>(); }", "finish() const {}"
    ),
    "copies are in no group": Mutant(THREADS, "    commit_async();\n", ""),
    "K is read before all have waited for it": Mutant(
        SIMT, "next_k.store(block.K, A(1));\n      __syncthreads();", "next_k.store(block.K, A(1));"
    ),
    "V is read before all have waited for it": Mutant(
        SIMT, "next_v.store(block.V, A(1));\n      __syncthreads();", "next_v.store(block.V, A(1));"
    ),
    "the next K arrives while this one is read": Mutant(
        SIMT,
        "      block.product_of_columns(block.Q",
        "      next_k.template fetch<kLeft>(k, key + Block::kBlockN, keys.end, 0, params.d, "
        "keys.begin);\n      block.product_of_columns(block.Q",
    ),
    "the next V arrives while this one is read": Mutant(
        SIMT,
        "        block.product_of_fragments",
        "        next_v.template fetch<kLeft>(v, key + Block::kBlockN, keys.end, 0, params.p, "
        "keys.begin);\n        block.product_of_fragments",
    ),
    "hidden values aren't cleared": Mutant(
        SIMT, "Arrays::kHide && careful", "false", ["hidden NaN"]
    ),
    # Where they go.
    "V goes to K's place": Mutant(SIMT, "K.data + (kMatrix ? kStageK : 0)", "K.data"),
    "K goes to the place of pairs": Mutant(
        SIMT, "P.data + kPairElements", "P.data", ["mask", "softcap"]
    ),
    "rows in shared memory lie closer": Mutant(
        THREADS, "target + r * Tile::kPitch * 8", "target + r * (Tile::kPitch - 2) * 8"
    ),
    # What they copy.
    "every tile is the first": Mutant(
        THREADS, "matrix.data + row * matrix.row_stride +", "matrix.data +"
    ),
    "a row is the next one's": Mutant(
        THREADS, "opaque(kDown * matrix.row_stride)", "opaque(kDown * matrix.row_stride + 2)"
    ),
    "rows beyond the end are read": Mutant(THREADS, " && first_row + r < rows", ""),
    "rows beyond the end aren't cleared": Mutant(
        THREADS, "copy_async<8 * kElements>", "if (present) copy_async<8 * kElements>", ["few keys"]
    ),
    "rows that are skipped are read": Mutant(
        THREADS, " && first_row + r >= skipped;", ";", ["NaN to the left"]
    ),
    "a row too many is skipped": Mutant(
        THREADS, "first_row + r >= skipped", "first_row + r > skipped", ["NaN to the left"]
    ),
    "columns beyond the end are read": Mutant(THREADS, "= x < columns &&", "="),
    "odd rows are taken for pairs": Mutant(
        THREADS, "matrix.row_stride % 2 == 0", "true", ["odd pitch"]
    ),
    "odd addresses are taken for pairs": Mutant(
        THREADS,
        "column_end % 2 == 0 &&\n                       "
        "reinterpret_cast<unsigned long long>(matrix.data) % 16 == 0",
        "column_end % 2 == 0",
        ["odd address"],
    ),
    "half a pair beyond the end is copied": Mutant(
        THREADS, "column_end % 2 == 0", "true", ["odd columns"]
    ),
    "columns apart are taken for pairs": Mutant(
        THREADS, "matrix.column_stride == 1", "true", ["sliced"]
    ),
    "single numbers are taken for dense": Mutant(
        THREADS, "+ x * matrix.column_stride;", "+ x;", ["transposed"]
    ),
}

# Of the backward pass.
BACKWARD_MATRIX_MUTANTS = {
    "rows of fragments overlap": Mutant(THREADS, "(8 * kRows) + thread_m % 8", "8 + thread_m % 8"),
    "eight rows further is forgotten": Mutant(THREADS, "thread_m % 8 + r * 8", "thread_m % 8"),
    "columns of sums are four apart": Mutant(
        THREADS,
        "(j / 2 * kThreadsN + thread_n) * 2 + j % 2;",
        "j / 2 * kThreadsN * 2 + thread_n + j % 2 * 4;",
    ),
    "rows of the left fragment are swapped": Mutant(
        THREADS, "row_of(2 * t + i % 2), column", "row_of(2 * t + 1 - i % 2), column"
    ),
    "others are in another order than the weights'": Mutant(
        THREADS, "others.at(k + 4 * i + place(), right", "others.at(k + i + 4 * place(), right"
    ),
    "every 16 weights are the first": Mutant(
        THREADS, "load_left(weights, other + k, a)", "load_left(weights, other, a)"
    ),
    "columns of others are in another order than own ones": Mutant(
        THREADS,
        "right_of(j), k + 4 * i + place());",
        "right_of(j), k + i + 4 * place());",
        ["wide"],
    ),
    "the second row's sum goes to the first": Mutant(
        THREADS, "X(2 * t + 1, 2 * j) = c[2];", "X(2 * t, 2 * j) = c[2];"
    ),
    "a thread's columns are single": Mutant(THREADS, "kPack = 2;", "kPack = 1;"),
    "own operands share a place": Mutant(
        BACKWARD_BLOCK, "shared + (kResident ? kOwn1 : 0)", "shared"
    ),
    "pairs take the second operand's place": Mutant(
        BACKWARD_BLOCK, "{shared + kOwn1 + kOwn2}", "{shared + kOwn1}"
    ),
    "the stage begins within the pairs": Mutant(
        BACKWARD_BLOCK,
        "pairs().data + kBlockM * PairTile::kPitch",
        "pairs().data + kBlockN * PairTile::kPitch",
    ),
    "warps that share rows have the same columns": Mutant(
        THREADS, "8 * (j * kParts + thread_n / 4)", "8 * (j * kParts)", ["wider"]
    ),
    "warps that share rows have rows of their own": Mutant(
        THREADS, "threadIdx.x / (32 * kParts) * 8", "threadIdx.x / 32 * 8", ["wider"]
    ),
    "warps that share rows have columns of their own sums alone": Mutant(
        THREADS, "threadIdx.x / 32 % kParts * 4", "0", ["wider"]
    ),
    "sums of pairs begin within the stage": Mutant(
        BACKWARD_BLOCK, "sizeof(A) * (stage() + kStage - shared)", "sizeof(A) * kOwn1", ["sums"]
    ),
}
