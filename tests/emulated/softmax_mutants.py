"""Defects to plant in the softmax kernels, each with the problems that must bring it to light."""

from __future__ import annotations

from mutants import Mutant

ONLINE = "softmax_online.cuh"
THREE_PASS = "softmax_three_pass.cuh"
PACKS = "row_packs.cuh"
PIECES = "row_pieces.cuh"
STATISTICS = "row_statistics.cuh"


def online(file: str, old: str, new: str, *cases: str) -> Mutant:
    return Mutant(file, old, new, cases, kernel="online")


def three_pass(file: str, old: str, new: str, *cases: str) -> Mutant:
    return Mutant(file, old, new, cases, kernel="three_pass")


# The key says what is wrong with the mutant.
SOFTMAX_MUTANTS = {
    # The two that a published description of the online softmax has.
    "what earlier blocks summed isn't rescaled": online(
        "softmax.cuh", "l[r] *= alpha[r];", "", "rising in a thread"
    ),
    "a block's sum stays relative to its own maximum": online(
        STATISTICS,
        "mine.l * exponential(mine.m - reference_of(m))",
        "mine.l",
        "rising over threads",
    ),
    "a part's sum stays relative to its own maximum": online(
        STATISTICS,
        "other.l * exponential(other.m - reference)",
        "other.l",
        "falling over many parts",
    ),
    "what earlier parts summed isn't rescaled": online(
        STATISTICS, "l = l * exponential(m - reference)", "l = l", "rising over many parts"
    ),
    "a sum is rescaled twice": online(
        STATISTICS,
        "mine.l * exponential(mine.m - reference_of(m))",
        "mine.l * exponential(mine.m - reference_of(m)) * exponential(mine.m - reference_of(m))",
        "rising over threads",
    ),
    "only the first parts are joined": online(
        ONLINE, "part < row.parts;", "part < row.parts - 1;", "rising over parts"
    ),
    "every thread reports its part": online(
        ONLINE, "row.m + piece.part, found.m", "row.m, found.m", "rising over parts"
    ),
    # -inf.
    "a row of -inf is NaN": online(
        STATISTICS, "row.l == A(0) ? A(0) : A(1) / row.l", "A(1) / row.l", "holes"
    ),
    "-inf is subtracted from -inf": online(
        "softmax.cuh", "m == -Limits<A>::infinity() ? A(0) : m", "m", "holes"
    ),
    # What lies outside a row.
    "elements beyond the row are read, packed": online(
        PACKS,
        "if (i * kPackColumns + kSize <= left) {\n        held",
        "if (true) {\n        held",
        "tail",
    ),
    "elements beyond the row are read, one by one": online(
        PACKS, "inside ? load_global(source)", "true ? load_global(source)", "strided"
    ),
    "elements beyond the row count as 0": online(
        PACKS, "Round<T>::from(-Limits<A>::infinity())", "Round<T>::from(A(0))", "negative"
    ),
    "packs beyond the row are written": online(
        PACKS,
        "if (i * kPackColumns + e < left) {\n            store",
        "{\n            store",
        "tail",
    ),
    "elements beyond the row are written": online(
        PACKS, "if (i * kPackColumns + e * kGroup < left) {", "{", "strided"
    ),
    "rows beyond the last are computed": online(
        PIECES, "const bool there = index < work;", "const bool there = true;", "five rows"
    ),
    # Who owns what.
    "lanes read before the others wrote": online(
        PACKS,
        "values[lane() + j * kGroup] = value[j];\n    __syncwarp();",
        "values[lane() + j * kGroup] = value[j];",
        "strided",
    ),
    "groups exchange through the same memory": online(
        PACKS, "(threadIdx.x - lane()) * kExchange", "0 * kExchange", "strided"
    ),
    "rows take each other's stride": online(
        PIECES, "o += digit * params.o.batch[axis]", "o += digit * params.x.batch[axis]", "strided"
    ),
    "a part begins in the middle of another": online(
        PIECES, "piece.part * params.part_columns", "piece.part * 64", "rising over parts"
    ),
    "warps read before the others wrote": three_pass(
        STATISTICS,
        "numbers[threadIdx.x / kWarpLanes] = value;\n    __syncthreads();",
        "numbers[threadIdx.x / kWarpLanes] = value;",
        "block",
    ),
    "the scratch memory is used again too early": online(
        STATISTICS, "if constexpr (!kInWarp) __syncthreads();", "", "one block"
    ),
    # Three passes.
    "the sum is relative to the part's own maximum": three_pass(
        THREE_PASS,
        "const A reference = reference_of(maximum_of_parts<Config>(row));",
        "const A reference = reference_of(load_global(row.m + piece.part));",
        "rising over parts",
    ),
    "the maximum of all but the last part": three_pass(
        THREE_PASS,
        "part < row.parts; part += Config::kThreads) {\n    m =",
        "part < row.parts - 1; part += Config::kThreads) {\n    m =",
        "far above",
    ),
    "a part's sum isn't counted": three_pass(
        THREE_PASS,
        "part < row.parts; part += Config::kThreads) {\n        l +=",
        "part < row.parts - 1; part += Config::kThreads) {\n        l +=",
        "rising over parts",
    ),
    # Weights that stay in registers, in float64.
    "weights stay relative to the thread's maximum": online(
        STATISTICS, "exponential(m - row.reference) * row.inverse", "row.inverse", "weights"
    ),
    "weights are divided by the sum before the others brought theirs": three_pass(
        THREE_PASS,
        "row.l = Reduction::row_sum(Columns::weigh(packs, reference));",
        "row.l = Columns::weigh(packs, reference);",
        "weights",
    ),
    # Tiles of a part.
    "the first tile is written again": online(
        STATISTICS, "    packs = next;\n", "", "tiles of a part"
    ),
    "the tile after next is loaded": online(
        STATISTICS,
        "params.x.column, begin + Packs<Config>::kTileColumns);",
        "params.x.column, begin + 2 * Packs<Config>::kTileColumns);",
        "tiles of a part",
    ),
}
