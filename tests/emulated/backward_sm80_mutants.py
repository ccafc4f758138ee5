"""Defects of sm80's backward pass, each with the problem that must bring it to light."""

from __future__ import annotations

from mutants import Mutant, sm80

KERNEL = "backward_sm80.cuh"
BLOCK = "sm80_backward_block.cuh"
GRADIENTS = "sm80_backward_gradients.cuh"
SCORES = "sm80_backward_scores.cuh"
MASK = "mask.cuh"
TILE = "score_tile.cuh"

# The key says what is wrong with the mutant.
BACKWARD_SM80_MUTANTS: dict[str, Mutant] = {
    # What is copied.
    "the next tile lies over this one": sm80(
        KERNEL,
        "copy_second<false, Config>(params, block, block.work(), next, stage ^ 1);",
        "copy_second<false, Config>(params, block, block.work(), next, stage);",
        ["keys"],
    ),
    "all tiles are read from the first stage": sm80(
        KERNEL, "kTwoStages ? at / Block::kOthers % 2 : 0;", "0;", ["rows"]
    ),
    "in one stage the next keys come too early": sm80(
        KERNEL,
        "copy_first<false, Config>(params, block, block.work(), at, 0);",
        "copy_first<false, Config>(params, block, block.work(), next, 0);",
        ["rows in one step"],
    ),
    "dO is copied while P is multiplied with it": sm80(
        KERNEL,
        "if (!Config::kSecond) {",
        "if (true) {",
        ["split in one stage"],
    ),
    "statistics of the tile before": sm80(
        KERNEL,
        "copy_statistics<Config>(block, block.work(), next, 0);",
        "copy_statistics<Config>(block, block.work(), at, 0);",
        ["split"],
    ),
    # Barriers and waits.
    "no barrier before the first matrix in one stage": sm80(
        KERNEL,
        "if (!kTwoStages && column == 0) {\n        wait_for_copies();",
        "if (!kTwoStages && column == 0) {\n        wait_async<0>();",
        ["rows in one step"],
    ),
    "no barrier after hidden keys are cleared": sm80(
        KERNEL, "block, at, stage);\n        __syncthreads();", "block, at, stage);", ["hidden NaN"]
    ),
    "P is read before all warps have written it": sm80(
        KERNEL,
        "(block.exchange(Config::kFirst), S);\n        __syncthreads();",
        "(block.exchange(Config::kFirst), S);",
        ["split"],
    ),
    "no barrier before the second matrix of the next tile": sm80(
        KERNEL,
        "!kTwoStages && next < others) {\n          __syncthreads();",
        "!kTwoStages && next < others) {",
        ["split in one stage"],
    ),
    "the work is read before it is written": sm80(
        KERNEL,
        "scale_own<Config>(params, block);\n        __syncthreads();",
        "scale_own<Config>(params, block);",
        ["heads"],
    ),
    "the next entry's copies go over this one's tiles": sm80(
        KERNEL,
        "wait_async<0>();\n        __syncthreads();\n      }\n      if (!Block::kArrays",
        "wait_async<0>();\n      }\n      if (!Block::kArrays",
        ["heads"],
    ),
    "own copies aren't waited for": sm80(
        KERNEL,
        "wait_async<0>();\n        __syncthreads();\n      }\n      if (!Block::kArrays",
        "__syncthreads();\n      }\n      if (!Block::kArrays",
        ["no keys"],
    ),
    "the next tile's copies go over gradients": sm80(
        KERNEL, "pair_sums);\n    }\n    __syncthreads();", "pair_sums);\n    }", ["rows"]
    ),
    # Careful blocks.
    "nothing is computed again": sm80(
        KERNEL,
        "__any_sync(0xffffffffu, __syncthreads_or(!finite))",
        "false",
        ["hidden NaN"],
    ),
    "sums aren't cleared before they are computed again": sm80(
        KERNEL, "gradients.clear();", "if (!careful) gradients.clear();", ["hidden NaN"]
    ),
    "dv isn't looked at": sm80(
        GRADIENTS,
        "if constexpr (Config::kSecond) zero = multiples_of_zero(second, zero);",
        "",
        ["hidden NaN of dO"],
    ),
    "a bias of -inf doesn't hide NaN": sm80(
        SCORES, "visible && added != -Limits<float>::infinity()", "visible", ["bias hides NaN"]
    ),
    "sums of pairs don't show NaN": sm80(
        KERNEL,
        "gradients.finite() && multiples_of_zero(pair_sums, 0.0f) == 0.0f",
        "gradients.finite()",
        ["shared bias hides NaN"],
    ),
    # Warps that share rows or keys.
    "a warp adds nothing where only its partner sees": sm80(
        KERNEL, "Block::kExchange ? shares_see(block, at) : !idle", "!idle", ["split, causal"]
    ),
    "all parts have the first columns of dv": sm80(
        KERNEL, "place.part * (Config::kHeadDimV / Block::kSplit / 8)", "0", ["split"]
    ),
    "dv is the product of dS": sm80(
        KERNEL,
        "exchanged<Block>(block.exchange(Config::kFirst))",
        "exchanged<Block>(block.exchange(0))",
        ["split"],
    ),
    "all parts have the first others": sm80(
        SCORES, "column(first + block.part() * Block::kStep)", "column(first)", ["split"]
    ),
    # What is written.
    "dv keeps the power of two of P": sm80(
        GRADIENTS,
        "constexpr float kUnscale = is_float16<T> ? 0x1p-15f : 1.0f;",
        "constexpr float kUnscale = 1.0f;",
        ["keys"],
    ),
    "dS keeps the power of two of P": sm80(
        SCORES, "is_float16<typename Block::T> ? 0x1p-15f : 1.0f", "1.0f", ["rows"]
    ),
    "the gradient lacks the sign of the scale": sm80(
        GRADIENTS, "forward.scale_s * forward.scale_q", "forward.scale_s", ["negative scale"]
    ),
    "the scale's gradient has the scaled q": sm80(
        KERNEL, "1.0f / static_cast<float>(forward.scale_q)", "1.0f", ["scale"]
    ),
    "the last entry that shares is left out": sm80(
        KERNEL, "share < params.shares;", "share < params.shares - 1;", ["heads"]
    ),
    "without entries the block is nowhere": sm80(
        KERNEL, "if (params.shares == 0) {", "if (false) {", ["no entries"]
    ),
    "a later entry's pairs replace the first's": sm80(
        SCORES,
        "pair_sums(r, 2 * pair + i) += dp;",
        "pair_sums(r, 2 * pair + i) = dp;",
        ["shared bias"],
    ),
    "pairs beyond the last key are stored": sm80(
        SCORES,
        "if (row >= rows || key >= keys) return;",
        "if (row >= rows) return;",
        ["shared bias hides NaN"],
    ),
    "pairs that no tile has aren't cleared": sm80(
        KERNEL,
        "if constexpr (Config::kPairs && !Block::kPairSums) store_no_pairs<Config>(params, block);",
        "",
        ["own pairs"],
    ),
    "pairs that a warp doesn't see aren't cleared": sm80(
        KERNEL,
        "} else if (Config::kPairs && !Block::kPairSums) {",
        "} else if (false) {",
        ["own pairs"],
    ),
    # P and dS.
    "delta is added": sm80(
        SCORES, "(dp - statistics.delta(r, i))", "(dp + statistics.delta(r, i))", ["rows"]
    ),
    "hidden pairs have dS": sm80(
        SCORES, "dp = !kChooses || visible ? dS : 0.0f;", "dp = dS;", ["hidden NaN"]
    ),
    "hidden pairs have P": sm80(SCORES, "s = visible ? P : (", "s = true ? P : (", ["causal keys"]),
    "rows have the block's first statistics": sm80(
        SCORES, "block.work().statistics + block.warp_row()", "block.work().statistics", ["rows"]
    ),
    "of two rows both have the first one's lse": sm80(
        SCORES, "__uint_as_float(words.word[2 * i])", "__uint_as_float(words.word[0])", ["keys"]
    ),
    "statistics are read from the first stage": sm80(
        BLOCK, "(kStatisticsStages > 1 ? stage : 0)", "0", ["keys"]
    ),
    "the slope of the cap is left out": sm80(
        SCORES, "slope = Score<Config>::cap_slope(s);", "", ["softcap"]
    ),
    "the bias has the gradient before the cap": sm80(
        SCORES, "sums.bias[r] += dp;", "sums.bias[r] += dp * slope;", ["keys of a bias"]
    ),
    "pairs have the gradient before the cap": sm80(
        SCORES, "2 * pair + i), dp);", "2 * pair + i), dp * slope);", ["pairs under a cap"]
    ),
    "both keys of a pair have one bias": sm80(
        SCORES, "added = bias.value(i)", "added = bias.value(0)", ["bias of rows"]
    ),
    "the mask isn't looked at": sm80(
        SCORES, "visible && shown.given(i)", "visible", ["mask of keys"]
    ),
    "the keys' distance to rows has the wrong sign": sm80(
        SCORES, "+ at) + (other - own)", "+ at) + (own - other)", ["alibi of keys"]
    ),
    "the rows' distance to keys has the wrong sign": sm80(
        SCORES, "- at) + (own - other)", "- at) + (other - own)", ["alibi"]
    ),
    "a slope grows with the keys to the right": sm80(
        SCORES, "-dp, magnitude(d), sums.slope[r]", "-dp, d, sums.slope[r]", ["alibi"]
    ),
    "the scale's sum has what hidden pairs hold": sm80(
        SCORES, "visible ? product : 0.0f", "product", ["scale of hidden NaN"]
    ),
    # Transposed arrays.
    "both rows of a pair have one mask": sm80(
        TILE,
        "kAlongRows ? Scores::column_of(place.lane, i) : 0",
        "kAlongRows ? Scores::column_of(place.lane, 0) : 0",
        ["mask of keys"],
    ),
    "rows of a pair are swapped": sm80(
        TILE,
        "at(0, r) + row * Tile::kPitch, at(1, r) + row * Tile::kPitch",
        "at(1, r) + row * Tile::kPitch, at(0, r) + row * Tile::kPitch",
        ["mask of keys"],
    ),
    # Who sees whom.
    "a key isn't seen by its first row": sm80(
        MASK,
        "Config::kRight ? j - right : 0",
        "Config::kRight ? j - right + 1 : 0",
        ["causal keys"],
    ),
    "a key isn't seen by its last row": sm80(
        MASK, "minimum(rows, j - left + 1)", "minimum(rows, j - left)", ["window"]
    ),
    "the first row that sees a tile isn't visited": sm80(
        MASK,
        "key_begin - extent.offset - params.right, begin",
        "key_begin - extent.offset - params.right + 1, begin",
        ["causal keys"],
    ),
    "the last row that sees a tile isn't visited": sm80(
        MASK,
        "key_end - extent.offset + params.left)",
        "key_end - extent.offset + params.left - 1)",
        ["window"],
    ),
    "rows beyond a length are visited": sm80(
        MASK, "long long end = extent.rows;", "long long end = params.m;", ["window of keys"]
    ),
    # Where an entry's share is.
    "keys of another head": sm80(
        BLOCK,
        "quotient(entry.head, forward.group)",
        "entry.head % forward.group",
        ["rows of heads"],
    ),
    "statistics of the first rows": sm80(
        BLOCK, "work.statistics = statistics + row;", "work.statistics = statistics;", ["rows"]
    ),
    "ALiBi counts from the first key": sm80(
        BLOCK, "work.place = row + entry.extent.offset - key;", "work.place = row - key;", ["alibi"]
    ),
    "arrays are taken for aligned": sm80(
        BLOCK,
        "unit_of<unsigned char>(forward.mask, work.mask, forward.n)",
        "16",
        ["mask of keys"],
    ),
}
