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
#include "naive_gradients.cuh"
#include "simt_backward_pairs.cuh"
#include "split_backward.cuh"
#include "split_backward_block.cuh"
#include "types.cuh"

// Tells the block which entry of a tile is next; nobody reads of the last one any more.
template <class Config, class Block>
__device__ __forceinline__ void begin_entry(const BackwardParams& params,
                                            const BackwardSchedule<Config>& schedule,
                                            const Block& block, long long share) {
  using A = typename Block::A;
  __syncthreads();
  if (threadIdx.x == 0) {
    const Params& forward = params.forward;
    const OwnTile tile = schedule.current();
    const Tile entry = schedule.entry(tile, share);
    EntryWork<Config>& work = block.work();
    work.tile = tile;
    work.entry = entry;
    work.sides = Sides<Config>::of(params, entry);
    work.own = own_of<Config>(tile, entry);
    work.others = others_of<Config>(params, tile, entry);
    work.score = Score<Config>(
        forward, number_of_head<A, typename Config::Slopes>(forward.alibi_slopes, entry));
    work.statistics = entry_of<const Statistics<A>>(params.statistics, entry, entry.head);
    work.first = share == 0;
  }
  if (Block::kSums && block.thread_n == 0) {
#pragma unroll 1
    for (int r = 0; r < Block::kRows; ++r) *block.sums_of(block.row_of(r)) = {};
  }
  __syncthreads();
}

// Writes what an entry leaves beside gradients: its sums, and zeros of pairs that nobody came to.
template <class Config, class Block>
__device__ __forceinline__ void end_entry(const BackwardParams& params, const Block& block) {
  const EntryWork<Config>& work = block.work();
  const OwnTile& tile = work.tile;
  if (Config::kPairs && work.first) {
    TilePairs<Config, Block>::clear(params, block, tile, tile.chunk.begin,
                             Block::tile_of(work.others.begin));
    TilePairs<Config, Block>::clear(params, block, tile,
                             Block::tile_of(work.others.end + Block::kBlockN - 1), tile.chunk.end);
  }
  if (Block::kSums && block.thread_n == 0) {
#pragma unroll 1
    for (int r = 0; r < Block::kRows; ++r) {
      const int row = block.row_of(r);
      if (tile.begin + row >= tile.end) break;
      block.sums_of(row)->store(params, work.entry, tile.begin + row);
    }
  }
}

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
      block.write_pairs(X);
    }
    typename Block::Pairs dP;
    if constexpr (kScores) columns2.multiply(other, dP, then_second);
    TilePairs<Config, Block>(params, block, other).compute(dP);
    // Read by other lanes after the barrier that the first chunk needs.
    if constexpr (kSecond) {
      rows2.multiply(other, careful, G.second, then_first);
      if constexpr (kFirst) block.write_pairs(dP);
    }
    if constexpr (kFirst) rows1.multiply(other, careful, G.first, next_tile);
  }
}

template <class Config>
__device__ __forceinline__ void backward_simt(const BackwardParams& params) {
  using Block = typename Either<Config::kGroups, SplitGradientBlock<Config>, GradientBlock<Config>>::Type;
  const Block block;
  BackwardSchedule<Config> schedule(params);
  OwnTile tile;
  while (schedule.next(tile)) {
    TileGradients<Config, Block> G;
    bool careful = false;
    for (;;) {
      G.clear();
      for (long long share = 0; share < params.shares; ++share) {
        begin_entry<Config>(params, schedule, block, share);
        if constexpr (Config::kGroups) {
          add_entry_by_groups<Config>(params, block, careful, G);
        } else {
          add_entry<Config>(params, block, careful, G);
        }
        end_entry<Config>(params, block);
      }
      if (careful) break;
      careful = needs_care<Config>(G.finite());
      if (!careful) break;
    }
    const OwnTile done = schedule.current();
    if (Config::kPairs && params.shares == 0) {
      TilePairs<Config, Block>::clear(params, block, done, done.chunk.begin, done.chunk.end);
    }
    bool broken[Block::kRows];
#pragma unroll
    for (int r = 0; r < Block::kRows; ++r) broken[r] = Block::kSplit && !G.finite(r);
    G.store(params, block, done);
    if constexpr (Block::kSplit) {
      __syncwarp();
      differentiate_unsplit<Config>(params, schedule, block, done, broken);
    }
  }
}
