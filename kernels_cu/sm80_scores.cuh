// What sm80 does to a warp's tile between its two products: fetches the mask and the bias, makes scores of
// the products, hides pairs.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "ptx/opaque.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "score_fragments.cuh"
#include "types.cuh"

// Gives the elements that lie outside of a warp's band of keys the score -inf.
template <class Config, class Block>
__device__ __forceinline__ void hide(const TileMask<Config>& sees, const Block& block,
                                     typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  const int lane = block.lane();
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    // Counted from the thread's first column, so that comparisons with a constant are left.
    const int begin = sees.begin(Scores::row_of(lane, r)) - Scores::column_of(lane, 0);
    const int end = sees.end(Scores::row_of(lane, r)) - Scores::column_of(lane, 0);
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      const int column = Scores::column_of(0, c);
      const bool visible = column < end && (!Config::kLeft || column >= begin);
      S(r, c) = Score<Config>::masked(S(r, c), visible);
    }
  }
}

template <class Config, class Block>
__device__ __forceinline__ void hide(const typename Block::MaskWords& mask,
                                     typename Block::Scores& S) {
  using Scores = typename Block::Scores;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) S(r, c) = Score<Config>::masked(S(r, c), mask(r, c));
  }
}

template <class Block>
__device__ __forceinline__ FragmentPlace place_of(const Block& block) {
  // Opaque, or what follows from the thread's place lives in registers through the whole kernel.
  const int thread = opaque(static_cast<int>(threadIdx.x));
  const int lane = thread % 32;
  const Tile& tile = block.work().tile;
  return {thread / 32 * Block::kWarpRows + Block::Scores::row_of(lane, 0),
          static_cast<int>(tile.row_end - tile.row_begin) - 1, Block::Scores::column_of(lane, 0)};
}

// The mask and the bias from the block's first row and key `key` on.
template <class Config, class Block>
__device__ __forceinline__ ScoreArrays<Config> arrays_of(const Params& params, const Block& block,
                                                         int key) {
  const auto& work = block.work();
  return ScoreArrays<Config>::at(params, work.mask, work.bias).from(0, key);
}

template <class Config, class Block>
__device__ __forceinline__ void fetch_mask(const Params& params, const Block& block, int key,
                                           typename Block::MaskPairs& mask) {
  const auto& work = block.work();
  mask.fetch(arrays_of<Config>(params, block, key).mask, place_of(block), work.sees.keys - key,
             work.mask_paired);
}

template <class Config, class Block>
__device__ __forceinline__ void fetch_bias(const Params& params, const Block& block, int key,
                                           typename Block::Bias& bias) {
  const auto& work = block.work();
  bias.fetch(arrays_of<Config>(params, block, key).bias, place_of(block), work.sees.keys - key,
             work.bias_paired);
}

// Makes the scores of a warp's products.
template <class Config, class Block>
__device__ __forceinline__ void score_tile(const Block& block, int key,
                                           const typename Block::Bias& bias,
                                           typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  const Score<Config> score = block.work().score;
  const FragmentPlace first = place_of(block);
  const float place = static_cast<float>(block.work().place - key);
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    // Of the thread's first column.
    const float distance =
        place + static_cast<float>(first.row + Scores::row_of(0, r) - first.column);
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      float b = 0.0f;
      if constexpr (Score<Config>::kBias) b = bias.value(r, c);
      S(r, c) = score(S(r, c), b, distance - static_cast<float>(Scores::column_of(0, c)));
    }
  }
}

// Where the bias is -inf any product gives -inf, unless it isn't finite.
template <class Block>
__device__ __forceinline__ void clear_hidden_products(const typename Block::Bias& bias,
                                                      typename Block::Scores& S) {
  using Scores = typename Block::Scores;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      if (bias.value(r, c) == -Limits<float>::infinity()) S(r, c) = 0.0f;
    }
  }
}

// Zeroes the values of keys that no row of the block sees.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_values(const Params& params, const Block& block,
                                                    int key) {
  const ScoreArrays<Config> arrays = arrays_of<Config>(params, block, key);
  const TileMask<Config> sees = block.work().sees.from(0, key);
#pragma unroll 1
  for (int j = threadIdx.x; j < Config::kBlockN; j += Block::kThreads) {
    if (arrays.any_row_sees(sees, j)) continue;
#pragma unroll 1
    for (int piece = 0; piece < Block::VTile::kPieces; ++piece) {
      store_shared(block.V().at(j, piece), Words4{});
    }
  }
}

