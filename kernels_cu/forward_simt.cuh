// Attention with tiled FMA, every element type, d and p to 256; and of float64 with the tensor cores.
//
// A block of kThreadsM x kThreadsN threads computes kBlockM rows. Q stays in shared memory; K and V pass
// through one stage, K in chunks of kChunkD columns and V in chunks of kChunkN rows. While a chunk is
// multiplied the next one is loaded into registers: with loads in the open, warps waited for them 64 % of
// the time (float32, d = 64, H200). A thread owns rows thread_m + r kThreadsM, so the lanes of a warp own
// whole rows: the softmax is warp shuffles. P goes through shared memory between the lanes of a warp.
//
// On the tensor cores K and V have a place each, whole tiles come there by cp.async while the other one is
// multiplied, and P is a left factor as it lies in registers.
#pragma once

#include "mask.cuh"
#include "matrix_threads.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "simt_block.cuh"
#include "simt_epilogue.cuh"
#include "simt_scores.cuh"
#include "simt_threads.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

// Computes m, l and O of the block's rows over all keys; `careful` if values of hidden keys may be NaN.
template <class Config, class Block>
__device__ __forceinline__ void attend(const Params& params, const Schedule<Config>& schedule,
                                       const Block& block, const Tile& tile, bool careful,
                                       typename Block::Softmax& softmax,
                                       typename Block::Output& O) {
  using A = typename Block::A;
  using Arrays = ScoreArrays<Config>;
  constexpr int kRows = Block::kRows;
  constexpr bool kChunks = Block::kChunkD < Block::kHeadDim;  // K comes in more than one chunk
  constexpr bool kLeft = Config::kLeft;
  const long long kv_head = tile.head / params.group;
  const Matrix<typename Config::KType> k = {
      entry_of<const typename Config::KType>(params.k, tile, kv_head), params.k.row,
      params.k.column};
  const Matrix<typename Config::VType> v = {
      entry_of<const typename Config::VType>(params.v, tile, kv_head), params.v.row,
      params.v.column};
  const Score<Config> score(
      params, number_of_head<A, typename Config::Slopes>(params.alibi_slopes, tile));
  const Arrays arrays = Arrays::of(params, tile);
  const Mask<Config> mask = {params, tile.extent};
  const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);
  const KeyRange tiles = Mask<Config>::template tiles_of<Block::kBlockN>(keys);

  typename Block::TransferK next_k;
  typename Block::TransferV next_v;
  next_k.template fetch<kLeft>(k, tiles.begin, keys.end, 0, params.d, keys.begin);
  softmax.clear();
  O.clear();
  for (long long key = tiles.begin; key < tiles.end; key += Block::kBlockN) {
    typename Block::Scores S;
    int x = 0;
    do {
      next_k.store(block.K, A(1));
      __syncthreads();
      if (kChunks && x + Block::kChunkD < params.d) {
        next_k.template fetch<kLeft>(k, key, keys.end, x + Block::kChunkD, params.d, keys.begin);
      } else {
        next_v.template fetch<kLeft>(v, key, keys.end, 0, params.p, keys.begin);
      }
      block.product_of_columns(block.Q, x, block.K, S);
      __syncthreads();
      x += Block::kChunkD;
    } while (kChunks && x < params.d);
    const TileMask<Config> sees = mask.tile(tile.row_begin, key);
    const Arrays of_tile = arrays.from(tile.row_begin, key);
    if constexpr (Arrays::kHide || Score<Config>::kMore) {
      const A place = static_cast<A>(tile.row_begin + tile.extent.offset - key);
      score_and_hide(block, sees, score, of_tile, place, S);
    } else {
      scale_and_hide(block, sees, score, S);
    }
    A alpha[kRows];
    softmax.update(S, alpha);
    scale_rows(O, alpha);
    // Read by other lanes after the barrier that V's first chunk needs.
    write_elements(block, block.P, S);
    const int count = static_cast<int>(
        minimum(keys.end - key, static_cast<long long>(Block::kBlockN)));
    for (int j = 0; j < count; j += Block::kChunkN) {
      next_v.store(block.V, A(1));
      __syncthreads();
      if (Arrays::kHide && careful) {
        clear_hidden_values<Config>(params, schedule.current(), block, key + j);
        __syncthreads();
      }
      if (j + Block::kChunkN < count) {
        next_v.template fetch<kLeft>(v, key + j + Block::kChunkN, keys.end, 0, params.p,
                                     keys.begin);
      } else {
        next_k.template fetch<kLeft>(k, key + Block::kBlockN, keys.end, 0, params.d, keys.begin);
      }
      block.template product_of_rows<Block::kChunkN>(block.P, j, block.V, O);
      __syncthreads();
    }
  }
}

// The same on the tensor cores.
template <class Config, class Block>
__device__ __forceinline__ void attend_by_matrix(const Params& params, const Block& block, const Tile& tile,
                                                 bool careful, typename Block::Softmax& softmax,
                                                 typename Block::Output& O) {
  constexpr bool kLeft = Config::kLeft;
  const AttendedKeys<Config, Block> attended(params, tile);
  const int count = attended.count();
  typename Block::TransferK next_k(block.K);
  typename Block::TransferV next_v(block.V);
  next_k.template fetch<kLeft>(attended.keys(), 0, count, 0, params.d, attended.skipped);
  softmax.clear();
  O.clear();
  for (int key = 0; key < count; key += Block::kBlockN) {
    typename Block::Scores S;
    wait_for_copies();
    next_v.template fetch<kLeft>(attended.values(), key, count, 0, params.p, attended.skipped);
    block.product_of_columns(block.Q, block.K, S);
    attended.make_scores(block, key, S);
    typename Block::A alpha[Block::kRows];
    softmax.update(S, alpha);
    wait_for_copies();
    next_k.template fetch<false>(attended.keys(), key + Block::kBlockN, count, 0, params.d);
    if (ScoreArrays<Config>::kHide && careful) {
      attended.clear_hidden_values(block, key);
      __syncthreads();
    }
    block.product_of_fragments(S, block.V, alpha, O);
  }
  // The last copies are zeros, and the last readers of V not yet together.
  wait_for_copies();
}

template <class Config>
__device__ __forceinline__ void forward_simt(const Params& params) {
  using A = typename Config::Accumulate;
  using Block = SimtBlock<Config>;
  const Block block;
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    const Matrix<typename Config::QType> q = {
        entry_of<const typename Config::QType>(params.q, tile, tile.head), params.q.row,
        params.q.column};
    // The barrier after the last stage has passed, so nobody reads the previous tile's Q any more.
    Transfer<typename Config::QType, Block::kThreads, Block::kBlockM, Block::kHeadDim> next_q;
    next_q.fetch(q, tile.row_begin, minimum(tile.row_end, tile.extent.rows), 0, params.d);
    next_q.store(block.Q, static_cast<A>(params.scale_q));
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    bool careful = false;
    for (;;) {
      // The tile is worked out again: held through the loop it takes registers from the products.
      if constexpr (Block::kMatrix) {
        attend_by_matrix<Config>(params, block, schedule.current(), careful, softmax, O);
      } else {
        attend(params, schedule, block, schedule.current(), careful, softmax, O);
      }
      if (careful) break;
      careful = needs_care<Config>(softmax, O);
      if (!careful) break;
    }
    write_tile<Config>(params, block, schedule.current(), softmax, O);
  }
}
