// What simt writes of a tile.
#pragma once

#include "naive_row.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "tile.cuh"
#include "types.cuh"

// Writes the rows of O and lse that a thread holds.
template <class Config, class Block>
__device__ __forceinline__ void store_rows(const Params& params, const Block& block,
                                           const Tile& tile, const typename Block::Softmax& softmax,
                                           typename Block::Output& O) {
  using A = typename Block::A;
  using OType = typename Config::OType;
  OType* o = entry_of<OType>(params.o, tile, tile.head);
  A* lse = entry_of<A>(params.lse, tile, tile.head);
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) {
    const long long row = tile.row_begin + block.row_of(r);
    if (row >= tile.row_end) continue;
#pragma unroll
    for (int c = 0; c < Block::kColumns; ++c) {
      const int column = block.template column_of<Block::kColumns>(c);
      if (column < params.p) {
        store_global(o + row * params.o.row + column * params.o.column,
                     Round<OType>::from(softmax.template output<OType>(r, O(r, c))));
      }
    }
    if (block.thread_n == 0 && params.lse.data != nullptr) {
      store_global(lse + row * params.lse.row, softmax.lse(r));
    }
  }
}

// Computes rows of a warp again that aren't finite, without a split, which only finite factors have: infinities have a
// second term that isn't a number, and so have numbers that are rounded to one. `broken` is of the thread's rows.
template <class Config, class Block>
__device__ __forceinline__ void attend_unsplit(const Params& params, const Block& block, const Tile& tile,
                                               const bool (&broken)[Block::kRows]) {
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      if (!__any_sync(0xffffffffu, broken[r] && block.thread_m % 8 == i)) continue;
      const long long row = tile.row_begin + __shfl_sync(0xffffffffu, block.row_of(r), 4 * i);
      if (row < tile.row_end) attend_row<Config>(params, tile, row);
    }
  }
}

// Writes what a block has of a tile.
template <class Config, class Block>
__device__ __forceinline__ void write_tile(const Params& params, const Block& block, const Tile& tile,
                                           typename Block::Softmax& softmax, typename Block::Output& O) {
  using A = typename Block::A;
  bool broken[Block::kRows];
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) broken[r] = Block::kSplit && !softmax.finite(r, O);
  if constexpr (Block::kSink) {
    A alpha[Block::kRows];
    softmax.finish(number_of_head<A, typename Config::Sinks>(params.sinks, tile), alpha);
    scale_rows(O, alpha);
  } else {
    softmax.finish();
  }
  store_rows<Config>(params, block, tile, softmax, O);
  if constexpr (Block::kSplit) {
    __syncwarp();
    attend_unsplit<Config>(params, block, tile, broken);
  }
}
