// The gradients of float32 attention by warpgroups (wgmma), d and p to 128.
//
// A group has 64 own rows or keys. Both operands of the others have one place each in shared memory, which the
// provider fills again as soon as the groups are done with it: dP comes before the scores, for V, or dO, is free first.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "ptx/roles.cuh"
#include "ptx/wgmma.cuh"
#include "score_arrays.cuh"
#include "simt_backward_entries.cuh"
#include "simt_backward_gradients.cuh"
#include "simt_backward_loads.cuh"
#include "simt_backward_pairs.cuh"
#include "split_backward_block.cuh"
#include "split_products.cuh"
#include "split_tile.cuh"
#include "types.cuh"

// Where roles meet. Of the operands of number 1 and 2: that others are there, that their place is free.
constexpr int kThere[3] = {0, 1, 2};
constexpr int kFree[3] = {0, 3, 4};
constexpr int kGroupsMeet = 5;

// Brings own rows or keys of one operand.
template <int kNumber, class Config, class Block>
__device__ __forceinline__ void copy_own(const BackwardParams& params, const Block& block) {
  using Tile = typename Block::template OwnTileOf<kNumber>;
  const EntryWork<Config>& work = block.work();
  const float factor = kNumber == 1 ? static_cast<float>(params.forward.scale_q) : 1.0f;
  SplitCopy<Block::kGroupThreads, Tile>::run(block.template own<kNumber>(), work.sides.template own<kNumber>(params),
                                             work.own.begin, work.own.end,
                                             Sides<Config>::template columns<kNumber>(params), 0, factor);
}

// Provides the others from `other` on of one operand, once its place is free.
template <int kNumber, class Config, class Block>
__device__ __forceinline__ void provide_others(const BackwardParams& params, const Block& block, long long other,
                                               bool first) {
  using Tile = typename Block::template OthersTileOf<kNumber>;
  const EntryWork<Config>& work = block.work();
  SplitCopy<Block::kProviders, Tile, Block::kPieces>::template run<Block::kSkip>(
      block.template others<kNumber>(), work.sides.template others<kNumber>(params), other, work.others.end,
      Sides<Config>::template columns<kNumber>(params), work.others.begin, 1.0f, [&] {
        if (!first) meet<Block::kThreads>(kFree[kNumber]);
      });
  show_products();
  arrive<Block::kThreads>(kThere[kNumber]);
}

// The operand whose product comes first.
template <class Config>
constexpr int kEarly = Wanted<Config>::kScores ? 2 : 1;

// The provider's part of an entry.
template <class Config, class Block>
__device__ __forceinline__ void provide_entry(const BackwardParams& params, const Block& block) {
  const Range others = block.work().others;
  const long long begin = Block::tile_of(others.begin);
  for (long long other = begin; other < others.end; other += Block::kBlockN) {
    provide_others<kEarly<Config>, Config>(params, block, other, other == begin);
    provide_others<3 - kEarly<Config>, Config>(params, block, other, other == begin);
  }
}

// X = own others^T, not waited for.
template <int kNumber, class Block>
__device__ __forceinline__ void start_product(const Block& block, typename Block::Pairs& X) {
  begin_products();
  split_product(block.template own<kNumber>(), block.group_row(), block.template others<kNumber>(), X);
  commit_products();
}

// Adds what one entry gives to the gradients of a group.
template <class Config, class Block>
__device__ __forceinline__ void add_entry_by_groups(const BackwardParams& params, const Block& block, bool careful,
                                                    TileGradients<Config, Block>& G) {
  constexpr int kThreads = Block::kThreads;
  copy_own<1, Config>(params, block);
  if constexpr (Block::kScores) copy_own<2, Config>(params, block);
  show_products();
  meet<Block::kGroupThreads>(kGroupsMeet);
  for (long long other = Block::tile_of(block.work().others.begin); other < block.work().others.end;
       other += Block::kBlockN) {
    const bool last = other + Block::kBlockN >= block.work().others.end;
    if (G.ends_span(block, other)) G.end_span(params, block);
    const TilePairs<Config, Block> pairs(params, block, other);
    // Every pair's gradient is written, of hidden ones too.
    if (!Config::kPairs && !(ScoreArrays<Config>::kHide && careful) && !pairs.any_of_group()) {
      // Other groups of the block have some of them, and wait in this order.
      meet<kThreads>(kThere[kEarly<Config>]);
      meet<kThreads>(kThere[3 - kEarly<Config>]);
      if (!last) arrive<kThreads>(kFree[1]);
      if (!last) arrive<kThreads>(kFree[2]);
      continue;
    }
    typename Block::Pairs X, dP;
    if constexpr (Block::kScores) {
      meet<kThreads>(kThere[2]);
      start_product<2>(block, dP);
    }
    meet<kThreads>(kThere[1]);
    start_product<1>(block, X);
    if constexpr (!Block::kScores) meet<kThreads>(kThere[2]);
    wait_products<0>();
    settle(X.sum[0]);
    if constexpr (Block::kScores) settle(dP.sum[0]);
    if (!Config::kSecond && !last) arrive<kThreads>(kFree[2]);
    if (!Config::kFirst && !last) arrive<kThreads>(kFree[1]);
    pairs.compute(X, dP);
    if (ScoreArrays<Config>::kHide && careful) {
      const int j = threadIdx.x;
      if (j < Block::kBlockN && is_hidden_other<Config>(params, block.work(), other + j)) {
        if constexpr (Config::kFirst) block.template others<1>().clear(j);
        if constexpr (Config::kSecond) block.template others<2>().clear(j);
      }
      show_products();
      meet<Block::kGroupThreads>(kGroupsMeet);
    }
    const auto one = [](int) { return 1.0f; };
    if constexpr (Config::kSecond) {
      const SplitFragments<Block::kTerms, Block::kBlockN> P(X);
      add_split_sums(P, block.template others<2>(), one, G.second);
      if (!last) arrive<kThreads>(kFree[2]);
    }
    if constexpr (Config::kFirst) {
      const SplitFragments<Block::kTerms, Block::kBlockN> dS(Config::kSecond ? dP : X);
      add_split_sums(dS, block.template others<1>(), one, G.first);
      if (!last) arrive<kThreads>(kFree[1]);
    }
  }
}

// The provider's part of all tiles.
template <class Config, class Block>
__device__ __forceinline__ void provide_gradients(const BackwardParams& params, const Block& block) {
  BackwardSchedule<Config> schedule(params);
  OwnTile tile;
  while (schedule.next(tile)) {
    bool careful = false;
    for (;;) {
      for (long long share = 0; share < params.shares; ++share) {
        begin_entry<Config>(params, schedule, block, share);
        provide_entry<Config>(params, block);
      }
      if (careful) break;
      careful = needs_care<Config>(true);
      if (!careful) break;
    }
  }
}

template <class Config>
__device__ __forceinline__ void backward_split(const BackwardParams& params) {
  static_assert(kHasGroups, "compile for sm_90a");
  using Block = SplitGradientBlock<Config>;
  const Block block;
  if (block.provides()) {
    block.give();
    provide_gradients<Config>(params, block);
    return;
  }
  block.take();
  differentiate_tiles<Config>(params, block, [&](bool careful, auto& G) {
    add_entry_by_groups<Config>(params, block, careful, G);
  });
}
