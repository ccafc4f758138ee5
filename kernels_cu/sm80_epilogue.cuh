// What sm80 writes of a tile: O from the warps' sums, by way of shared memory, so that rows go to global
// memory in pieces of 16 bytes, and lse.
#pragma once

#include "matrix_tile.cuh"
#include "params.cuh"
#include "ptx/opaque.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared.cuh"
#include "schedule.cuh"
#include "types.cuh"

// Divides a warp's sums by l.
template <class OType, class Softmax, class Output>
__device__ __forceinline__ void divide_rows(const Softmax& softmax, Output& O) {
  float inverse[Output::kRows];
  bool special = false;  // rows without keys, and means that rounding or infinities lead out of range
#pragma unroll
  for (int r = 0; r < Output::kRows; ++r) {
    inverse[r] = 1.0f / softmax.l[r];
    float largest = 0.0f;
#pragma unroll
    for (int c = 0; c < Output::kColumns; ++c) largest = maximum(largest, magnitude(O(r, c)));
    special = special || softmax.empty(r) || largest * inverse[r] > Limits<OType>::largest();
  }
  if (__any_sync(0xffffffffu, special)) {
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
#pragma unroll
      for (int c = 0; c < Output::kColumns; ++c) {
        O(r, c) = softmax.template output<OType>(r, O(r, c), inverse[r]);
      }
    }
  } else {
    scale_rows(O, inverse);
  }
}

// Writes the first `columns` elements of the first `rows` rows of a warp's tile in shared memory.
template <class OType, class Tile>
__device__ __forceinline__ void store_tile(const Tile& tile, OType* target, const Operand& o,
                                           int rows, int columns) {
  const bool whole = o.column == 1 && o.row % 8 == 0 && columns % 8 == 0 &&
                     reinterpret_cast<unsigned long long>(target) % 16 == 0;
#pragma unroll 1
  for (int i = opaque(static_cast<int>(threadIdx.x)) % 32; i < Tile::kRows * Tile::kPieces; i += 32) {
    const int row = i / Tile::kPieces;
    const int column = i % Tile::kPieces * 8;
    if (row >= rows || column >= columns) continue;
    const Words4 words = load_shared<Words4>(tile.at(row, column / 8));
    OType* piece = target + row * o.row + column * o.column;
    if (whole) {
      store_global(reinterpret_cast<Words4*>(piece), words);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const unsigned bits = words.word[e / 2] >> 16 * (e % 2) & 0xffffu;
        if (column + e < columns) {
          store_global(piece + e * o.column, OType{static_cast<unsigned short>(bits)});
        }
      }
    }
  }
}

// Writes the rows of O and lse that a warp holds. Every warp is done with the tiles in shared memory.
template <class Config, class Block>
__device__ __forceinline__ void store_rows(const Params& params, const Block& block,
                                           const typename Block::Softmax& softmax,
                                           typename Block::Output& O) {
  using OType = typename Config::OType;
  using Output = typename Block::Output;
  using Tile = MatrixTile<Block::kWarpRows, Config::kHeadDimV>;
  static_assert(Block::kWarps * Tile::kBytes == Block::kOutputBytes, "one tile a warp");
  const auto& tile = block.work().tile;
  const int lane = block.lane();
  const long long first_row = tile.row_begin + block.warp_row();
  if (params.lse.data != nullptr && lane % Output::kLanes == 0) {
    float* lse = entry_of<float>(params.lse, tile, tile.head);
#pragma unroll
    for (int r = 0; r < Output::kRows; ++r) {
      const long long row = first_row + Output::row_of(lane, r);
      if (row < tile.row_end) store_global(lse + row * params.lse.row, softmax.lse(r));
    }
  }
  divide_rows<OType>(softmax, O);
  const Tile shared = {block.output() + threadIdx.x / 32 * Tile::kBytes};
#pragma unroll
  for (int r = 0; r < Output::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Output::kColumns; c += 2) {
      const int column = Output::column_of(lane, c);
      store_shared(shared.at(Output::row_of(lane, r), column / 8) + column % 8 * 2,
                   pack_pair<OType>(O(r, c), O(r, c + 1)));
    }
  }
  __syncwarp();
  store_tile(shared, entry_of<OType>(params.o, tile, tile.head) + first_row * params.o.row, params.o,
             static_cast<int>(tile.row_end - first_row), static_cast<int>(params.p));
}
