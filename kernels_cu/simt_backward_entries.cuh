// What simt's backward pass does before and after an entry that shares the gradients of a tile, and at its end.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "naive_gradients.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "simt_backward_block.cuh"
#include "simt_backward_gradients.cuh"
#include "simt_backward_pairs.cuh"
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
  if (Block::kSums && !block.provides() && block.thread_n == 0) {
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

// Computes own rows or keys of a warp again whose gradients aren't finite, without a split, as in the forward pass.
template <class Config, class Block>
__device__ __forceinline__ void differentiate_unsplit(const BackwardParams& params,
                                                      const BackwardSchedule<Config>& schedule, const Block& block,
                                                      const OwnTile& tile, const bool (&broken)[Block::kRows]) {
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      if (!__any_sync(0xffffffffu, broken[r] && block.thread_m % 8 == i)) continue;
      const long long own = tile.begin + __shfl_sync(0xffffffffu, block.row_of(r), 4 * i);
      if (own < tile.end) differentiate_own<Config>(params, schedule, tile, own);
    }
  }
}

// Writes what a block has of a tile's gradients.
template <class Config, class Block>
__device__ __forceinline__ void write_gradients(const BackwardParams& params, const BackwardSchedule<Config>& schedule,
                                                const Block& block, TileGradients<Config, Block>& G) {
  const OwnTile tile = schedule.current();
  if (Config::kPairs && params.shares == 0) {
    TilePairs<Config, Block>::clear(params, block, tile, tile.chunk.begin, tile.chunk.end);
  }
  bool broken[Block::kRows];
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) broken[r] = Block::kSplit && !G.finite(r);
  G.store(params, block, tile);
  if constexpr (Block::kSplit) {
    __syncwarp();
    differentiate_unsplit<Config>(params, schedule, block, tile, broken);
  }
}

// Computes the gradients of a block's tiles. `add_entry(careful, G)` adds what an entry gives; `careful` if what is
// hidden may be NaN.
template <class Config, class Block, class AddEntry>
__device__ __forceinline__ void differentiate_tiles(const BackwardParams& params, const Block& block,
                                                    const AddEntry& add_entry) {
  BackwardSchedule<Config> schedule(params);
  OwnTile tile;
  while (schedule.next(tile)) {
    TileGradients<Config, Block> G;
    bool careful = false;
    for (;;) {
      G.clear();
      for (long long share = 0; share < params.shares; ++share) {
        begin_entry<Config>(params, schedule, block, share);
        add_entry(careful, G);
        end_entry<Config>(params, block);
      }
      if (careful) break;
      careful = needs_care<Config>(G.finite());
      if (!careful) break;
    }
    write_gradients<Config>(params, schedule, block, G);
  }
}
