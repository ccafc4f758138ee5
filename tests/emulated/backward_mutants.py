"""Defects of the kernels of the backward pass, each with the problems that show it."""

from __future__ import annotations

from mutants import Mutant

SIMT = "backward_simt.cuh"
LOADS = "simt_backward_loads.cuh"
PAIRS = "simt_backward_pairs.cuh"
GRADIENTS = "simt_backward_gradients.cuh"
ENTRIES = "simt_backward_entries.cuh"
NAIVE = "naive_gradients.cuh"
PAIR = "backward_pair.cuh"

# The key says what is wrong with the mutant.
BACKWARD_MUTANTS = {
    # The formulas.
    "delta isn't subtracted": Mutant(PAIR, "(dP - of_row.delta)", "dP"),
    "the slope of the cap is left out": Mutant(
        PAIR, "pair.dy * y.derivative", "pair.dy", ["softcap"]
    ),
    "the bias has the gradient before the cap": Mutant(
        PAIR,
        "if (Config::kBiasSums) bias += pair.dy",
        "if (Config::kBiasSums) bias += pair.dx",
        ["keys of a bias"],
    ),
    "a slope grows with the keys to the right": Mutant(
        PAIR, "-pair.dy, magnitude(distance), slope", "-pair.dy, distance, slope", ["alibi"]
    ),
    "the scale's gradient has the scaled q": Mutant(
        PAIR, "scale / static_cast<A>(params.forward.scale_q)", "scale", ["scale"]
    ),
    "dk and dq lack a factor of the scale": Mutant(GRADIENTS, "sum * factor_q", "sum"),
    # Who takes part.
    "rows of another key head": Mutant(
        PAIR, "entry.head / forward.group", "entry.head % forward.group", ["heads"]
    ),
    "the last entry that shares is left out": Mutant(
        ENTRIES,
        "share < params.shares; ++share) {\n        begin_entry",
        "share < params.shares - 1; ++share) {\n        begin_entry",
        ["heads"],
    ),
    "only the first chunk of others is summed": Mutant(
        LOADS,
        "j < count; j += Block::kChunkN",
        "j < minimum(count, Block::kChunkN); j += Block::kChunkN",
    ),
    "hidden pairs have what their products give": Mutant(
        PAIR, "pair.P = visible ? exponential", "pair.P = true ? exponential", ["mask"]
    ),
    "a weight may be above 1": Mutant(PAIR, "below > A(0) ? A(0) : below", "below", ["large"]),
    "where P is 0 dP counts": Mutant(
        PAIR, "Wanted<Config>::kScores && pair.P != A(0)", "Wanted<Config>::kScores", ["hidden NaN"]
    ),
    "nothing is computed again": Mutant(
        ENTRIES, "needs_care<Config>(G.finite())", "false", ["hidden NaN"]
    ),
    "only the first gradient is looked at": Mutant(
        GRADIENTS,
        "&& (!Config::kSecond || ::finite(r, second))",
        "&& (!Config::kSecond || Config::kFirst || ::finite(r, second))",
        ["hidden NaN of dO"],
    ),
    "hidden pairs aren't left out": Mutant(
        NAIVE,
        "static_cast<int>(visible), j)) continue;",
        "static_cast<int>(visible), j)) {}",
        ["hidden NaN"],
        "naive",
    ),
    # What is written.
    "the gradient of a pair isn't added": Mutant(
        PAIR, "Convert<A>::from(load_global(target)) + dy", "dy", ["shared bias"], "naive"
    ),
    "the second entry replaces the first": Mutant(
        PAIRS,
        "if (work.first) {\n      store_global(target",
        "if (true) {\n      store_global(target",
        ["shared bias"],
    ),
    "pairs that nobody comes to aren't cleared": Mutant(
        ENTRIES, "Config::kPairs && work.first", "false", ["shared bias"]
    ),
    "rows beyond the end are stored": Mutant(GRADIENTS, "if (own >= tile.end) continue;", ""),
    "columns beyond the end are stored": Mutant(GRADIENTS, "(c) < count) {", "(c) < 999) {"),
    "the pieces of a thread's columns are neighbours": Mutant(
        GRADIENTS, "? jump : step", "? step : step", ["wide"]
    ),
    # Spans.
    "all others are one span": Mutant(
        GRADIENTS, "return other % kSpan == 0;", "return false;", ["many equal terms"]
    ),
    "entries that share are one span": Mutant(
        GRADIENTS, "return !work.first;", "return false;", ["many equal terms"]
    ),
    "the first span is added to what was there": Mutant(GRADIENTS, "if (stored) sum", "sum"),
    "a span replaces those before": Mutant(
        GRADIENTS, "if (stored) sum", "if (false) sum", ["many keys"]
    ),
    "the last span is lost": Mutant(
        GRADIENTS, "sum += load_global", "sum = load_global", ["many keys"]
    ),
    "a span of dk or dq is added twice": Mutant(
        GRADIENTS, "first.clear();\n    }", "}", ["many keys"]
    ),
    "a span of dv is added twice": Mutant(GRADIENTS, "second.clear();\n    }", "}", ["many rows"]),
    "each span is scaled again": Mutant(
        GRADIENTS,
        "tile, A(1), A(1));\n      first",
        "tile, A(0.5), A(1));\n      first",
        ["many keys"],
    ),
    "what spans hold isn't looked at": Mutant(
        GRADIENTS,
        "(broken >> r & 1u) == 0 && (",
        "(",
        ["hidden NaN of many rows"],
    ),
    "only the last span before the end is looked at": Mutant(
        GRADIENTS,
        "broken |= static_cast<unsigned>(!finite(r)) << r;",
        "broken = (r > 0 ? broken : 0) | static_cast<unsigned>(!(::finite(r, first) && "
        "::finite(r, second))) << r;",
        ["hidden NaN of many rows"],
    ),
    "sums that are computed again are added": Mutant(
        ENTRIES,
        "      G.clear();",
        "      G.first.clear(), G.second.clear();\n      if (!careful) G.clear();",
        ["hidden NaN of many rows"],
    ),
    "naive: all others are one span": Mutant(
        NAIVE, "% kSpan == 0) end_span();", "< 0) end_span();", ["many equal terms"], "naive"
    ),
    "naive: entries that share are one span": Mutant(
        NAIVE,
        "    end_span();\n    if (Wanted",
        "    if (work.entry.head > 198) end_span();\n    if (Wanted",
        ["many equal terms"],
        "naive",
    ),
    "naive: the last span is lost": Mutant(
        NAIVE, "    end_span();\n    if (Wanted", "    if (Wanted", kernel="naive"
    ),
    "naive: a span is added twice": Mutant(
        NAIVE, "      span.clear();", "", ["many keys"], "naive"
    ),
    # Between threads.
    "lanes read dx before it is written": Mutant(
        SIMT, "if constexpr (kFirst) write_elements(block, block.pairs(), dP);", ""
    ),
    "rows don't take turns": Mutant(PAIRS, "X(kRows - 1, j) = front;", "", ["mask"]),
    "the next entry is told while the last one is read": Mutant(
        ENTRIES,
        "  __syncthreads();\n  if (threadIdx.x == 0) {\n    const Params& forward",
        "  if (threadIdx.x == 0) {\n    const Params& forward",
        ["slopes of heads"],
    ),
    "a sum of the last entry stays": Mutant(
        ENTRIES, "*block.sums_of(block.row_of(r)) = {};", "{}", ["slopes of heads"]
    ),
}
