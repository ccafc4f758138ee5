"""Defects of what calls with options run, each with the problems that must bring it to light."""

from __future__ import annotations

from mutants import EPILOGUE, NAIVE, SIMT, Mutant

MASK = "mask.cuh"
SCORE = "score.cuh"
ARRAYS = "score_arrays.cuh"
SCORES = "simt_scores.cuh"


def naive(file: str, old: str, new: str, *cases: str) -> Mutant:
    return Mutant(file, old, new, cases, kernel="naive")


# The key says what is wrong with the mutant.
OPTION_MUTANTS = {
    # The window.
    "a row sees a key before its window": Mutant(
        MASK, "Config::kLeft ? r + left : 0", "Config::kLeft ? r + left - 1 : 0", ["window"]
    ),
    "a row doesn't see its window's first key": Mutant(
        MASK, "Config::kLeft ? r + left : 0", "Config::kLeft ? r + left + 1 : 0", ["window"]
    ),
    "rows see a key beyond their window": Mutant(
        MASK, "within_int(place + params.right)", "within_int(place + params.right + 1)", ["window"]
    ),
    "rows don't see their window's last key": Mutant(
        MASK, "within_int(place + params.right)", "within_int(place + params.right - 1)", ["window"]
    ),
    "a window is causal": Mutant(MASK, "within_int(place + params.right)", "place", ["window"]),
    "the right bound is the left one": Mutant(
        MASK,
        "within_int(place + params.right)",
        "within_int(place + params.left)",
        ["causal window"],
    ),
    "the last row's last key isn't visited": Mutant(
        MASK, "extent.offset + params.right)", "extent.offset)", ["window"]
    ),
    "the first row's first key isn't visited": Mutant(
        MASK, "extent.offset - params.left, begin", "extent.offset, begin", ["left"]
    ),
    "a window's tile on the left edge is taken for full": Mutant(
        MASK, "kRows - 1 + left <= 0", "left <= 0", ["left"]
    ),
    "a window's tiles begin at its first key": Mutant(
        MASK,
        "Config::kLeft ? keys.begin & -static_cast<long long>(kKeys) : 0",
        "keys.begin",
        ["window"],
    ),
    "keys before the window are loaded": Mutant(
        "tile.cuh", "(!kSkip || r * kDown >= skipped)", "true", ["window after NaN"]
    ),
    "values of keys before the window are multiplied": naive(
        NAIVE, "maximum(keys.begin - tile, 0ll)", "0", "window after NaN"
    ),
    # The scores.
    "the cap is put on the bias too": Mutant(
        SCORE,
        "with_terms(Config::kSoftcap ? hyperbolic_tangent(dot * factor) : dot, bias, distance)",
        "with_terms(hyperbolic_tangent(dot * factor + bias / cap), A(0), distance)",
        ["softcap and bias"],
    ),
    "the cap's scale is that without a cap": Mutant(
        SCORE,
        "params.scale_softcap : params.scale_s",
        "params.scale_s : params.scale_s",
        ["softcap"],
    ),
    "the cap isn't multiplied": Mutant(
        SCORE, "Config::kSoftcap ? cap :", "Config::kSoftcap ? A(1) :", ["softcap"]
    ),
    "ALiBi prefers keys to the right": Mutant(
        SCORE, "-slope * magnitude(distance)", "-slope * distance", ["alibi"]
    ),
    "ALiBi with a bias prefers keys to the right": Mutant(
        SCORE, "magnitude(distance), score", "distance, score", ["alibi and bias"]
    ),
    "ALiBi counts from the first key": Mutant(
        SIMT, "tile.row_begin + tile.extent.offset - key)", "tile.row_begin - key)", ["alibi"]
    ),
    "every head has the first one's slope": Mutant(
        SCORE,
        "entry_of<const T>(operand, tile, tile.head)",
        "entry_of<const T>(operand, tile, 0)",
        ["alibi"],
    ),
    "the bias is that of another head": Mutant(
        ARRAYS,
        "index_of(params.bias, tile, tile.head)",
        "index_of(params.bias, tile, tile.head / 2)",
        ["alibi and bias"],
    ),
    "rows and columns of the arrays are swapped": Mutant(
        ARRAYS,
        "row * array.row_stride + key * array.column_stride",
        "key * array.row_stride + row * array.column_stride",
        ["mask"],
    ),
    "columns of the arrays are taken for dense": Mutant(
        ARRAYS, "+ key * array.column_stride", "+ key", ["transposed bias"]
    ),
    "the mask isn't looked at": Mutant(
        ARRAYS, "load_global(further(mask, row, key).data) != 0", "true", ["mask"]
    ),
    "a bias of -inf doesn't hide": Mutant(
        ARRAYS,
        "found.visible && found.bias != -Limits<A>::infinity()",
        "found.visible",
        ["bias hides NaN"],
    ),
    "all keys have the first one's mask": Mutant(
        SCORES, "elements<false>(0, key, {})", "elements<false>(0, 0, {})", ["mask of keys"]
    ),
    "a row's scores are the next one's": Mutant(
        SCORES, "row_place - static_cast<A>(key)", "row_place + 1 - static_cast<A>(key)", ["alibi"]
    ),
    # Sinks.
    "O isn't rescaled for the sink": Mutant(
        EPILOGUE, "scale_rows(O, alpha);\n  } else {", "} else {", ["sinks"]
    ),
    "naive: O isn't rescaled for the sink": naive(
        NAIVE, "scale_rows(O, alpha);\n    } else {", "} else {", "sinks"
    ),
    "the sink isn't counted": Mutant(
        "softmax.cuh",
        "l[r] = multiply_add(l[r], alpha[r], exponential(sink - reference) * weight.p_scale());",
        "l[r] *= alpha[r];",
        ["sinks"],
    ),
    "the sink lacks p_scale": Mutant(
        "softmax.cuh",
        "exponential(sink - reference) * weight.p_scale()",
        "exponential(sink - reference)",
        ["sinks"],
    ),
    "a large sink overflows": Mutant(
        "softmax.cuh", "m[r] = maximum(natural, sink);", "m[r] = natural;", ["sinks"]
    ),
    "a row without keys takes what hidden values sum to": Mutant(
        "softmax.cuh",
        "keyless[r] = l[r] == A(0);",
        "keyless[r] = false;",
        ["rows without keys beside NaN"],
    ),
    # Keys that nobody sees.
    "nothing is computed again": Mutant(
        ARRAYS,
        "__any_sync(0xffffffffu, __syncthreads_or(!finite))",
        "false",
        ["mask hides NaN"],
    ),
    "only O's first column is looked at": Mutant(
        "softmax.cuh",
        "zero = multiply_add(O(r, c), A(0), zero);",
        "zero = multiply_add(O(0, 0), A(0), zero);",
        ["mask hides one NaN"],
    ),
    "hidden values are multiplied": Mutant(
        SCORES, "!arrays.any_row_sees(sees, j)", "false", ["mask hides NaN"]
    ),
    "a block's first row alone decides what is hidden": Mutant(
        ARRAYS, "r < Config::kBlockM", "r < 1", ["mask hides NaN"]
    ),
    "naive: hidden values are multiplied": naive(
        NAIVE,
        "if (Arrays::kHide && !__shfl_sync(0xffffffffu, static_cast<int>(visible), j)) continue;",
        "",
        "mask hides NaN",
    ),
}
