// What a block of sm80 brings to shared memory in the backward pass: its own tiles, the others that pass by,
// their statistics, and the mask and the bias.
#pragma once

#include "backward_params.cuh"
#include "matrix_tile.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/opaque.cuh"
#include "score_arrays.cuh"
#include "score_tile.cuh"
#include "sm80_backward_block.cuh"
#include "types.cuh"

// Starts the copies of the own rows, or keys, that exist in an entry.
template <class Config, class Block>
__device__ __forceinline__ void copy_own(const BackwardParams& params, const Block& block,
                                         const typename Block::Work& work) {
  using T = typename Block::T;
  const Params& forward = params.forward;
  const Tile& entry = work.entry;
  const long long begin = work.own.begin;
  const long long head = Config::kOfKeys ? quotient(entry.head, forward.group) : entry.head;
  const Operand& first = Config::kOfKeys ? forward.k : forward.q;
  const Operand& second = Config::kOfKeys ? forward.v : params.d_o;
  const long long extent = Config::kOfKeys ? entry.extent.keys : entry.extent.rows;
  const int count = static_cast<int>(minimum(work.own.end, extent) - begin);
  TileCopy<T, typename Block::OwnFirst, Block::kThreads, Config::kUnit>::run(
      block.own_first(), {entry_of<const T>(first, entry, head), first.row, first.column}, begin,
      count, static_cast<int>(forward.d));
  if constexpr (Block::kDerivative) {
    TileCopy<T, typename Block::OwnSecond, Block::kThreads, Config::kUnit>::run(
        block.own_second(), {entry_of<const T>(second, entry, head), second.row, second.column},
        begin, count, static_cast<int>(forward.p));
  }
}

// Brings the factor of q into the own first matrix, which is as good.
template <class Config, class Block>
__device__ __forceinline__ void scale_own(const BackwardParams& params, const Block& block) {
  const float factor = static_cast<float>(params.forward.scale_q);
  if (factor == 1.0f) return;
  const Operand& first = Config::kOfKeys ? params.forward.k : params.forward.q;
  wait_async<0>();
  TileCopy<typename Block::T, typename Block::OwnFirst, Block::kThreads, Config::kUnit>::scale(
      block.own_first(), {nullptr, first.row, first.column}, factor);
}

// Starts the copy of one matrix of the others from `at` on, if there are any.
template <bool kSkip, class Config, class Block>
__device__ __forceinline__ void copy_first(const BackwardParams& params, const Block& block,
                                           const typename Block::Work& work, int at, int stage) {
  const Operand& first = Config::kOfKeys ? params.forward.q : params.forward.k;
  if (work.others <= at) return;
  TileCopy<typename Block::T, typename Block::First, Block::kThreads, Config::kUnit>::template run<kSkip>(
      block.first(stage), {work.first, first.row, first.column}, at, work.others - at,
      static_cast<int>(params.forward.d), kSkip ? work.skipped - at : 0);
}

template <bool kSkip, class Config, class Block>
__device__ __forceinline__ void copy_second(const BackwardParams& params, const Block& block,
                                            const typename Block::Work& work, int at, int stage) {
  const Operand& second = Config::kOfKeys ? params.d_o : params.forward.v;
  if (work.others <= at) return;
  TileCopy<typename Block::T, typename Block::Second, Block::kThreads, Config::kUnit>::template run<kSkip>(
      block.second(stage), {work.second, second.row, second.column}, at, work.others - at,
      static_cast<int>(params.forward.p), kSkip ? work.skipped - at : 0);
}

// Of keys: starts the copy of the statistics of a tile's rows, two to a piece. They reach to its end.
template <class Config, class Block>
__device__ __forceinline__ void copy_statistics(const Block& block, const typename Block::Work& work,
                                                int at, int stage) {
  if constexpr (Config::kOfKeys) {
    const int pair = opaque(static_cast<int>(threadIdx.x));
    if (work.others > at && pair < Block::kOthers / 2) {
      copy_async<16>(block.statistics(stage) + pair * 16, work.statistics + at + pair * 2, true);
    }
  }
}

// Starts the copies of the tiles of mask and bias from `at` on, if there are any.
template <class Config, class Block>
__device__ __forceinline__ void copy_arrays(const Params& forward, const Block& block,
                                            const typename Block::Work& work, int at, int stage) {
  if (!Block::kArrays || work.others <= at) return;
  const long long row = Config::kOfKeys ? at : 0;
  const long long key = Config::kOfKeys ? 0 : at;
  const int rows = Config::kOfKeys ? work.others - at : work.own_count;
  const int keys = Config::kOfKeys ? work.own_count : work.others - at;
  const auto arrays = ScoreArrays<Config>::at(forward, work.mask, work.bias).from(row, key);
  if constexpr (Config::kMask) {
    copy_score_tile<Block::kThreads>(block.mask(stage), arrays.mask, Config::kMaskRows ? rows : 1, keys,
                                     work.mask_unit);
  }
  if constexpr (Score<Config>::kBias) {
    copy_score_tile<Block::kThreads>(block.bias(stage), arrays.bias, Config::kBiasRows ? rows : 1, keys,
                                     work.bias_unit);
  }
}

// Zeroes the others in a stage that no row, or key, of the own sees: 0 times NaN is NaN. Of a matrix that P
// and dS aren't multiplied with nothing need be zero, and the next tile's may have come already.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_others(const Params& forward, const Block& block, int at,
                                                    int stage) {
  const auto& work = block.work();
  const auto arrays = ScoreArrays<Config>::at(forward, work.mask, work.bias);
#pragma unroll 1
  for (int other = threadIdx.x; other < Block::kOthers; other += Block::kThreads) {
    bool seen = false;
#pragma unroll 1
    for (int own = 0; own < work.own_count && !seen; ++own) {
      const int row = Config::kOfKeys ? at + other : own;
      const int key = Config::kOfKeys ? own : at + other;
      seen = work.sees.visible(row, key) && arrays(row, key).visible;
    }
    if (seen) continue;
    if constexpr (Config::kFirst) {
#pragma unroll 1
      for (int piece = 0; piece < Block::First::kPieces; ++piece) {
        store_shared(block.first(stage).at(other, piece), Words4{});
      }
    }
    if constexpr (Config::kSecond) {
#pragma unroll 1
      for (int piece = 0; piece < Block::Second::kPieces; ++piece) {
        store_shared(block.second(stage).at(other, piece), Words4{});
      }
    }
  }
}

// Waits for all copies, and until no warp reads what has been used.
__device__ __forceinline__ void wait_for_copies() {
  wait_async<0>();
  __syncthreads();
}
