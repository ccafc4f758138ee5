"""Defects of what the tensor-core kernel does for options, each with the problems that show it."""

from __future__ import annotations

from mutants import FORWARD_SM80, Mutant, sm80

SCORES = "sm80_scores.cuh"
MATRIX_TILE = "matrix_tile.cuh"
EPILOGUE = "sm80_epilogue.cuh"
SOFTMAX = "softmax.cuh"
TANH = "hyperbolic.cuh"
ARRAYS = "score_arrays.cuh"

# The key says what is wrong with the mutant.
SCORE_MUTANTS: dict[str, Mutant] = {
    # The window.
    "a row of a warp sees a key before its window": sm80(
        SCORES, "column >= begin", "column >= begin - 1", ["float16, window"]
    ),
    "a warp before the window's rows is taken for idle": sm80(
        "mask.cuh", "left < minimum(keys, kKeys)", "left < 0", ["float16, window"]
    ),
    "keys before the window are copied": sm80(
        MATRIX_TILE, "(!kSkip || r * kDown >= above)", "true", ["float16, window after NaN"]
    ),
    # ALiBi and the unit of scores.
    "a natural score is scaled once more": sm80(
        SOFTMAX,
        "unit_log2(static_cast<float>(params.unit)",
        "unit_log2(static_cast<float>(params.scale_s)",
        ["float16, alibi"],
    ),
    "what tanh gave is taken for a natural score": sm80(
        SOFTMAX,
        "unit_log2(static_cast<float>(params.unit)",
        "unit_log2(1.0f",
        ["float16, softcap"],
    ),
    "lse is in the unit of what tanh gave": sm80(
        SOFTMAX,
        "return score * static_cast<float>(params.unit);",
        "return score;",
        ["float16, softcap"],
    ),
    "ALiBi takes a tile's first key for the window's": sm80(
        SCORES, "block.work().place - key", "block.work().place", ["float16, alibi"]
    ),
    "ALiBi takes a lane's columns for the first one's": sm80(
        SCORES, "Scores::column_of(place.lane, 0));", "0);", ["float16, alibi"]
    ),
    "ALiBi takes a thread's columns for its first one": sm80(
        SCORES, "kAlibi ? distance - column", "kAlibi ? distance", ["float16, alibi"]
    ),
    "ALiBi takes a thread's rows for its first one": sm80(
        SCORES, "place.row + Scores::row_of(place.lane, r)", "place.row", ["float16, alibi"]
    ),
    # The cap.
    "the polynomial is taken for any product": sm80(
        SCORES, "largest > kSmallTangent", "false", ["float16, softcap"]
    ),
    "the polynomial is taken for all below zero": sm80(
        SCORES,
        "largest = maximum(largest, magnitude(S(r, c)));",
        "largest = maximum(largest, S(r, c));",
        ["float16, softcap below zero"],
    ),
    "a thread's last product alone decides on the polynomial": sm80(
        SCORES,
        "largest = maximum(largest, magnitude(S(r, c)));",
        "largest = magnitude(S(r, c));",
        ["float16, softcap of one"],
    ),
    "products aren't divided by the cap": sm80(
        SCORES, "S(r, c) *= score.factor;", "", ["float16, softcap"]
    ),
    "the polynomial goes too far": sm80(
        TANH, "size > kSmallTangent", "size > 1.5f", ["float16, softcap"]
    ),
    "tanh loses its sign": sm80(TANH, "copysignf(large, x)", "large", ["float16, softcap"]),
    "tanh is that of half its argument": sm80(
        TANH, "2.8853900817779268f * size", "1.4426950408889634f * size", ["float16, softcap"]
    ),
    "the polynomial lacks its cube": sm80(
        TANH, "fmaf(q * square, x, x)", "x", ["float16, softcap"]
    ),
    # Rescaling and sinks.
    "O isn't rescaled for the sink": sm80(
        FORWARD_SM80, "scale_rows(O, alpha);\n    } else {", "} else {", ["float16, sinks"]
    ),
    "the sink is compared with scores in their own unit": sm80(
        SOFTMAX,
        "const A natural = weight.natural(m[r]);",
        "const A natural = m[r];",
        ["float16, sinks"],
    ),
    "O isn't rescaled where a maximum rose": sm80(
        FORWARD_SM80,
        "return __any_sync(0xffffffffu, any);",
        "return false;",
        ["float16, rising maxima"],
    ),
    "O is rescaled where a thread's first row's maximum rose": sm80(
        FORWARD_SM80,
        "r < kRows; ++r) any = any ||",
        "r < 1; ++r) any = any ||",
        ["float16, rising maxima"],
    ),
    # Means at the ends of the range.
    "a mean of the largest number rounds to infinity": sm80(
        EPILOGUE,
        "|| largest * inverse[r] > Limits<OType>::largest()",
        "",
        ["float16, largest"],
    ),
    "rows without keys take what hidden values sum to": sm80(
        EPILOGUE,
        "softmax.empty(r) || largest",
        "largest",
        ["float16, rows without keys beside NaN"],
    ),
    # Keys that nobody sees.
    "hidden products aren't cleared": sm80(
        SCORES, "S(r, c + i) = 0.0f;", ";", ["float16, bias hides NaN"]
    ),
    "hidden values aren't cleared": sm80(
        SCORES, "arrays.any_row_sees(sees, j)", "true", ["float16, mask hides NaN"]
    ),
    "no barrier after clearing": sm80(
        FORWARD_SM80,
        "clear_hidden_values<Config>(params, block, key);\n      __syncthreads();",
        "clear_hidden_values<Config>(params, block, key);",
        ["float16, mask hides NaN"],
    ),
    "only a block's first warp decides what is hidden": sm80(
        ARRAYS, "r < Config::kBlockM", "r < 32", ["float16, mask hides NaN"]
    ),
    "the second pass doesn't start with the first tile": sm80(
        FORWARD_SM80,
        "copy_first<Config>(params, block, block.work());",
        "",
        ["float16, mask hides NaN"],
    ),
}
