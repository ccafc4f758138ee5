"""Defects of what all kernels of the backward pass share, each with the problem that shows it."""

from __future__ import annotations

from mutants import Mutant, sm80

SCHEDULE = "backward_schedule.cuh"
STATISTICS = "backward_statistics.cuh"
SUM = "backward_sum.cuh"

# The key says what is wrong with the mutant.
BACKWARD_SHARED_MUTANTS: dict[str, Mutant] = {
    # The order of tiles.
    "the first tile of rows is left out": sm80(
        SCHEDULE, "params.own_tiles - 1 - own_tile", "params.own_tiles - own_tile", ["causal"]
    ),
    "groups of entries are counted by tiles": sm80(
        SCHEDULE,
        "quotient(number, parts * params.together) * params.together",
        "quotient(number, parts * params.together)",
        ["entries in turns"],
    ),
    "all groups have the first one's entries": sm80(
        SCHEDULE,
        "entry = first + rest - part * entries",
        "entry = rest - part * entries",
        ["entries in turns"],
    ),
    "the last group is as large as the others": sm80(
        SCHEDULE,
        "minimum(params.tiles / parts - first, params.together)",
        "params.together",
        ["entries in turns"],
    ),
    "a tile reaches beyond the end": sm80(
        SCHEDULE,
        "minimum(tile.begin + Config::kBlockM, extent)",
        "tile.begin + Config::kBlockM",
        ["rows"],
    ),
    "all chunks begin with the first key": sm80(
        SCHEDULE,
        "{chunk * params.chunk_keys, params.forward.n}",
        "{0, params.forward.n}",
        ["shared bias"],
    ),
    "own batch entries are counted on": sm80(
        SCHEDULE, "rest - outer * params.own_batch[axis]", "rest", ["entries in turns"]
    ),
    # Who shares.
    "heads that share are counted on": sm80(
        SCHEDULE, "(share - rest * params.shared_heads)", "share", ["batch shares"]
    ),
    "batch entries that share are counted on": sm80(
        SCHEDULE, "rest - outer * params.shared_batch[axis]", "rest", ["batch shares"]
    ),
    "the first batch entry's rows": sm80(
        SCHEDULE, "tile.batch[axis] = own.batch[axis];", "tile.batch[axis] = 0;", ["heads"]
    ),
    "own heads have the first shares": sm80(
        SCHEDULE, "own.head * params.shared_heads +", "own.head +", ["heads"]
    ),
    "gradients of all batch entries in one place": sm80(
        SCHEDULE, "index += own.batch[axis] * operand.batch[axis]", "index += 0", ["heads"]
    ),
    "gradients of all heads in one place": sm80(
        SCHEDULE, "index = own.head * operand.head", "index = 0", ["heads"]
    ),
    # Statistics.
    "lse's gradient is added": sm80(
        STATISTICS, "delta -= load_global(", "delta += load_global(", ["dlse"]
    ),
    "P lacks the power of two": sm80(
        STATISTICS, "- static_cast<A>(params.p_exponent)", "", ["rows"]
    ),
    "rows that a thread has are neighbours": sm80(
        STATISTICS, "row + r * kStep, delta[r]", "row + r, delta[r]", ["rows"]
    ),
    "products of the first row": sm80(
        STATISTICS, "d_o + r * kStep * left_place.row", "d_o", ["rows"]
    ),
    "statistics beyond the padding are stored": sm80(
        STATISTICS,
        "if (row >= (forward.m + kStatisticsRows - 1) / kStatisticsRows * kStatisticsRows) return;",
        "",
        ["wide dO"],
    ),
    "rows without keys ask dO": sm80(
        STATISTICS, "o_x == A(0) ? sum[r] : product", "product", ["sinks"]
    ),
    "the sink's gradient has the wrong sign": sm80(
        STATISTICS, "-exponential(sink - lse) * delta", "exponential(sink - lse) * delta", ["sinks"]
    ),
    # Sums.
    "an axis of a sum is counted on": sm80(
        SUM, "index - outer * extent[axis]", "index", ["slopes"]
    ),
    "a sum is that of the first warp": sm80(
        SUM, "warp < kThreads / 32; ++warp", "warp < 1; ++warp", ["scale"]
    ),
    "a block's parts go over those of the target before": sm80(
        SUM,
        "lanes_sum<double, 32>(value);\n  __syncthreads();",
        "lanes_sum<double, 32>(value);",
        ["slopes"],
    ),
    "parts are read before they are written": sm80(
        SUM, "= value;\n  __syncthreads();", "= value;", ["scale"]
    ),
    "each thread takes all terms": sm80(SUM, "i += kTeam", "i += 1", ["scale"]),
    "a target lies where its terms do": sm80(
        SUM,
        "place_of(t, params.kept, params.target)",
        "place_of(t, params.kept, params.source)",
        ["slopes"],
    ),
    "only the first block's targets are summed": sm80(
        SUM, "t < params.targets; t += step", "t < params.targets; t += params.targets", ["slopes"]
    ),
}
