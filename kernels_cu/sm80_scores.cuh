// What sm80 does to a warp's tile between its two products: makes scores of the products, hides pairs. And
// the copies of the mask and the bias that this takes.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "ptx/opaque.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "score_tile.cuh"
#include "types.cuh"

// Where a thread's rows begin in its block. Opaque, or what follows from it lives in registers through the
// whole kernel.
template <class Block>
struct ThreadPlace {
  int row;   // of its warp
  int part;  // which of the warps that share the rows it is of
  int lane;

  __device__ __forceinline__ ThreadPlace() {
    const int thread = opaque(static_cast<int>(threadIdx.x));
    row = thread / (32 * Block::kSplit) * Block::kWarpRows;
    part = thread / 32 % Block::kSplit;
    lane = thread % 32;
  }
};

// Gives the elements that lie outside of a warp's band of keys the score -inf.
template <class Config, class Block>
__device__ __forceinline__ void hide_outside(const TileMask<Config>& sees, const Block& block,
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

// The same of those in row r that the mask hides.
template <class Config, class Block>
__device__ __forceinline__ void hide_masked(const typename Block::MaskTile& mask, int r,
                                            typename Block::Scores& S) {
  each_pair(typename Block::ReadMask(mask, ThreadPlace<Block>()), r,
            [&](int c, const StoredPair<unsigned char>& given) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                S(r, c + i) = Score<Config>::masked(S(r, c + i), given.given(i));
              }
            });
}

// Starts the copy of a tile of the mask or the bias from the block's first row and key `key` on. `array`
// begins there; its rows consist of aligned units of `unit` bytes.
template <class Block, class T, class ToTile>
__device__ __forceinline__ void copy_scores(const typename Block::Work& work, const ToTile& tile,
                                            const Matrix<T>& array, int key, int unit) {
  const int keys = work.sees.keys - key;
  if (keys <= 0) return;
  copy_score_tile<Block::kThreads>(tile, array, ToTile::kRows > 1 ? work.rows : 1, keys, unit);
}

template <class Config, class Work>
__device__ __forceinline__ ScoreArrays<Config> arrays_of(const Params& params, const Work& work,
                                                         int key) {
  return ScoreArrays<Config>::at(params, work.mask, work.bias).from(0, key);
}

template <class Config, class Block>
__device__ __forceinline__ void copy_mask(const Params& params, const Block& block,
                                          const typename Block::Work& work, int key) {
  if constexpr (Config::kMask) {
    copy_scores<Block>(work, block.mask(key), arrays_of<Config>(params, work, key).mask, key,
                       work.mask_unit);
  }
}

template <class Config, class Block>
__device__ __forceinline__ void copy_bias(const Params& params, const Block& block, int key) {
  if constexpr (Score<Config>::kBias) {
    const auto& work = block.work();
    copy_scores<Block>(work, block.bias(), arrays_of<Config>(params, work, key).bias, key,
                       work.bias_unit);
  }
}

// Whether the mask shows the warp any pair of a tile.
template <class Block>
__device__ __forceinline__ bool mask_shows(const Block& block, int key) {
  using Tile = typename Block::MaskTile;
  const Tile mask = block.mask(key);
  constexpr int kRows = Tile::kRows > 1 ? Block::kWarpRows : 1;
  const unsigned first = mask.base + (Tile::kRows > 1 ? block.warp_row() * Tile::kPitch : 0);
  unsigned any = 0;
#pragma unroll
  for (int piece = 0; piece < kRows * Tile::kPieces; piece += 32) {
    if (piece + block.lane() < kRows * Tile::kPieces) {
      const Words4 words = load_shared<Words4>(first + (piece + block.lane()) * 16);
#pragma unroll
      for (int w = 0; w < 4; ++w) any |= words.word[w];
    }
  }
  return __any_sync(0xffffffffu, any != 0);
}

// Puts the cap c on the products of row r: S = tanh(s / c).
template <class Config, class Scores>
__device__ __forceinline__ void cap_products(const Score<Config>& score, int r, Scores& S) {
  float largest = 0.0f;
#pragma unroll
  for (int c = 0; c < Scores::kColumns; ++c) {
    S(r, c) *= score.factor;
    largest = maximum(largest, magnitude(S(r, c)));
  }
  // Both ways give an element the same bits.
  if (__any_sync(0xffffffffu, largest > kSmallTangent)) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) S(r, c) = hyperbolic_tangent(S(r, c));
  } else {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) S(r, c) = small_hyperbolic_tangent(S(r, c));
  }
}

// Adds what is added to the products of row r, or to tanh of them: S becomes natural scores.
template <class Config, class Block>
__device__ __forceinline__ void add_terms(const Block& block, const Score<Config>& score, int key,
                                          int r, typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  using Bias = typename Config::Bias;
  constexpr bool kAlibi = Score<Config>::kAlibi;
  const ThreadPlace<Block> place;
  float distance = 0.0f;  // of the thread's first column
  if constexpr (kAlibi) {
    distance = static_cast<float>(block.work().place - key) +
               static_cast<float>(place.row + Scores::row_of(place.lane, r) -
                                  Scores::column_of(place.lane, 0));
  }
  const auto add = [&](int c, float bias) {
    const float column = static_cast<float>(Scores::column_of(0, c));
    S(r, c) = score.with_terms(S(r, c), bias, kAlibi ? distance - column : 0.0f);
  };
  if constexpr (Score<Config>::kBias) {
    each_pair(typename Block::ReadBias(block.bias(), place), r,
              [&](int c, const StoredPair<Bias>& bias) {
                add(c, bias.value(0));
                add(c + 1, bias.value(1));
              });
  } else {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) add(c, 0.0f);
  }
}

// Where the bias is -inf any product gives -inf, unless it isn't finite.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_products(const Block& block, int key, int r,
                                                      typename Block::Scores& S) {
  using Bias = typename Config::Bias;
  each_pair(typename Block::ReadBias(block.bias(), ThreadPlace<Block>()), r,
            [&](int c, const StoredPair<Bias>& bias) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                if (bias.value(i) == -Limits<float>::infinity()) S(r, c + i) = 0.0f;
              }
            });
}

// Makes scores of the products in row r of a warp's tile at `key`, in the unit Params::unit: that of the
// products, or with a cap c, or if terms are added natural ones.
template <class Config, class Block>
__device__ __forceinline__ void score_row(const Block& block, int key, int r,
                                          typename Block::Scores& S) {
  const Score<Config> score = block.work().score;
  if constexpr (Score<Config>::kBias) {
    if (block.work().careful) clear_hidden_products<Config>(block, key, r, S);
  }
  if constexpr (Config::kSoftcap) cap_products(score, r, S);
  if constexpr (Score<Config>::kTerms) add_terms(block, score, key, r, S);
  if constexpr (Config::kMask) hide_masked<Config, Block>(block.mask(key), r, S);
}

// Zeroes the values of keys that no row of the block sees.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_values(const Params& params, const Block& block,
                                                    int key) {
  const ScoreArrays<Config> arrays = arrays_of<Config>(params, block.work(), key);
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

