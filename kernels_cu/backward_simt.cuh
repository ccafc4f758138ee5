// The gradients of attention with tiled FMA, every element type, d and p to 256.
//
// A block of kThreadsM x kThreadsN threads computes the gradients of kBlockM own rows or keys
// (backward_pair.cuh says of which), and kBlockN of the others at a time pass by. Of own operands of up to
// kResidentColumns columns both stay in shared memory, wider ones are loaded again with the others. The
// others pass through one stage four times: in chunks of kChunkD columns to make the scores and dP, in
// chunks of kChunkN rows to be summed. While a chunk is multiplied the next one is loaded into registers.
// A thread has own rows thread_m + r kThreadsM, so the lanes of a warp have whole rows: what a product
// leaves for the next goes through shared memory between the lanes of a warp.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "simt_backward_block.cuh"
#include "simt_backward_gradients.cuh"
#include "simt_backward_loads.cuh"
#include "simt_backward_entries.cuh"
#include "simt_backward_pairs.cuh"
#include "types.cuh"

// Adds what one entry gives to the gradients of a tile.
template <class Config, class Block>
__device__ __forceinline__ void add_entry(const BackwardParams& params, const Block& block,
                                          bool careful, TileGradients<Config, Block>& G) {
  constexpr bool kScores = Block::kScores;
  constexpr bool kFirst = Config::kFirst;
  constexpr bool kSecond = Config::kSecond;
  ColumnLoads<Config, 1> columns1(params, block);
  ColumnLoads<Config, 2> columns2(params, block);
  RowLoads<Config, 1> rows1(params, block);
  RowLoads<Config, 2> rows2(params, block);
  columns1.load_own();
  if (kScores) columns2.load_own();
  long long other = Block::tile_of(block.work().others.begin);
  columns1.fetch(other, 0);
  for (; other < block.work().others.end; other += Block::kBlockN) {
    if (G.ends_span(block, other)) G.end_span(params, block);
    const auto next_tile = [&] { columns1.fetch(other + Block::kBlockN, 0); };
    const auto then_first = [&] {
      if constexpr (kFirst) {
        rows1.fetch(other);
      } else {
        next_tile();
      }
    };
    const auto then_second = [&] {
      if constexpr (kSecond) {
        rows2.fetch(other);
      } else {
        then_first();
      }
    };
    {
      typename Block::Pairs X;
      columns1.multiply(other, X, [&] {
        if constexpr (kScores) {
          columns2.fetch(other, 0);
        } else {
          then_second();
        }
      });
      write_elements(block, block.pairs(), X);
    }
    typename Block::Pairs dP;
    if constexpr (kScores) columns2.multiply(other, dP, then_second);
    TilePairs<Config, Block>(params, block, other).compute(dP);
    // Read by other lanes after the barrier that the first chunk needs.
    if constexpr (kSecond) {
      rows2.multiply(other, careful, G.second, then_first);
      if constexpr (kFirst) write_elements(block, block.pairs(), dP);
    }
    if constexpr (kFirst) rows1.multiply(other, careful, G.first, next_tile);
  }
}

template <class Config>
__device__ __forceinline__ void backward_simt(const BackwardParams& params) {
  const GradientBlock<Config> block;
  differentiate_tiles<Config>(params, block, [&](bool careful, auto& G) {
    add_entry<Config>(params, block, careful, G);
  });
}
