"""Defects of float32 and float64 by mma.sync, each with the problems that show it."""

from __future__ import annotations

from mutants import SIMT, Mutant

THREADS = "matrix_threads.cuh"
FRAGMENTS = "fragment_threads.cuh"
FACTORS = "matrix_factors.cuh"
BLOCK = "simt_block.cuh"
BACKWARD_BLOCK = "simt_backward_block.cuh"

# Of the forward pass.
MATRIX_MUTANTS = {
    # Fragments.
    "rows of fragments overlap": Mutant(
        FRAGMENTS, "(8 * kRows) + thread_m % 8", "8 + thread_m % 8"
    ),
    "eight rows further is forgotten": Mutant(FRAGMENTS, "thread_m % 8 + r * 8", "thread_m % 8"),
    "columns of sums are four apart": Mutant(
        FRAGMENTS,
        "(j / 2 * kThreadsN + thread_n) * 2 + j % 2;",
        "j / 2 * kThreadsN * 2 + thread_n + j % 2 * 4;",
    ),
    "rows of the left fragment are swapped": Mutant(
        THREADS, "row_of(2 * t + i % 2), column", "row_of(2 * t + 1 - i % 2), column"
    ),
    "columns of the left fragment are another's": Mutant(
        THREADS,
        "column + k + 16 * s + 4 * i + place(); }, a[s]",
        "column + k + 16 * s + i + 4 * place(); }, a[s]",
    ),
    "columns of K are in another order than Q's": Mutant(
        THREADS, "right_of(j), k + 16 * s + 4 * i + place())", "right_of(j), k + 16 * s + 15 - i)"
    ),
    "every 16 columns of Q are the first": Mutant(
        THREADS, "return column + k + 16 * s + 4 * i", "return column + 4 * i"
    ),
    "keys of P are in another order than V's": Mutant(
        THREADS, "others.at(other_of(4 * s + i), right", "others.at(16 * s + 4 * i + place(), right"
    ),
    "rows of P take their keys' place": Mutant(
        THREADS,
        "weights(2 * t + i % 2, 4 * s + i / 2)",
        "weights(2 * t + i / 4, 4 * s + i % 4)",
    ),
    "every product of P has the first keys": Mutant(
        THREADS, "weights(2 * t + i % 2, 4 * s + i / 2)", "weights(2 * t + i % 2, i / 2)"
    ),
    "the second column's sum goes to the first": Mutant(
        THREADS,
        "X(2 * t + i / 2, 2 * j + i % 2);\n          x = multiply_add",
        "X(2 * t + i / 2, 2 * j);\n          x = multiply_add",
    ),
    "a sum of the second row goes to the first": Mutant(
        THREADS,
        "X(2 * t + i / 2, 2 * j + i % 2);\n          x = multiply_add",
        "X(2 * t, 2 * j + i % 2);\n          x = multiply_add",
    ),
    "a sum begins anew": Mutant(
        THREADS, "multiply_add(x, alpha[2 * t + i / 2], sum[t][i])", "sum[t][i]"
    ),
    "sums aren't rescaled": Mutant(
        THREADS, "multiply_add(x, alpha[2 * t + i / 2], sum[t][i])", "x + sum[t][i]"
    ),
    "sums are rescaled as another row's": Mutant(
        THREADS, "multiply_add(x, alpha[2 * t + i / 2],", "multiply_add(x, alpha[2 * t],"
    ),
    # When copies arrive.
    "nobody waits for K": Mutant(SIMT, "Scores S;\n    wait_for_copies();", "Scores S;"),
    "nobody waits for V": Mutant(
        SIMT, "update(S, alpha);\n    wait_for_copies();", "update(S, alpha);"
    ),
    "nobody waits for the tile after the last": Mutant(
        SIMT, "not yet together.\n  wait_for_copies();", "not yet together.", ["one block"]
    ),
    "copies are in no group": Mutant(THREADS, "    commit_async();\n", ""),
    "tiles are read before all have waited for them": Mutant(
        THREADS, "wait_async<0>();\n  __syncthreads();", "wait_async<0>();"
    ),
    "the next K arrives while this one is read": Mutant(
        SIMT,
        "    block.product_of_columns(block.Q, 0, block.K, S);",
        "    next_k.template fetch<false>(attended.keys(), key + Block::kBlockN, count, 0, "
        "params.d);\n    block.product_of_columns(block.Q, 0, block.K, S);",
    ),
    "the next V arrives while this one is read": Mutant(
        SIMT,
        "    block.product_of_fragments",
        "    next_v.template fetch<false>(attended.values(), key + Block::kBlockN, count, 0, "
        "params.p);\n    block.product_of_fragments",
    ),
    "hidden values aren't cleared": Mutant(
        SIMT,
        "kHide && careful) {\n      attended",
        "kHide && false) {\n      attended",
        ["hidden NaN"],
    ),
    # Where they go.
    "V goes to K's place": Mutant(BLOCK, "K.data + (kMatrix ? kStageK : 0)", "K.data"),
    "K goes to the place of pairs": Mutant(
        BLOCK, "P.data + kPairElements", "P.data", ["mask", "softcap"]
    ),
    "rows in shared memory lie closer": Mutant(
        THREADS, "target + r * Tile::kPitch * kSize", "target + r * (Tile::kPitch - 2) * kSize"
    ),
    # What they copy.
    "every tile is the first": Mutant(
        THREADS, "matrix.data + row * matrix.row_stride +", "matrix.data +"
    ),
    "a row is the next one's": Mutant(
        THREADS, "opaque(kDown * matrix.row_stride)", "opaque(kDown * matrix.row_stride + kUnit)"
    ),
    "rows beyond the end are read": Mutant(THREADS, " && first_row + r < rows", ""),
    "rows beyond the end aren't cleared": Mutant(
        THREADS,
        "copy_async<kSize * kElements>",
        "if (present) copy_async<kSize * kElements>",
        ["few keys"],
    ),
    "rows that are skipped are read": Mutant(
        THREADS, " && first_row + r >= skipped;", ";", ["NaN to the left"]
    ),
    "a row too many is skipped": Mutant(
        THREADS, "first_row + r >= skipped", "first_row + r > skipped", ["NaN to the left"]
    ),
    "columns beyond the end are read": Mutant(THREADS, "= x < columns &&", "="),
    "odd rows are taken for units": Mutant(
        THREADS, "matrix.row_stride % kUnit == 0", "true", ["odd pitch"]
    ),
    "odd addresses are taken for units": Mutant(
        THREADS,
        "column_end % kUnit == 0 &&\n                       "
        "reinterpret_cast<unsigned long long>(matrix.data) % 16 == 0",
        "column_end % kUnit == 0",
        ["odd address"],
    ),
    "a part of a unit beyond the end is copied": Mutant(
        THREADS, "column_end % kUnit == 0", "true", ["odd columns"]
    ),
    "columns apart are taken for units": Mutant(
        THREADS, "matrix.column_stride == 1", "true", ["sliced"]
    ),
    "single numbers are taken for dense": Mutant(
        THREADS, "+ x * matrix.column_stride;", "+ x;", ["transposed"]
    ),
}
# The same of float32 as two TF32 numbers.
TF32_MUTANTS = {
    "the low part of the left factor is lost": Mutant(
        FACTORS,
        "multiply_accumulate(c, a[4 * i].low, a[4 * i + 1].low, a[4 * i + 2].low, a[4 * i + 3].low,"
        " b[2 * i].high,\n                          b[2 * i + 1].high);",
        "",
    ),
    "the low part of the right factor is lost": Mutant(
        FACTORS, "b[2 * i].low,\n                          b[2 * i + 1].low);", "0u, 0u);"
    ),
    "the high part isn't rounded": Mutant(
        FACTORS, "__float_as_uint(x) + 0x1000u", "__float_as_uint(x)"
    ),
    "the low part is of all bits": Mutant(FACTORS, "(high & 0xffffe000u)", "(high)"),
    "high and low are swapped": Mutant(
        FACTORS,
        "{high, __float_as_uint(x - __uint_as_float(high & 0xffffe000u))}",
        "{__float_as_uint(x - __uint_as_float(high & 0xffffe000u)), high}",
    ),
    "the first eight terms count twice": Mutant(
        FACTORS,
        "a[4 * i + 3].high, b[2 * i].high,\n                          b[2 * i + 1].high);\n    }"
        "\n  }\n};\n\n// One",
        "a[4 * i + 3].high, b[0].high, b[1].high);\n    }\n  }\n};\n\n// One",
    ),
    "sums of the tensor cores aren't added": Mutant(
        THREADS, "Factors::kApart ? x + sum[t][i] : sum[t][i]", "sum[t][i]", ["wide"]
    ),
    "rows that aren't finite stay so": Mutant(
        SIMT, "if (row < tile.row_end) attend_row", "if (false) attend_row", ["largest"]
    ),
    "one TF32 product is all": Mutant(
        THREADS, "MatrixFactors<A, kWhole>", "MatrixFactors<A, sizeof(A) == 8>"
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
