// What simt's backward pass does between its products: P and dx of the pairs of a tile, and their gradients.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "mask.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "simt_backward_block.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

// The pairs of a tile: from products and dP to P in place of the products and dx, there too if P isn't needed, in
// place of dP otherwise.
template <class Config, class Block>
struct TilePairs {
  using A = typename Block::A;
  using Arrays = ScoreArrays<Config>;
  static constexpr bool kOfKeys = Config::kOfKeys;
  static constexpr int kRows = Block::kRows;
  static constexpr int kOthers = Block::kOthers;

  const BackwardParams& params;
  const Block& block;
  const EntryWork<Config>& work;
  long long row;  // of the tile's first pair
  long long key;

  __device__ __forceinline__ TilePairs(const BackwardParams& params, const Block& block,
                                       long long other)
      : params(params),
        block(block),
        work(block.work()),
        row(kOfKeys ? other : work.own.begin),
        key(kOfKeys ? work.own.begin : other) {}

  // Of products that wait in the tile of pairs.
  __device__ __forceinline__ void compute(typename Block::Pairs& dP) const {
    const OfTile of_tile(*this);
    if constexpr (Block::kTurns) {
#pragma unroll 1
      for (int r = 0; r < kRows; ++r) {
        own_row(of_tile, r, waiting(r), [&](int j) -> A& { return dP(0, j); });
        // Registers have no index that isn't known: whose turn is next comes to the first.
        rotate(dP);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) own_row(of_tile, r, waiting(r), [&](int j) -> A& { return dP(r, j); });
    }
  }

  // The same of products in registers.
  __device__ __forceinline__ void compute(typename Block::Pairs& X, typename Block::Pairs& dP) const {
    if constexpr (Block::kTurns) {
      write_elements(block, block.pairs(), X);
      compute(dP);
      read_elements(block, block.pairs(), X);
    } else {
      const OfTile of_tile(*this);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        own_row(of_tile, r, [&](int j) -> A& { return X(r, j); }, [&](int j) -> A& { return dP(r, j); });
      }
    }
  }

  // Whether a pair of the thread's group of 64 own rows or keys can be seen.
  __device__ __forceinline__ bool any_of_group() const {
    const TileMask<Config> sees = Mask<Config>{params.forward, work.entry.extent}.tile(row, key);
    const int first = block.group_row();
    return kOfKeys ? sees.from(0, first).template any_visible<Block::kBlockN, 64>()
                   : sees.from(first, 0).template any_visible<64, Block::kBlockN>();
  }

  // Clears the gradients of pairs with keys from begin up to end. Each by the thread that adds to it
  // later: `begin` is that of a tile.
  __device__ static __forceinline__ void clear(const BackwardParams& params, const Block& block,
                                               const OwnTile& tile, long long begin,
                                               long long end) {
    using DBias = typename Config::DBias;
    DBias* dbias = own_entry_of<DBias>(params.dbias, tile);
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      const long long own = tile.begin + block.row_of(r);
      if (own >= tile.end) break;
#pragma unroll 1
      for (long long other = begin + block.thread_n; other < end; other += Block::kThreadsN) {
        store_global(dbias + own * params.dbias.row + other * params.dbias.column,
                     Round<DBias>::from(A(0)));
      }
    }
  }

 private:
  // What all rows of a tile have in common.
  struct OfTile {
    TileMask<Config> sees;
    const Statistics<A>* statistics;
    bool all;
    Statistics<A> of_other[kOthers];

    __device__ __forceinline__ explicit OfTile(const TilePairs& pairs)
        : sees(Mask<Config>{pairs.params.forward, pairs.work.entry.extent}.tile(pairs.row, pairs.key)),
          statistics(pairs.work.statistics + pairs.row),
          all(sees.template all_visible<kOfKeys ? Block::kBlockN : Block::kBlockM,
                                        kOfKeys ? Block::kBlockM : Block::kBlockN>()) {
      if (kOfKeys) {
#pragma unroll
        for (int j = 0; j < kOthers; ++j) of_other[j] = load_global(statistics + pairs.block.other_of(j));
      }
    }
  };

  // The thread's elements of its r-th row in the tile of pairs.
  __device__ __forceinline__ auto waiting(int r) const {
    return [this, own = block.row_of(r)](int j) -> A& { return *block.pairs().at(own, block.other_of(j)); };
  }

  // The pairs of the thread's r-th own row. `x_of` and `dP_of` say where their products and dP are.
  template <class XOf, class DPOf>
  __device__ __forceinline__ void own_row(const OfTile& of_tile, int r_own, const XOf& x_of, const DPOf& dP_of) const {
    const int own = block.row_of(r_own);
    const Statistics<A> of_own = kOfKeys ? Statistics<A>{} : load_global(of_tile.statistics + own);
    const A place = static_cast<A>(row + work.entry.extent.offset - key);
    typename Block::Sums sums;
#pragma unroll
    for (int j = 0; j < kOthers; ++j) {
      const int other = block.other_of(j);
      const int r = kOfKeys ? other : own;
      const int c = kOfKeys ? own : other;
      bool visible = of_tile.all || of_tile.sees.visible(r, c);
      ScoreElements<A> found;
      if (Arrays::kHide && visible) {
        found = Arrays::of(params.forward, work.entry)(row + r, key + c);
        visible = found.visible;
      }
      A& element = x_of(j);
      const A dot = element;
      const A distance = place + static_cast<A>(r) - static_cast<A>(c);
      const PairGradient<A> pair = pair_gradient(work.score, dot, dP_of(j), found.bias, distance,
                                                 kOfKeys ? of_tile.of_other[j] : of_own, visible);
      sums.add(pair, dot, distance);
      if constexpr (Config::kPairs) store_pair(row + r, key + c, pair.dy);
      element = Config::kSecond ? pair.P : pair.dx;
      if (Config::kSecond) dP_of(j) = pair.dx;
    }
    if constexpr (Block::kSums) {
      const typename Block::Sums total = sums.template over_lanes<Block::kThreadsN>();
      if (block.thread_n == 0) *block.sums_of(own) += total;
    }
  }

  __device__ __forceinline__ void store_pair(long long own, long long other, A dy) const {
    using DBias = typename Config::DBias;
    if (own >= work.tile.end || other >= work.tile.chunk.end) return;
    DBias* target = own_entry_of<DBias>(params.dbias, work.tile) + own * params.dbias.row +
                    other * params.dbias.column;
    if (work.first) {
      store_global(target, Round<DBias>::from(dy));
    } else {
      add_pair<Config>(target, dy);
    }
  }

  static __device__ __forceinline__ void rotate(typename Block::Pairs& X) {
#pragma unroll
    for (int j = 0; j < kOthers; ++j) {
      const A front = X(0, j);
#pragma unroll
      for (int r = 1; r < kRows; ++r) X(r - 1, j) = X(r, j);
      X(kRows - 1, j) = front;
    }
  }
};
