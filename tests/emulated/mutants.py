"""Defects to plant in the kernels, each with the problems that must bring it to light."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cupy_flash.source import root
from emulation import run_isolated


@dataclass(frozen=True)
class Mutant:
    """A defect: the only place of `old` in a file becomes `new`."""

    file: str
    old: str
    new: str
    cases: Sequence[str] = ("plain",)
    kernel: str = "simt"

    def plant(self, folder: Path) -> None:
        path = folder / self.file
        text = path.read_text(encoding="utf-8")
        found = text.count(self.old)
        assert found == 1, f"{self.old!r} occurs {found} times in {self.file}: adapt the mutant"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def verdict(self, battery: Callable[..., None], folder: Path) -> str:
        """Plant it into a copy of the sources, a new folder, and say how the battery ends there."""
        shutil.copytree(root(), folder)
        self.plant(folder)
        return run_isolated(battery, self.kernel, self.cases, folder)


SIMT = "forward_simt.cuh"
EPILOGUE = "simt_epilogue.cuh"
THREADS = "simt_threads.cuh"
NAIVE = "naive_row.cuh"
FORWARD_SM80 = "forward_sm80.cuh"
BLOCK_SM80 = "sm80_block.cuh"
FORWARD_WORK = "forward_work.cuh"


def sm80(file: str, old: str, new: str, cases: Sequence[str] = ("float16",)) -> Mutant:
    return Mutant(file, old, new, cases, kernel="sm80")


# The key says what is wrong with the mutant.
MUTANTS = {
    # What lies outside the arrays.
    "rows beyond m are stored": Mutant(
        "schedule.cuh",
        "minimum(tile.row_begin + Config::kBlockM, params.m)",
        "tile.row_begin + Config::kBlockM",
    ),
    "columns beyond p are stored": Mutant(EPILOGUE, "if (column < params.p)", "if (true)"),
    "rows beyond the array are loaded": Mutant(
        "tile.cuh", "x < column_end && first_row + r * kDown < rows", "x < column_end"
    ),
    "columns beyond the array are loaded": Mutant(
        "tile.cuh", "x < column_end && first_row", "first_row"
    ),
    "the causal order of tiles is one too high": Mutant(
        "schedule.cuh", "row_tiles - 1 - row_tile", "row_tiles - row_tile", ["causal"]
    ),
    "values beyond a length are loaded": Mutant(
        SIMT,
        "fetch<kLeft>(v, key, keys.end,",
        "fetch<kLeft>(v, key, params.n,",
        ["lengths before NaN"],
    ),
    "lengths are not clipped": Mutant(
        "schedule.cuh", "minimum(maximum(length, 0ll), extent)", "length", ["lengths out of range"]
    ),
    # Which keys a row sees.
    "a row doesn't see its own key": Mutant(
        "mask.cuh", "minimum(keys, r + right + 1)", "minimum(keys, r + right)", ["causal"]
    ),
    "a row sees one key ahead": Mutant(
        "mask.cuh", "minimum(keys, r + right + 1)", "minimum(keys, r + right + 2)", ["causal"]
    ),
    "padding keys count": Mutant(
        "mask.cuh", "r + right + 1) : keys;", "r + right + 1) : 999;", ["few keys"]
    ),
    "padding rows count": Mutant("mask.cuh", "r < rows ? last : 0", "last", ["lengths"]),
    "a tile of full rows is taken for full": Mutant(
        "mask.cuh", "rows >= kRows && keys >= kKeys", "rows >= kRows", ["one tile"]
    ),
    "a tile under the diagonal is taken for full": Mutant(
        "mask.cuh", "right >= kKeys - 1", "right >= 0", ["causal, far right", "causal"]
    ),
    "the last key is dropped": Mutant(
        "mask.cuh", "{key_begin, extent.keys}", "{key_begin, extent.keys - 1}"
    ),
    "the last row's own key isn't visited": Mutant(
        "mask.cuh", "row_end + extent.offset", "row_end + extent.offset - 1", ["causal"]
    ),
    "the offset is lost": Mutant(
        "mask.cuh", "row_begin + extent.offset - keys.begin", "row_begin - keys.begin", ["causal"]
    ),
    "the offset ignores q_lengths": Mutant(
        "schedule.cuh",
        "extent.keys - extent.rows",
        "extent.keys - params.m",
        ["causal lengths"],
    ),
    # Strides and indices.
    "rows and columns of the result are swapped": Mutant(
        EPILOGUE,
        "row * params.o.row + column * params.o.column",
        "row * params.o.column + column * params.o.row",
    ),
    "rows step by the stride of columns": Mutant(
        "tile.cuh", "* matrix.row_stride +", "* matrix.column_stride +"
    ),
    "columns are taken for dense": Mutant(
        "tile.cuh", "x * matrix.column_stride", "x", ["transposed", "sliced"]
    ),
    "batch axes take each other's stride": Mutant(
        "schedule.cuh",
        "tile.batch[axis] * operand.batch[axis]",
        "tile.batch[axis] * operand.batch[axis ^ 1]",
        ["batch axes"],
    ),
    "grouped heads are interleaved": Mutant(
        SIMT,
        "tile.head / params.group",
        "tile.head % (params.heads / params.group)",
        ["grouped heads"],
    ),
    "a block skips every other tile": Mutant(
        "schedule.cuh", "(round) * gridDim.x", "(round) * 2", ["one block"]
    ),
    "a block computes one tile only": Mutant(
        "schedule.cuh", "number(round) >= params.tiles", "number(round) >= gridDim.x", ["one block"]
    ),
    "the pieces of a thread's columns overlap": Mutant(THREADS, "* pack + c % pack", "* pack"),
    # Scales.
    "the rest of the scale is lost": Mutant(
        "score.cuh", "return dot * factor;", "return dot;", ["scale", "small scale"]
    ),
    "the scale is that of the padded head dim": Mutant(
        "score.cuh",
        "params.scale_softcap : params.scale_s",
        "params.scale_softcap : 1 / (params.scale_q * sqrt(double(Config::kHeadDim)))",
    ),
    "the power of two in the scale is lost": Mutant(SIMT, "static_cast<A>(params.scale_q)", "A(1)"),
    "exponentials have base 2": Mutant("exponential.cuh", "x * 1.4426950408889634f", "x"),
    # The online softmax.
    "a row that has seen no key yet takes -inf from -inf": Mutant(
        "softmax.cuh", "m == -Limits<A>::infinity() ? A(0) : m", "m", ["hopeless tile"]
    ),
    "empty rows are divided": Mutant(
        "softmax.cuh", "empty(r) ? A(0) : sum / l[r]", "sum / l[r]", ["causal, far left"]
    ),
    "O is not rescaled": Mutant(
        SIMT,
        "softmax.update(S, alpha);\n    scale_rows(O, alpha);",
        "softmax.update(S, alpha);",
    ),
    "l is not rescaled": Mutant("softmax.cuh", "l[r] *= alpha[r];", ""),
    "m is not kept": Mutant("softmax.cuh", "m[r] = m_new;", ""),
    "p_scale stays in lse": Mutant("softmax.cuh", "l[r] / weight.p_scale()", "l[r]"),
    "P lacks p_scale": Mutant(
        "softmax.cuh",
        "return exponential(below) * scale;",
        "return exponential(below);",
    ),
    "the sum over lanes is a step short": Mutant(
        "softmax.cuh",
        "step > 0; step /= 2) {\n    value +=",
        "step > 1; step /= 2) {\n    value +=",
    ),
    "the maximum over lanes is a step short": Mutant(
        "softmax.cuh",
        "step > 0; step /= 2) {\n    value = maximum",
        "step > 1; step /= 2) {\n    value = maximum",
    ),
    "l is not summed over lanes": Mutant(EPILOGUE, "softmax.finish();", ""),
    "a mean of the largest number overflows": Mutant(
        "softmax.cuh",
        "beyond ? (mean > A(0) ? largest : -largest) : mean",
        "mean",
        ["largest"],
    ),
    # The order of the threads.
    "no barrier between storing and reading K": Mutant(
        SIMT,
        "next_k.store(block.K, A(1));\n      __syncthreads();",
        "next_k.store(block.K, A(1));",
    ),
    "no barrier between reading and overwriting K": Mutant(
        SIMT,
        "block.product_of_columns(block.Q, x, block.K, S);\n      __syncthreads();",
        "block.product_of_columns(block.Q, x, block.K, S);",
        ["wide"],
    ),
    "no barrier between storing and reading V": Mutant(
        SIMT,
        "next_v.store(block.V, A(1));\n      __syncthreads();",
        "next_v.store(block.V, A(1));",
    ),
    "no barrier between reading and overwriting V": Mutant(
        SIMT, "block.V, O);\n      __syncthreads();", "block.V, O);"
    ),
    "a barrier that some warps skip": Mutant(
        SIMT,
        "block.V, O);\n      __syncthreads();",
        "block.V, O);\n      if (threadIdx.x >= 32) __syncthreads();",
    ),
    # What is loaded ahead.
    "the same chunk of K twice": Mutant(
        SIMT,
        "fetch<kLeft>(k, key, keys.end, x + Block::kChunkD,",
        "fetch<kLeft>(k, key, keys.end, x,",
        ["wide"],
    ),
    "the same tile of K twice": Mutant(
        SIMT, "fetch<kLeft>(k, key + Block::kBlockN,", "fetch<kLeft>(k, key,"
    ),
    "the same chunk of V twice": Mutant(
        SIMT, "fetch<kLeft>(v, key + j + Block::kChunkN,", "fetch<kLeft>(v, key + j,"
    ),
    "the last chunk of d is lost": Mutant(
        SIMT, "x < params.d);", "x + Block::kChunkD < params.d);", ["wide"]
    ),
    # Precision.
    "bfloat16 is truncated": Mutant(
        "types.cuh", "bits + 0x7fffu + ((bits >> 16) & 1u)", "bits", ["bfloat16"]
    ),
    "P is kept in 16 bits": Mutant(
        SIMT,
        "    write_elements(block, block.P, S);",
        "    for (auto& row : S.value)\n"
        "      for (auto& weight : row) weight = to_float(Round<Float16>::from(weight));\n"
        "    write_elements(block, block.P, S);",
    ),
    "l is kept in 16 bits": Mutant(
        "softmax.cuh",
        "l[r] += S(r, c);",
        "l[r] = to_float(Round<Float16>::from(l[r] + S(r, c)));",
        ["float16"],
    ),
    "float64 goes through float32": Mutant(
        "types.cuh",
        "return static_cast<double>(value);",
        "return to_float(value);",
        ["float64"],
    ),
    # The naive kernel.
    "naive: rows beyond m are computed": Mutant(
        "forward_naive.cuh", "if (row < tile.row_end) attend_row", "attend_row", kernel="naive"
    ),
    "naive: columns beyond p are stored": Mutant(
        NAIVE,
        "if (x < params.p) {\n        store_global",
        "if (true) {\n        store_global",
        kernel="naive",
    ),
    "naive: keys beyond n are loaded": Mutant(
        NAIVE, "if (visible) {", "if (true) {", kernel="naive"
    ),
    "naive: values beyond n are loaded": Mutant(
        NAIVE, "minimum(keys.end - tile, static_cast<long long>(kWarp))", "kWarp", kernel="naive"
    ),
    "naive: values beyond a length are loaded": Mutant(
        NAIVE,
        "minimum(keys.end - tile,",
        "minimum(params.n - tile,",
        ["lengths before NaN"],
        kernel="naive",
    ),
    "naive: every key has the first one's weight": Mutant(
        NAIVE, "S(0, 0), j)", "S(0, 0), 0)", kernel="naive"
    ),
    "naive: O is not rescaled": Mutant(
        NAIVE,
        "softmax.update(S, alpha);\n      scale_rows(O, alpha);",
        "softmax.update(S, alpha);",
        kernel="naive",
    ),
    "naive: columns beyond the first chunk are lost": Mutant(
        NAIVE, "while (column < params.p)", "while (false)", ["wider"], kernel="naive"
    ),
    "naive: rows and columns of k are swapped": Mutant(
        NAIVE,
        "key * params.k.row + x * params.k.column",
        "key * params.k.column + x * params.k.row",
        kernel="naive",
    ),
    "naive: every head has its own key head": Mutant(
        NAIVE, "tile.head / params.group", "tile.head", ["grouped heads"], kernel="naive"
    ),
}
