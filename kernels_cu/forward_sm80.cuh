// Attention of 16-bit elements on the tensor cores (mma.sync), d and p to 256, Ampere and newer.
//
// A block of kWarps warps computes kBlockM rows, each warp 16 or 32 of them through all keys. Q stays in
// shared memory, beside one tile of K and one of V: while one is used, cp.async brings the other. P never
// leaves the registers: the accumulators of S = Q K^T are, rounded to 16 bits, the left factor of P V.
#pragma once

#include "fragments.cuh"
#include "mask.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "sm80_block.cuh"
#include "sm80_epilogue.cuh"
#include "sm80_scores.cuh"
#include "types.cuh"

// Starts the copies of the keys from `key` on, and of their values; beyond the last key there are none.
// kSkip: the tile may be the first one, of which some keys may be out of sight.
template <bool kSkip, class Block>
__device__ __forceinline__ void copy_k(const Params& params, const Block& block,
                                       const typename Block::Work& work, int key) {
  const int keys = work.sees.keys - key;
  if (keys > 0) {
    Block::CopyK::template run<kSkip>(block.K(), {work.k, params.k.row, params.k.column}, key, keys,
                                      static_cast<int>(params.d), kSkip ? work.skipped - key : 0);
  }
  commit_async();
}

template <bool kSkip, class Block>
__device__ __forceinline__ void copy_v(const Params& params, const Block& block, int key) {
  const auto& work = block.work();
  const int keys = work.sees.keys - key;
  if (keys > 0) {
    Block::CopyV::template run<kSkip>(block.V(), {work.v, params.v.row, params.v.column}, key, keys,
                                      static_cast<int>(params.p), kSkip ? work.skipped - key : 0);
  }
  commit_async();
}

// Starts the copies of what the first product takes.
template <class Config, class Block>
__device__ __forceinline__ void copy_first(const Params& params, const Block& block,
                                           const typename Block::Work& work) {
  copy_mask<Config>(params, block, work, 0);
  copy_k<Config::kLeft>(params, block, work, 0);
}

// Waits until what was copied last has landed for all threads and what was used last is free.
__device__ __forceinline__ void wait_for_copy() {
  wait_async<0>();
  __syncthreads();
}

// The fragments of Q, read again for every tile of keys: held in registers they left too few.
template <class Block>
struct QFragments {
  unsigned address;

  __device__ __forceinline__ explicit QFragments(const Block& block)
      : address(block.Q().at(block.warp_row() + block.lane() % 16, block.lane() / 16)) {}

  __device__ __forceinline__ void operator()(int tile, int step, unsigned (&a)[4]) const {
    load_matrix(Block::QTile::further(address, step, 16 * tile), a);
  }
};

// Waits for Q and brings its factor into it. Other threads see it after the first tile's barrier.
template <class Block>
__device__ __forceinline__ void scale_q(const Params& params, const Block& block) {
  const float factor = static_cast<float>(params.scale_q);
  if (factor == 1.0f) return;
  wait_async<0>();
  Block::CopyQ::scale(block.Q(), {nullptr, params.q.row, params.q.column}, factor);
}

// Whether a maximum of the warp's rows rose, so that O must be rescaled: else its factors are 1.
template <int kRows>
__device__ __forceinline__ bool any_rescales(const float (&alpha)[kRows]) {
  bool any = false;
#pragma unroll
  for (int r = 0; r < kRows; ++r) any = any || alpha[r] != 1.0f;
  return __any_sync(0xffffffffu, any);
}

// Computes m, l and O of the warp's rows over all keys. The first tile of K is on its way.
template <class Config, class Block>
__device__ __forceinline__ void attend(const Params& params, const Block& block,
                                       typename Block::Softmax& softmax,
                                       typename Block::Output& O) {
  using T = typename Block::T;
  constexpr int kBlockN = Config::kBlockN;
  constexpr bool kMask = Config::kMask;
  softmax.clear();
  O.clear();
  for (int key = 0; key < block.work().sees.keys; key += kBlockN) {
    // A warp may see nothing of a tile that other rows of the block see.
    const TileMask<Config> sees = block.work().sees.from(block.warp_row(), key);
    bool idle = !sees.template any_visible<Block::kWarpRows, kBlockN>();
    typename Block::Scores S;
    wait_for_copy();
    copy_bias<Config>(params, block, key);
    copy_mask<Config>(params, block, block.work(), key + kBlockN);
    copy_v<Config::kLeft>(params, block, key);
    if (kMask && !idle) idle = !mask_shows(block, key);
    if (!idle) {
      S.clear();
      product_qk<T>(QFragments<Block>(block), block.K(), block.lane(), S);
    }
    wait_for_copy();
    copy_k<false>(params, block, block.work(), key + kBlockN);
    if (ScoreArrays<Config>::kHide && block.work().careful) {
      clear_hidden_values<Config>(params, block, key);
      __syncthreads();
    }
    if (!idle) {
#pragma unroll
      for (int r = 0; r < Block::Scores::kRows; ++r) score_row<Config>(block, key, r, S);
      if (!sees.template all_visible<Block::kWarpRows, kBlockN>()) hide_outside(sees, block, S);
      float alpha[Block::Scores::kRows];
      softmax.update(S, alpha);
      if (!Block::kRescaleSeldom || any_rescales(alpha)) scale_rows(O, alpha);
      product_pv<T>(S, block.V(), block.lane(), O);
    }
  }
}

template <class Config>
__device__ __forceinline__ void forward_sm80(const Params& params) {
  using Block = Sm80Block<Config>;
  using T = typename Block::T;
  const Block block;
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    // Q's copies belong to the first group.
    Block::CopyQ::run(block.Q(),
                      {entry_of<const T>(params.q, tile, tile.head), params.q.row, params.q.column},
                      tile.row_begin,
                      static_cast<int>(minimum(tile.row_end, tile.extent.rows) - tile.row_begin),
                      static_cast<int>(params.d));
    // All threads compute it, so that the first keys are on their way before a barrier.
    const typename Block::Work first = work_on<Config>(params, tile, schedule.round);
    copy_first<Config>(params, block, first);
    if (threadIdx.x == 0) block.work() = first;
    scale_q(params, block);
    __syncthreads();
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    for (;;) {
      attend<Config>(params, block, softmax, O);
      if (block.work().careful || !needs_care<Config>(softmax, O)) break;
      if (threadIdx.x == 0) block.work().careful = true;
      copy_first<Config>(params, block, block.work());
    }
    const Tile& done = block.work().tile;
    if constexpr (Block::kSink) {
      float alpha[Block::Output::kRows];
      softmax.finish(number_of_head<float, typename Config::Sinks>(params.sinks, done), alpha);
      scale_rows(O, alpha);
    } else {
      softmax.finish();
    }
    // O takes the place of the tiles: no warp reads them any more, nor do copies land there.
    wait_async<0>();
    __syncthreads();
    store_rows<Config>(params, block, softmax, O);
    schedule.round = block.work().round;
    __syncthreads();
  }
}
