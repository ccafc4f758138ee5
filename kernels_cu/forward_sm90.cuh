// Attention of 16-bit elements by warpgroups (wgmma), d and p to 128, Hopper.
//
// The provider brings Q and tiles of K and V by cp.async. Each group has 64 rows of O in registers, and multiplies
// the scores of the next keys and P V of these at the same time, while it makes P of the former.
#pragma once

#include "group_products.cuh"
#include "mask.cuh"
#include "params.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/wgmma.cuh"
#include "schedule.cuh"
#include "sm80_epilogue.cuh"
#include "sm80_scores.cuh"
#include "sm90_block.cuh"
#include "types.cuh"

enum Sm90Barrier { kProvidersMeet = 1 };

// Fills places. What was copied last is on its way while the next place is waited for and filled.
template <class Config, class Block>
struct Provider {
  using T = typename Block::T;
  using Work = typename Block::Work;
  static constexpr int kStages = Block::kStages;
  const Params& params;
  const Block& block;
  Turn<Block::kRowStages> rows;
  Turn<kStages> keys;
  Turn<kStages> values;
  unsigned on_its_way = 0;  // the barrier that is to tell that it is there
  int rows_on_their_way = -1;  // or the stage of Q, if that is on its way

  __device__ __forceinline__ Provider(const Params& params, const Block& block) : params(params), block(block) {}

  // Brings Q of a tile, and what it is.
  __device__ __forceinline__ void bring_rows(const Tile& tile, int round) {
    // The rows before may wait for what is on its way.
    tell_all();
    block.rows().free(rows.stage).wait(rows.parity ^ 1);
    {
      const Work work = work_on<Config>(params, tile, round);
      if (threadIdx.x == Block::kGroupThreads) block.work(rows.stage) = work;
    }
    meet<Block::kProviders>(kProvidersMeet);
    Block::CopyQ::run(block.Q(rows.stage), {entry_of<const T>(params.q, tile, tile.head), params.q.row, params.q.column},
                      tile.row_begin, static_cast<int>(minimum(tile.row_end, tile.extent.rows) - tile.row_begin),
                      static_cast<int>(params.d));
    started(block.rows().full(rows.stage));
    rows_on_their_way = rows.stage;
    rows.next();
  }

  __device__ __forceinline__ void bring_keys(const Work& work, int key) {
    if (key >= work.sees.keys) return;
    block.keys().free(keys.stage).wait(keys.parity ^ 1);
    Block::CopyK::template run<Config::kLeft>(block.K(keys.stage), {work.k, params.k.row, params.k.column}, key,
                                              work.sees.keys - key, static_cast<int>(params.d), work.skipped - key);
    started(block.keys().full(keys.stage));
    keys.next();
  }

  __device__ __forceinline__ void bring_values(const Work& work, int key) {
    block.values().free(values.stage).wait(values.parity ^ 1);
    Block::CopyV::template run<Config::kLeft>(block.V(values.stage), {work.v, params.v.row, params.v.column}, key,
                                              work.sees.keys - key, static_cast<int>(params.p), work.skipped - key);
    started(block.values().full(values.stage));
    values.next();
  }

  // Waits until all is there, and tells it.
  __device__ __forceinline__ void tell_all() {
    wait_async<0>();
    tell();
    on_its_way = 0;
  }

  // Tells that there is nothing more.
  __device__ __forceinline__ void finish() {
    tell_all();
    block.rows().free(rows.stage).wait(rows.parity ^ 1);
    if (threadIdx.x == Block::kGroupThreads) block.work(rows.stage).rows = 0;
    block.arrive(block.rows().full(rows.stage));
  }

 private:
  __device__ __forceinline__ void started(const Mbarrier& full) {
    commit_async();
    wait_async<1>();
    tell();
    on_its_way = full.address;
  }

  __device__ __forceinline__ void tell() {
    if (on_its_way == 0) return;
    if (rows_on_their_way >= 0) scale_rows();
    rows_on_their_way = -1;
    show_products();
    block.arrive({on_its_way});
  }

  // Brings its factor into Q.
  __device__ __forceinline__ void scale_rows() const {
    const float factor = static_cast<float>(params.scale_q);
    if (factor == 1.0f) return;
    Block::CopyQ::scale(block.Q(rows_on_their_way), {nullptr, params.q.row, params.q.column}, factor);
  }
};

// In the order in which it is multiplied: at every step the keys of the next one, then the values of this one; Q of
// the next tile at the second step, or the only one.
template <class Config, class Block>
__device__ __forceinline__ void provide_tiles(const Params& params, const Block& block) {
  constexpr int kBlockN = Config::kBlockN;
  Provider<Config, Block> provider(params, block);
  Schedule<Config, true> schedule(params);
  Tile tile;
  // Before the first tile comes one without keys.
  int stage = 1;
  int count = 0;
  int key = 0;
  bool more = true;
  for (;;) {
    const bool last = key + kBlockN >= count;
    if (key == kBlockN || (last && key == 0)) {
      more = schedule.next(tile);
      if (more) provider.bring_rows(tile, schedule.round);
    }
    if (!last || more) provider.bring_keys(block.work(last ? stage ^ 1 : stage), last ? 0 : key + kBlockN);
    if (count > 0) provider.bring_values(block.work(stage), key);
    key += kBlockN;
    if (last) {
      if (!more) break;
      stage ^= 1;
      count = maximum(block.work(stage).sees.keys, 0);
      key = 0;
    }
  }
  provider.finish();
}

// Empties places, and has the sums of a group's rows.
template <class Config, class Block>
struct User {
  using T = typename Block::T;
  static constexpr int kStages = Block::kStages;
  static constexpr int kBlockN = Config::kBlockN;
  const Params& params;
  Block block;
  typename Block::Softmax softmax;
  typename Block::Output O;
  typename Block::Scores S;
  GroupFragments<kBlockN> P;
  Turn<Block::kRowStages> rows;
  Turn<kStages> keys;
  Turn<kStages> values;
  bool ahead = false;  // whether S has the products with the tile's first keys

  __device__ __forceinline__ User(const Params& params, const Block& block)
      : params(params), block(block), softmax(params) {}

  // Whether there is one more tile.
  __device__ __forceinline__ bool next() {
    block.rows().full(rows.stage).wait(rows.parity);
    block.stage = rows.stage;
    return block.work().rows > 0;
  }

  // Computes m, l and O of the group's rows over all keys of the tile.
  __device__ __forceinline__ void attend() {
    softmax.clear();
    O.clear();
    const int count = block.work().sees.keys;
    if (count > 0) {
      if (!ahead) {
        begin_products();
        multiply_keys();
        finish_keys<0>();
      }
      make_weights(0);
      P.template round<T>(S);
      for (int key = kBlockN; key < count; key += kBlockN) {
        begin_products();
        multiply_keys();
        multiply_values();
        finish_keys<1>();
        float alpha[Block::Scores::kRows];
        make_weights(key, alpha);
        finish_values();
        scale_rows(O, alpha);
        P.template round<T>(S);
      }
    }
    rows.next();
    block.rows().full(rows.stage).wait(rows.parity);
    const auto& after = block.work(rows.stage);
    ahead = count > 0 && after.rows > 0 && after.sees.keys > 0;
    if (ahead) {
      begin_products();
      multiply_keys();
      multiply_values();
      finish_keys<1>();
      finish_values();
    } else if (count > 0) {
      begin_products();
      multiply_values();
      finish_values();
    }
  }

  // Writes the tile.
  __device__ __forceinline__ void store() {
    if constexpr (Block::kSink) {
      float alpha[Block::Output::kRows];
      softmax.finish(number_of_head<float, typename Config::Sinks>(params.sinks, block.work().tile), alpha);
      scale_rows(O, alpha);
    } else {
      softmax.finish();
    }
    store_rows<Config>(params, block, softmax, O);
    block.arrive(block.rows().free(block.stage));
  }

 private:
  __device__ __forceinline__ void multiply_keys() {
    block.keys().full(keys.stage).wait(keys.parity);
    group_product<T>(block.Q(rows.stage), block.group_row(), block.K(keys.stage), S);
    commit_products();
  }
  template <int kPending>
  __device__ __forceinline__ void finish_keys() {
    wait_products<kPending>();
    settle(S.sum[0]);
    block.arrive(block.keys().free(keys.stage));
    keys.next();
  }

  __device__ __forceinline__ void multiply_values() {
    block.values().full(values.stage).wait(values.parity);
    group_sums<T>(P, block.V(values.stage), O);
    commit_products();
  }
  __device__ __forceinline__ void finish_values() {
    wait_products<0>();
    settle(O.sum[0]);
    block.arrive(block.values().free(values.stage));
    values.next();
  }

  // Makes P of the products with the keys from `key` on, and the factors of the sums before.
  __device__ __forceinline__ void make_weights(int key, float (&alpha)[Block::Scores::kRows]) {
    const TileMask<Config> sees = block.work().sees.from(block.warp_row(), key);
#pragma unroll
    for (int r = 0; r < Block::Scores::kRows; ++r) score_row<Config>(block, key, r, S);
    if (!sees.template all_visible<Block::kWarpRows, kBlockN>()) hide_outside(sees, block, S);
    softmax.update(S, alpha);
  }
  __device__ __forceinline__ void make_weights(int key) {
    float alpha[Block::Scores::kRows];
    make_weights(key, alpha);
  }
};

template <class Config>
__device__ __forceinline__ void forward_sm90(const Params& params) {
  static_assert(kHasGroups, "compile for sm_90a");
  using Block = Sm90Block<Config>;
  const Block block;
  if (threadIdx.x == 0) {
    constexpr int kProviderWarps = Block::kProviders / 32;
    block.rows().init(kProviderWarps, Block::kWarps);
    block.keys().init(kProviderWarps, Block::kWarps);
    block.values().init(kProviderWarps, Block::kWarps);
  }
  __syncthreads();
  if (block.provides()) {
    give_registers<Block::kProviderRegisters>();
    provide_tiles<Config>(params, block);
    return;
  }
  take_registers<Block::kGroupRegisters>();
  User<Config, Block> user(params, block);
  while (user.next()) {
    user.attend();
    user.store();
  }
}
