// The products of simt's backward pass by warpgroups, of float32 as sums of bfloat16 terms.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "ptx/wgmma.cuh"
#include "simt_backward_gradients.cuh"
#include "simt_backward_loads.cuh"
#include "simt_backward_pairs.cuh"
#include "split_backward_block.cuh"
#include "split_products.cuh"
#include "split_tile.cuh"
#include "types.cuh"

// Brings own rows or keys of one operand.
template <int kNumber, class Config, class Block>
__device__ __forceinline__ void copy_own(const BackwardParams& params, const Block& block) {
  using Tile = typename Block::template OwnTileOf<kNumber>;
  const EntryWork<Config>& work = block.work();
  const float factor = kNumber == 1 ? static_cast<float>(params.forward.scale_q) : 1.0f;
  SplitCopy<Block::kThreads, Tile>::run(block.template own<kNumber>(), work.sides.template own<kNumber>(params),
                                        work.own.begin, work.own.end, Sides<Config>::template columns<kNumber>(params),
                                        0, factor);
}

// Brings the others from `other` on of one operand.
template <int kNumber, class Config, class Block>
__device__ __forceinline__ void copy_others(const BackwardParams& params, const Block& block, long long other) {
  using Tile = typename Block::template OthersTileOf<kNumber>;
  const EntryWork<Config>& work = block.work();
  SplitCopy<Block::kThreads, Tile>::template run<Block::kSkip>(
      block.template others<kNumber>(), work.sides.template others<kNumber>(params), other, work.others.end,
      Sides<Config>::template columns<kNumber>(params), work.others.begin);
}

// X = own others^T, not waited for.
template <int kNumber, class Block>
__device__ __forceinline__ void start_product(const Block& block, typename Block::Pairs& X) {
  begin_products();
  split_product(block.template own<kNumber>(), block.group_row(), block.template others<kNumber>(), X);
  commit_products();
}

// Adds what one entry gives to the gradients of a tile. An operand's tile is loaded and split while the other one is
// multiplied: dP comes before the scores, for its factor is the one that is free first.
template <class Config, class Block>
__device__ __forceinline__ void add_entry_by_groups(const BackwardParams& params, const Block& block, bool careful,
                                                    TileGradients<Config, Block>& G) {
  static_assert(kHasGroups, "compile for sm_90a");
  constexpr int kEarly = Block::kScores ? 2 : 1;
  constexpr int kLate = 3 - kEarly;
  copy_own<1, Config>(params, block);
  if constexpr (Block::kScores) copy_own<2, Config>(params, block);
  long long other = Block::tile_of(block.work().others.begin);
  copy_others<kEarly, Config>(params, block, other);
  for (; other < block.work().others.end; other += Block::kBlockN) {
    if (G.ends_span(block, other)) G.end_span(params, block);
    typename Block::Pairs X, dP;
    show_products();
    __syncthreads();
    if constexpr (Block::kScores) {
      start_product<2>(block, dP);
    } else {
      start_product<1>(block, X);
    }
    copy_others<kLate, Config>(params, block, other);
    show_products();
    __syncthreads();
    if constexpr (Block::kScores) start_product<1>(block, X);
    wait_products<0>();
    settle(X.sum[0]);
    if constexpr (Block::kScores) settle(dP.sum[0]);
    TilePairs<Config, Block>(params, block, other).compute(X, dP);
    if (ScoreArrays<Config>::kHide && careful) {
      __syncthreads();
      const int j = threadIdx.x;
      if (j < Block::kBlockN && is_hidden_other<Config>(params, block.work(), other + j)) {
        block.template others<1>().clear(j);
        block.template others<2>().clear(j);
      }
      show_products();
      __syncthreads();
    }
    const auto one = [](int) { return 1.0f; };
    const auto next_tile = [&] {
      // Its last readers are through.
      __syncthreads();
      copy_others<kEarly, Config>(params, block, other + Block::kBlockN);
    };
    if constexpr (Config::kSecond) {
      const SplitFragments<Block::kTerms, Block::kBlockN> P(X);
      add_split_sums(P, block.template others<2>(), one, G.second, [&] {
        if constexpr (!Config::kFirst) next_tile();
      });
    }
    if constexpr (Config::kFirst) {
      const SplitFragments<Block::kTerms, Block::kBlockN> dS(Config::kSecond ? dP : X);
      add_split_sums(dS, block.template others<1>(), one, G.first, next_tile);
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
