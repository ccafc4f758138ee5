"""Defects of float64 on the tensor cores, each with the problems that must bring it to light."""

from __future__ import annotations

from mutants import SIMT, Mutant

THREADS = "matrix_threads.cuh"
FRAGMENTS = "fragment_threads.cuh"
BLOCK = "simt_block.cuh"
MATRIX = "backward_matrix.cuh"
BACKWARD_BLOCK = "matrix_backward_block.cuh"

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
        THREADS, "column + i / 2 * 4 + place()", "column + i / 2 + place() * 4"
    ),
    "columns of K are in another order than Q's": Mutant(
        THREADS, "right_of(j), k + 4 * i + place());", "right_of(j), k + i + 4 * place());"
    ),
    "every 16 columns of Q are the first": Mutant(
        THREADS, "load_left(rows, k, a)", "load_left(rows, 0, a)"
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
        "    block.product_of_columns(block.Q, block.K, S);",
        "    next_k.template fetch<false>(attended.keys(), key + Block::kBlockN, count, 0, "
        "params.d);\n    block.product_of_columns(block.Q, block.K, S);",
    ),
    "the next V arrives while this one is read": Mutant(
        SIMT,
        "    block.product_of_fragments",
        "    next_v.template fetch<false>(attended.values(), key + Block::kBlockN, count, 0, "
        "params.p);\n    block.product_of_fragments",
    ),
    "sums aren't rescaled": Mutant(
        THREADS, "multiply_add(x, alpha[2 * t + i / 2], sum[t][i])", "x + sum[t][i]"
    ),
    "sums are rescaled as another row's": Mutant(
        THREADS, "multiply_add(x, alpha[2 * t + i / 2],", "multiply_add(x, alpha[2 * t],"
    ),
    "hidden values aren't cleared": Mutant(
        SIMT, "      attended.clear_hidden_values(block, key);\n", "", ["hidden NaN"]
    ),
    # Where they go.
    "V goes to K's place": Mutant(BLOCK, "K.data + (kMatrix ? kStageK : 0)", "K.data"),
    "K goes to the place of pairs": Mutant(
        BLOCK, "P.data + kPairElements", "P.data", ["mask", "softcap"]
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
    "others are in another order than the weights'": Mutant(
        THREADS, "others.at(k + 4 * i + place(), right", "others.at(k + i + 4 * place(), right"
    ),
    "every 16 weights are the first": Mutant(
        THREADS, "load_left(weights, k, a)", "load_left(weights, 0, a)"
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
    "a thread's columns are single": Mutant(FRAGMENTS, "kPack = 2;", "kPack = 1;"),
    "own operands share a place": Mutant(
        BACKWARD_BLOCK, "shared + (kNumber == 1 ? 0 : kOwn2)", "shared"
    ),
    "others' operands share a place": Mutant(
        BACKWARD_BLOCK, "kNumber == 1 ? kOthers1 : kOthers2", "kOthers1"
    ),
    "pairs take the second operand's place": Mutant(
        BACKWARD_BLOCK, "{shared + kPairs}", "{shared + kOthers2}"
    ),
    "the factor of q is forgotten": Mutant(
        MATRIX, "? static_cast<A>(params.forward.scale_q) : A(1)", "? A(1) : A(1)"
    ),
    "dP is of the other operands": Mutant(
        MATRIX,
        "product_of_columns(block.template own<2>(), block.template others<2>(), dP)",
        "product_of_columns(block.template own<1>(), block.template others<1>(), dP)",
    ),
    "nobody waits for the first operand": Mutant(
        MATRIX, "Pairs X, dP;\n    wait_for_copies();", "Pairs X, dP;"
    ),
    "nobody waits for the second operand": Mutant(
        MATRIX, "    }\n    wait_for_copies();\n", "    }\n"
    ),
    "the next others arrive while these are summed": Mutant(
        MATRIX, "    if constexpr (!kBoth) copy_others<kEarly", "    copy_others<kEarly"
    ),
    "dS takes P's place while it is read": Mutant(
        MATRIX, "kBoth) {\n      __syncthreads();\n", "kBoth) {\n", ["wider"]
    ),
    "P is read before all have written it": Mutant(
        MATRIX, "compute(dP);\n    block.meet_rows();\n", "compute(dP);\n", ["wider"]
    ),
    "dS is read before all have written it": Mutant(
        MATRIX,
        "block.pairs(), dP);\n      block.meet_rows();\n",
        "block.pairs(), dP);\n",
        ["wider"],
    ),
    "dS isn't what dk is summed of": Mutant(
        MATRIX, "      write_elements(block, block.pairs(), dP);\n", ""
    ),
    "warps that share rows have the same columns": Mutant(
        THREADS, "8 * (j * kParts + thread_n / 4)", "8 * (j * kParts)", ["wider"]
    ),
    "warps that share rows have rows of their own": Mutant(
        FRAGMENTS, "threadIdx.x / (32 * kParts) * 8", "threadIdx.x / 32 * 8", ["wider"]
    ),
    "warps that share rows have columns of their own sums alone": Mutant(
        FRAGMENTS, "threadIdx.x / 32 % kParts * 4", "0", ["wider"]
    ),
    "sums of pairs begin within the stage": Mutant(
        BACKWARD_BLOCK, "kWorkOffset + kWorkBytes) + row", "kWorkOffset) + row", ["sums"]
    ),
}
