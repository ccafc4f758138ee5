// What a block of sm80 writes in the backward pass: gradients by way of shared memory, those of pairs, and
// sums over the others.
#pragma once

#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "matrix_tile.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared.cuh"
#include "sm80_backward_block.cuh"
#include "sm80_backward_scores.cuh"
#include "sm80_epilogue.cuh"
#include "softmax.cuh"
#include "types.cuh"

template <class Config, class Block>
__device__ __forceinline__ PairGradients<Config> pair_gradients(const BackwardParams& params,
                                                                const Block& block,
                                                                const OwnTile& own, long long key) {
  PairGradients<Config> pairs = {};
  if constexpr (Config::kPairs) {
    const Operand& dbias = params.dbias;
    const long long row = own.begin + block.warp_row();
    const long long keys = minimum(own.chunk.end - key, static_cast<long long>(Block::kOthers));
    pairs = {own_entry_of<typename Config::DBias>(dbias, own) + row * dbias.row + key * dbias.column,
             dbias.row, dbias.column, static_cast<int>(own.end - row), static_cast<int>(keys)};
  }
  return pairs;
}

// The first key of the first tile that passes by own rows.
template <class Block>
__device__ __forceinline__ long long first_other(const Block& block) {
  const auto& work = block.work();
  return work.own.begin + work.entry.extent.offset - work.place;
}

// Where gradients of pairs with the tile at `at` go at once.
template <class Config, class Block>
__device__ __forceinline__ PairGradients<Config> pair_gradients_at(const BackwardParams& params,
                                                                   const Block& block, int at) {
  if (!Config::kPairs || Block::kPairSums) return {};
  return pair_gradients<Config>(params, block, block.work().own, first_other(block) + at);
}

// Zeroes the gradients of an own tile's pairs with keys that no tile of the entry has.
template <class Config, class Block>
__device__ __forceinline__ void store_no_pairs(const BackwardParams& params, const Block& block) {
  using Element = typename Config::DBias;
  const auto& work = block.work();
  const OwnTile& own = work.own;
  const long long first = first_other(block);
  const long long tiles = (work.others + Block::kOthers - 1) / Block::kOthers;
  const long long behind = minimum(first + tiles * Block::kOthers, own.chunk.end);
  Element* dbias = own_entry_of<Element>(params.dbias, own);
  for (int row = threadIdx.x / 32; row < work.own_count; row += Block::kWarps) {
    Element* of_row = dbias + (own.begin + row) * params.dbias.row;
    for (long long key = own.chunk.begin + block.lane(); key < own.chunk.end; key += 32) {
      if (tiles > 0 && key >= first && key < behind) continue;
      store_global(of_row + key * params.dbias.column, Round<Element>::from(0.0f));
    }
  }
}

// Writes an entry's sums over the others, one number for each of the own rows or keys.
template <class Config, class Block>
__device__ __forceinline__ void store_sums(const Operand& operand, float (&sums)[Block::Scores::kRows],
                                           const Block& block, float factor) {
  using Scores = typename Block::Scores;
  const auto& work = block.work();
  float* target = entry_of<float>(operand, work.entry, work.entry.head) + work.own.begin;
  const bool writes = block.lane() % Scores::kLanes == 0;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) sums[r] = lanes_sum<float, Scores::kLanes>(sums[r]);
  if constexpr (Block::kExchange) {
    // Each of the warps that share a row has seen its part of the others.
    const unsigned parts = block.exchange(0).base;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = block.warp_row() + Scores::row_of(block.lane(), r);
      const unsigned place = parts + (block.part() * Config::kBlockM + row) * 4;
      if (writes) store_shared(place, __float_as_uint(sums[r]));
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = block.warp_row() + Scores::row_of(block.lane(), r);
      sums[r] = 0.0f;
#pragma unroll
      for (int part = 0; part < Block::kSplit; ++part) {
        sums[r] += __uint_as_float(load_shared<unsigned>(parts + (part * Config::kBlockM + row) * 4));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    const int row = block.warp_row() + Scores::row_of(block.lane(), r);
    if (writes && block.part() == 0 && row < work.own_count) store_global(target + row, sums[r] * factor);
  }
}

// Writes a warp's gradients times a factor, by way of an own tile, which nobody reads any more.
template <class T, class OwnTile, class Block, class Sums>
__device__ __forceinline__ void store_gradients(const Block& block, const OwnTile& tile,
                                                const Operand& operand, T* target, int columns,
                                                float factor, Sums& sums) {
  const int first = block.part() * (OwnTile::kColumns / Block::kSplit);
#pragma unroll
  for (int r = 0; r < Sums::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Sums::kColumns; c += 2) {
      const int column = first + Sums::column_of(block.lane(), c);
      store_shared(tile.at(block.warp_row() + Sums::row_of(block.lane(), r), column / 8) + column % 8 * 2,
                   pack_pair<T>(sums(r, c) * factor, sums(r, c + 1) * factor));
    }
  }
  if (Block::kExchange) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  // Each of the warps that share rows writes some of them.
  using Rows = TileRows<OwnTile, Block::kWarpRows / Block::kSplit>;
  const int row = block.warp_row() + block.part() * Rows::kRows;
  const auto& work = block.work();
  store_tile(Rows{tile, row}, target + (work.own.begin + row) * operand.row, operand, work.own_count - row,
             columns);
}
