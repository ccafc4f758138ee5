// Attention of float32 by warpgroups (wgmma), d and p to 128.
//
// The provider brings K and V and splits them, each into its one place in shared memory, while the groups use the
// other one. Roles meet at named barriers.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "ptx/roles.cuh"
#include "ptx/wgmma.cuh"
#include "schedule.cuh"
#include "score_arrays.cuh"
#include "simt_epilogue.cuh"
#include "simt_scores.cuh"
#include "split_block.cuh"
#include "split_products.cuh"
#include "split_tile.cuh"
#include "types.cuh"

// Where roles meet. Of K and V: that they are there, that their place is free.
enum SplitBarrier { kKeysThere = 1, kKeysFree, kValuesThere, kValuesFree, kTileEnds, kGroupsMeet };

// Brings the keys and values that a tile's rows attend to.
template <class Config, class Block>
__device__ __forceinline__ void provide(const Params& params, const Block& block, const Tile& tile) {
  constexpr bool kLeft = Config::kLeft;
  constexpr int kThreads = Block::kThreads;
  const AttendedKeys<Config, Block> attended(params, tile);
  const int count = attended.count();
  for (int key = 0; key < count; key += Block::kBlockN) {
    SplitCopy<Block::kProviders, typename Block::KTile, Block::kPieces>::template run<kLeft>(
        block.K(), attended.keys(), key, count, params.d, attended.skipped, 1.0f, [&] {
          if (key > 0) meet<kThreads>(kKeysFree);
        });
    show_products();
    arrive<kThreads>(kKeysThere);
    SplitCopy<Block::kProviders, typename Block::VTile, Block::kPieces>::template run<kLeft>(
        block.V(), attended.values(), key, count, params.p, attended.skipped, 1.0f, [&] {
          if (key > 0) meet<kThreads>(kValuesFree);
        });
    show_products();
    arrive<kThreads>(kValuesThere);
  }
}

// Computes m, l and O of a group's rows over all keys; `careful` if values of hidden keys may be NaN.
template <class Config, class Block>
__device__ __forceinline__ void attend_by_groups(const Params& params, const Block& block, const Tile& tile,
                                                 bool careful, typename Block::Softmax& softmax,
                                                 typename Block::Output& O) {
  constexpr int kThreads = Block::kThreads;
  const AttendedKeys<Config, Block> attended(params, tile);
  const int count = attended.count();
  softmax.clear();
  O.clear();
  for (int key = 0; key < count; key += Block::kBlockN) {
    const bool last = key + Block::kBlockN >= count;
    meet<kThreads>(kKeysThere);
    // With care all groups clear hidden values.
    if (!(ScoreArrays<Config>::kHide && careful) &&
        !attended.sees.from(block.group_row(), key).template any_visible<64, Block::kBlockN>()) {
      // Other groups of the block see some of them.
      if (!last) arrive<kThreads>(kKeysFree);
      meet<kThreads>(kValuesThere);
      if (!last) arrive<kThreads>(kValuesFree);
      continue;
    }
    typename Block::Scores S;
    begin_products();
    split_product(block.Q(), block.group_row(), block.K(), S);
    commit_products();
    wait_products<0>();
    settle(S.sum[0]);
    if (!last) arrive<kThreads>(kKeysFree);
    attended.make_scores(block, key, S);
    float alpha[Block::kRows];
    softmax.update(S, alpha);
    const SplitFragments<Block::kTerms, Block::kBlockN> P(S);
    meet<kThreads>(kValuesThere);
    if (ScoreArrays<Config>::kHide && careful) {
      attended.clear_hidden_values(block, key);
      show_products();
      meet<Block::kGroupThreads>(kGroupsMeet);
    }
    add_split_sums(P, block.V(), [&](int r) { return alpha[r]; }, O);
    if (!last) arrive<kThreads>(kValuesFree);
  }
}

// The provider's part of all tiles.
template <class Config, class Block>
__device__ __forceinline__ void provide_tiles(const Params& params, const Block& block) {
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    bool careful = false;
    for (;;) {
      provide<Config>(params, block, tile);
      meet<Block::kThreads>(kTileEnds);
      if (careful) break;
      careful = needs_care<Config>(true);
      if (!careful) break;
    }
  }
}

template <class Config>
__device__ __forceinline__ void forward_split(const Params& params) {
  static_assert(kHasGroups, "compile for sm_90a");
  using Block = SplitBlock<Config>;
  const Block block;
  if (block.provides()) {
    block.give();
    provide_tiles<Config>(params, block);
    return;
  }
  block.take();
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    const Matrix<float> q = {entry_of<const float>(params.q, tile, tile.head), params.q.row, params.q.column};
    SplitCopy<Block::kGroupThreads, typename Block::QTile>::run(
        block.Q(), q, tile.row_begin, minimum(tile.row_end, tile.extent.rows), params.d, 0,
        static_cast<float>(params.scale_q));
    show_products();
    meet<Block::kGroupThreads>(kGroupsMeet);
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    bool careful = false;
    for (;;) {
      // The tile is worked out again: held through the loop it takes registers from the products.
      attend_by_groups<Config>(params, block, schedule.current(), careful, softmax, O);
      meet<Block::kThreads>(kTileEnds);
      if (careful) break;
      careful = needs_care<Config>(softmax, O);
      if (!careful) break;
    }
    write_tile<Config>(params, block, schedule.current(), softmax, O);
  }
}
