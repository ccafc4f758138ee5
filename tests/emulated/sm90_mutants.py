"""Defects of the sm90 kernel, each with the problems that must bring it to light."""

from __future__ import annotations

from collections.abc import Sequence

from mutants import Mutant

FORWARD = "forward_sm90.cuh"
BLOCK = "sm90_block.cuh"
SOFTMAX = "sm90_softmax.cuh"
PRODUCTS = "group_products.cuh"
SCHEDULE = "schedule.cuh"


def sm90(file: str, old: str, new: str, cases: Sequence[str] = ("plain",)) -> Mutant:
    return Mutant(file, old, new, cases, kernel="sm90")


# The key says what is wrong with the mutant.
SM90_MUTANTS = {
    # Places in turns.
    "rows are said to be there at once": sm90(
        FORWARD,
        "wait_async<1>();\n    tell();\n    on_its_way = full.address;",
        "on_its_way = full.address;\n    tell();",
    ),
    "a copy that is on its way is said to be there": sm90(
        FORWARD, "wait_async<1>();\n    tell();", "tell();"
    ),
    "copies aren't shown to the products": sm90(
        FORWARD, "show_products();\n    block.arrive({on_its_way});", "block.arrive({on_its_way});"
    ),
    "K's place is free before it is read": sm90(
        FORWARD,
        "wait_products<kPending>();\n    settle(S.sum[0]);\n"
        "    block.arrive(block.keys().free(keys.stage));",
        "block.arrive(block.keys().free(keys.stage));\n"
        "    wait_products<kPending>();\n    settle(S.sum[0]);",
    ),
    "V's place is free before it is read": sm90(
        FORWARD,
        "wait_products<0>();\n    settle(O.sum[0]);\n"
        "    block.arrive(block.values().free(values.stage));",
        "block.arrive(block.values().free(values.stage));\n"
        "    wait_products<0>();\n    settle(O.sum[0]);",
    ),
    "K is read before it is there": sm90(
        FORWARD, "block.keys().full(keys.stage).wait(keys.parity);", ""
    ),
    "V is read before it is there": sm90(
        FORWARD, "block.values().full(values.stage).wait(values.parity);", ""
    ),
    "K is brought before its place is free": sm90(
        FORWARD, "block.keys().free(keys.stage).wait(keys.parity ^ 1);", ""
    ),
    "V is brought before its place is free": sm90(
        FORWARD, "block.values().free(values.stage).wait(values.parity ^ 1);", ""
    ),
    "Q is brought before its place is free": sm90(
        FORWARD,
        "block.rows().free(rows.stage).wait(rows.parity ^ 1);\n    {",
        "{",
        ["one block"],
    ),
    "the provider waits for the wrong parity": sm90(
        FORWARD, "wait(keys.parity ^ 1);", "wait(keys.parity);"
    ),
    "parities stay when places have gone round": sm90(BLOCK, "parity ^= 1;", ""),
    "places go round one too late": sm90(
        BLOCK, "if (++stage == kStages)", "if (++stage > kStages)"
    ),
    "one warp of the provider's counts for all": sm90(
        FORWARD,
        "block.keys().init(kProviderWarps, Block::kWarps);",
        "block.keys().init(1, Block::kWarps);",
    ),
    "one group's warps free a place": sm90(
        FORWARD,
        "block.values().init(kProviderWarps, Block::kWarps);",
        "block.values().init(kProviderWarps, 4);",
    ),
    "the barriers are used before they are made": sm90(
        FORWARD, "  __syncthreads();\n  if (block.provides())", "  if (block.provides())"
    ),
    "the work is read before it is written": sm90(
        FORWARD, "meet<Block::kProviders>(kProvidersMeet);", "", ["one block", "no keys"]
    ),
    "the rows before wait for what is on its way": sm90(
        FORWARD,
        "tell_all();\n    block.rows().free(rows.stage).wait(rows.parity ^ 1);\n    {",
        "block.rows().free(rows.stage).wait(rows.parity ^ 1);\n    {",
        ["one block", "no keys"],
    ),
    "nobody says that there is nothing more": sm90(
        FORWARD, "block.arrive(block.rows().full(rows.stage));", ""
    ),
    "what comes last has no end": sm90(
        FORWARD,
        "if (threadIdx.x == Block::kGroupThreads) block.work(rows.stage).rows = 0;",
        "",
        ["one block"],
    ),
    "a tile's place is free before it is stored": sm90(
        FORWARD,
        "store_rows<Config>(params, block, softmax, O);\n"
        "    block.arrive(block.rows().free(block.stage));",
        "block.arrive(block.rows().free(block.stage));\n"
        "    store_rows<Config>(params, block, softmax, O);",
        ["one block"],
    ),
    # Who brings and multiplies what.
    "the next tile's keys for this one's rows": sm90(
        FORWARD, "block.work(last ? stage ^ 1 : stage)", "block.work(stage)", ["one block"]
    ),
    "the keys of this step again": sm90(FORWARD, "last ? 0 : key + kBlockN);", "last ? 0 : key);"),
    "the values of the next step": sm90(
        FORWARD,
        "provider.bring_values(block.work(stage), key);",
        "provider.bring_values(block.work(stage), key + kBlockN);",
    ),
    "the first products are made again": sm90(FORWARD, "if (!ahead) {", "{", ["one block"]),
    "products ahead of a tile without keys": sm90(
        FORWARD, "after.rows > 0 && after.sees.keys > 0", "after.rows > 0", ["no keys"]
    ),
    "products ahead of no tile": sm90(
        FORWARD, "after.rows > 0 && after.sees.keys > 0", "after.sees.keys > 0", ["one block"]
    ),
    "the rows of the tile before": sm90(
        FORWARD,
        "group_product<T>(block.Q(rows.stage)",
        "group_product<T>(block.Q(block.stage)",
        ["one block"],
    ),
    "all groups multiply the first one's rows": sm90(
        FORWARD, "block.Q(rows.stage), block.group_row(),", "block.Q(rows.stage), 0,"
    ),
    "Q isn't scaled": sm90(FORWARD, "if (rows_on_their_way >= 0) scale_rows();", "", ["scale"]),
    "Q is scaled again with every copy": sm90(
        FORWARD, "rows_on_their_way = -1;\n    show", "show", ["scale"]
    ),
    "odd rounds are those of another block": sm90(
        SCHEDULE, "gridDim.x - 1 - blockIdx.x", "gridDim.x - blockIdx.x", ["two blocks"]
    ),
    # Products.
    "the second panel of Q is the first one": sm90(
        PRODUCTS, "step / 4 * OwnTile::kPanelBytes + within", "within", ["wide"]
    ),
    "a step of K is 16 bytes": sm90(PRODUCTS, "step % 4 * 32", "step % 4 * 16"),
    "rows of V overlap": sm90(
        PRODUCTS, "step * 16 * OthersTile::kPitch", "step * 8 * OthersTile::kPitch"
    ),
    "V's panels are those of another tile": sm90(
        PRODUCTS,
        "MatrixDescriptor::of(others.base, OthersTile::kPanelBytes)",
        "MatrixDescriptor::of(others.base, OthersTile::kPitch)",
        ["wide"],
    ),
    "the first product adds to the one before": sm90(PRODUCTS, "step > 0);", "true);"),
    # Softmax.
    "the sums before aren't rescaled": sm90(
        FORWARD, "scale_rows(O, alpha);\n        P", "P", ["rising"]
    ),
    "P is that of the tile before": sm90(
        FORWARD, "scale_rows(O, alpha);\n        P.template round<T>(S);", "scale_rows(O, alpha);"
    ),
    "sums go on from tile to tile": sm90(
        FORWARD, "softmax.clear();\n    O.clear();", "", ["one block"]
    ),
    "hidden pairs are seen": sm90(
        FORWARD,
        "if (!sees.template all_visible<Block::kWarpRows, kBlockN>()) hide",
        "if (false) hide",
    ),
    "pairs are hidden by the first warp's rows": sm90(
        FORWARD,
        "sees.from(block.warp_row(), key);",
        "sees.from(block.group_row(), key);",
        ["causal"],
    ),
    "large scores are weighed in one step": sm90(
        SOFTMAX, "== weight.p_exponent;", ">= -1e30f;", ["large"]
    ),
    "subtracted scores are subtracted again": sm90(
        SOFTMAX, "if (!fuses) offset[r] = weight.p_exponent;", "", ["large"]
    ),
    "one row's maximum for both": sm90(
        SOFTMAX, "-= subtracted[r];", "-= subtracted[0];", ["large"]
    ),
    "l isn't rescaled": sm90(SOFTMAX, "l[r] *= alpha[r];", "", ["rising"]),
    "the weights of the tile before aren't rescaled": sm90(
        SOFTMAX, "alpha[r] = weight.rescale(m[r] - reference);", "alpha[r] = 1.0f;", ["rising"]
    ),
}
