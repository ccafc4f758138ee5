// Gradients of attention on the tensor cores (mma.sync), for 16-bit elements, d and p to 256, Ampere and
// newer.
//
// A block has the gradients of its own rows (dQ), or of its own keys (dK, dV), in registers, and lets the
// others pass by: for each tile of them a warp multiplies S and dP, makes P and dS of them, and adds their
// products to its gradients. Of keys S is transposed, so that P and dS are as they lie the left factors of
// dV = P^T dO and dK = dS^T Q, as those of rows are of dQ = dS K. No gradient has two blocks that add to it:
// all sums have one order, at the price of multiplying S and dP once for rows and once for keys.
#pragma once

#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "fragments.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/opaque.cuh"
#include "sm80_backward_block.cuh"
#include "sm80_backward_scores.cuh"
#include "sm80_epilogue.cuh"
#include "types.cuh"

// The fragments of an own matrix, read again for every tile.
template <class Block, class OwnTile>
struct OwnFragments {
  unsigned address;

  __device__ __forceinline__ OwnFragments(unsigned address) : address(address) {}
  __device__ __forceinline__ OwnFragments(const Block& block, const OwnTile& tile)
      : address(tile.at(block.warp_row() + block.lane() % 16, block.lane() / 16)) {}

  __device__ __forceinline__ void operator()(int tile, int step, unsigned (&a)[4]) const {
    load_matrix(OwnTile::further(address, step, 16 * tile), a);
  }
};

// Starts the copies of the own rows, or keys, that exist in an entry.
template <class Config, class Block>
__device__ __forceinline__ void copy_own(const BackwardParams& params, const Block& block,
                                         const typename Block::Work& work) {
  using T = typename Block::T;
  const Params& forward = params.forward;
  const Tile& entry = work.entry;
  const long long begin = work.own.begin;
  const long long head = Config::kOfKeys ? quotient(entry.head, forward.group) : entry.head;
  const Operand& first = Config::kOfKeys ? forward.k : forward.q;
  const Operand& second = Config::kOfKeys ? forward.v : params.d_o;
  const long long extent = Config::kOfKeys ? entry.extent.keys : entry.extent.rows;
  const int count = static_cast<int>(minimum(work.own.end, extent) - begin);
  TileCopy<T, typename Block::OwnFirst, Block::kThreads, Config::kUnit>::run(
      block.own_first(), {entry_of<const T>(first, entry, head), first.row, first.column}, begin,
      count, static_cast<int>(forward.d));
  if constexpr (Block::kDerivative) {
    TileCopy<T, typename Block::OwnSecond, Block::kThreads, Config::kUnit>::run(
        block.own_second(), {entry_of<const T>(second, entry, head), second.row, second.column},
        begin, count, static_cast<int>(forward.p));
  }
}

// Brings the factor of q into the own first matrix, which is as good.
template <class Config, class Block>
__device__ __forceinline__ void scale_own(const BackwardParams& params, const Block& block) {
  const float factor = static_cast<float>(params.forward.scale_q);
  if (factor == 1.0f) return;
  const Operand& first = Config::kOfKeys ? params.forward.k : params.forward.q;
  wait_async<0>();
  TileCopy<typename Block::T, typename Block::OwnFirst, Block::kThreads, Config::kUnit>::scale(
      block.own_first(), {nullptr, first.row, first.column}, factor);
}

// Starts the copy of one matrix of the others from `at` on, if there are any.
template <bool kSkip, class Config, class Block>
__device__ __forceinline__ void copy_first(const BackwardParams& params, const Block& block,
                                           const typename Block::Work& work, int at, int stage) {
  const Operand& first = Config::kOfKeys ? params.forward.q : params.forward.k;
  if (work.others <= at) return;
  TileCopy<typename Block::T, typename Block::First, Block::kThreads, Config::kUnit>::template run<kSkip>(
      block.first(stage), {work.first, first.row, first.column}, at, work.others - at,
      static_cast<int>(params.forward.d), kSkip ? work.skipped - at : 0);
}

template <bool kSkip, class Config, class Block>
__device__ __forceinline__ void copy_second(const BackwardParams& params, const Block& block,
                                            const typename Block::Work& work, int at, int stage) {
  const Operand& second = Config::kOfKeys ? params.d_o : params.forward.v;
  if (work.others <= at) return;
  TileCopy<typename Block::T, typename Block::Second, Block::kThreads, Config::kUnit>::template run<kSkip>(
      block.second(stage), {work.second, second.row, second.column}, at, work.others - at,
      static_cast<int>(params.forward.p), kSkip ? work.skipped - at : 0);
}

// Of keys: starts the copy of the statistics of a tile's rows, two to a piece. They reach to its end.
template <class Config, class Block>
__device__ __forceinline__ void copy_statistics(const Block& block, const typename Block::Work& work,
                                                int at, int stage) {
  if constexpr (Config::kOfKeys) {
    const int pair = opaque(static_cast<int>(threadIdx.x));
    if (work.others > at && pair < Block::kOthers / 2) {
      copy_async<16>(block.statistics(stage) + pair * 16, work.statistics + at + pair * 2, true);
    }
  }
}

// Starts the copies of the tiles of mask and bias from `at` on, if there are any.
template <class Config, class Block>
__device__ __forceinline__ void copy_arrays(const Params& forward, const Block& block,
                                            const typename Block::Work& work, int at, int stage) {
  if (!Block::kArrays || work.others <= at) return;
  const long long row = Config::kOfKeys ? at : 0;
  const long long key = Config::kOfKeys ? 0 : at;
  const int rows = Config::kOfKeys ? work.others - at : work.own_count;
  const int keys = Config::kOfKeys ? work.own_count : work.others - at;
  const auto arrays = ScoreArrays<Config>::at(forward, work.mask, work.bias).from(row, key);
  if constexpr (Config::kMask) {
    copy_score_tile<Block::kThreads>(block.mask(stage), arrays.mask, Config::kMaskRows ? rows : 1, keys,
                                     work.mask_unit);
  }
  if constexpr (Score<Config>::kBias) {
    copy_score_tile<Block::kThreads>(block.bias(stage), arrays.bias, Config::kBiasRows ? rows : 1, keys,
                                     work.bias_unit);
  }
}

// Zeroes the others in a stage that no row, or key, of the own sees: 0 times NaN is NaN. Of a matrix that P
// and dS aren't multiplied with nothing need be zero, and the next tile's may have come already.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_others(const Params& forward, const Block& block, int at,
                                                    int stage) {
  const auto& work = block.work();
  const auto arrays = ScoreArrays<Config>::at(forward, work.mask, work.bias);
#pragma unroll 1
  for (int other = threadIdx.x; other < Block::kOthers; other += Block::kThreads) {
    bool seen = false;
#pragma unroll 1
    for (int own = 0; own < work.own_count && !seen; ++own) {
      const int row = Config::kOfKeys ? at + other : own;
      const int key = Config::kOfKeys ? own : at + other;
      seen = work.sees.visible(row, key) && arrays(row, key).visible;
    }
    if (seen) continue;
    if constexpr (Config::kFirst) {
#pragma unroll 1
      for (int piece = 0; piece < Block::First::kPieces; ++piece) {
        store_shared(block.first(stage).at(other, piece), Words4{});
      }
    }
    if constexpr (Config::kSecond) {
#pragma unroll 1
      for (int piece = 0; piece < Block::Second::kPieces; ++piece) {
        store_shared(block.second(stage).at(other, piece), Words4{});
      }
    }
  }
}

// Adds 0 times each sum, which is 0 if all are finite.
template <class Sums>
__device__ __forceinline__ float multiples_of_zero(Sums& sums, float zero) {
#pragma unroll
  for (int r = 0; r < Sums::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Sums::kColumns; ++c) zero = multiply_add(sums(r, c), 0.0f, zero);
  }
  return zero;
}

// The sums that a warp has of its own rows' or keys' gradients.
template <class Config, class Block>
struct Gradients {
  typename Block::FirstSums first;
  typename Either<Config::kSecond, typename Block::SecondSums, RegisterTile<float, 1, 1>>::Type second;

  __device__ __forceinline__ void clear() {
    if constexpr (Config::kFirst) first.clear();
    if constexpr (Config::kSecond) second.clear();
  }

  // Whether a thread's share of them is finite.
  __device__ __forceinline__ bool finite() {
    float zero = 0.0f;
    if constexpr (Config::kFirst) zero = multiples_of_zero(first, zero);
    if constexpr (Config::kSecond) zero = multiples_of_zero(second, zero);
    return zero == 0.0f;
  }
};

template <class Config, class Block>
__device__ __forceinline__ PairGradients<Config> pair_gradients(const BackwardParams& params,
                                                                const Block& block,
                                                                const OwnTile& own, long long key) {
  PairGradients<Config> pairs = {};
  if constexpr (Config::kPairs) {
    const Operand& dbias = params.dbias;
    const long long row = own.begin + block.warp_row();
    const long long keys = minimum(own.chunk.end - key, static_cast<long long>(Block::kOthers));
    pairs = {own_entry_of<typename Config::DBias>(dbias, own) + row * dbias.row + key * dbias.column,
             dbias.row, dbias.column, static_cast<int>(own.end - row), static_cast<int>(keys)};
  }
  return pairs;
}

// The first key of the first tile that passes by own rows.
template <class Block>
__device__ __forceinline__ long long first_other(const Block& block) {
  const auto& work = block.work();
  return work.own.begin + work.entry.extent.offset - work.place;
}

// Where gradients of pairs with the tile at `at` go at once.
template <class Config, class Block>
__device__ __forceinline__ PairGradients<Config> pair_gradients_at(const BackwardParams& params,
                                                                   const Block& block, int at) {
  if (!Config::kPairs || Block::kPairSums) return {};
  return pair_gradients<Config>(params, block, block.work().own, first_other(block) + at);
}

// Waits for all copies, and until no warp reads what has been used.
__device__ __forceinline__ void wait_for_copies() {
  wait_async<0>();
  __syncthreads();
}

// Writes a warp's P or dS, rounded, to where the warps that share its rows read it.
template <class T, class Block>
__device__ __forceinline__ void store_exchange(const typename Block::Exchange& tile,
                                               typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  const ThreadPlace<Block> place;
  // From the thread's first element: a row of scores is eight rows further, which are turned alike, and eight
  // columns are a piece.
  const unsigned first = tile.at(place.row + Scores::row_of(place.lane, 0),
                                 place.part * (Block::kStep / 8)) +
                         Scores::column_of(place.lane, 0) * 2;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; c += 2) {
      store_shared((first ^ c / 2 * 16) + Scores::row_of(0, r) * Block::Exchange::kPitch,
                   pack_pair<T>(S(r, c), S(r, c + 1)));
    }
  }
}

// The fragments of what warps have exchanged. Where they lie is worked out each time: registers are short.
template <class Block>
__device__ __forceinline__ OwnFragments<Block, typename Block::Exchange> exchanged(
    const typename Block::Exchange& tile) {
  const ThreadPlace<Block> place;
  return {tile.at(place.row + place.lane % 16, place.lane / 16)};
}

// Whether any of the warps that share a warp's rows sees something of a tile.
template <class Block>
__device__ __forceinline__ bool shares_see(const Block& block, int at) {
  if constexpr (Block::kOfKeys) {
    return block.work().sees.from(at, block.warp_row())
        .template any_visible<Block::kOthers, Block::kWarpRows>();
  } else {
    return block.work().sees.from(block.warp_row(), at)
        .template any_visible<Block::kWarpRows, Block::kOthers>();
  }
}

// Adds the products of P, which is a warp's own or comes through shared memory, with the second matrix.
template <class Config, class Block>
__device__ __forceinline__ void add_second(const Block& block, const typename Block::Scores& P,
                                           const typename Block::StepSecond& step, int stage,
                                           typename Block::SecondSums& sums) {
  using T = typename Block::T;
  if constexpr (Block::kExchange) {
    const ThreadPlace<Block> place;
    const int piece = place.part * (Config::kHeadDimV / Block::kSplit / 8);
    product_pv<T>(exchanged<Block>(block.exchange(Config::kFirst)), block.second(stage), piece,
                  place.lane, sums);
  } else {
    product_pv<T>(P, step, block.lane(), sums);
  }
}

// The same of dS with the first one.
template <class Config, class Block>
__device__ __forceinline__ void add_first(const Block& block, const typename Block::Scores& dS,
                                          const typename Block::StepFirst& step, int stage,
                                          typename Block::FirstSums& sums) {
  using T = typename Block::T;
  if constexpr (Block::kExchange) {
    const ThreadPlace<Block> place;
    const int piece = place.part * (Config::kHeadDim / Block::kSplit / 8);
    product_pv<T>(exchanged<Block>(block.exchange(0)), block.first(stage), piece, place.lane, sums);
  } else {
    product_pv<T>(dS, step, block.lane(), sums);
  }
}

// Adds what one entry has of the gradients. The first others are on their way.
template <class Config, class Block>
__device__ __forceinline__ void add_entry(const BackwardParams& params, const Block& block,
                                          Gradients<Config, Block>& gradients,
                                          OthersSums<Config, Block::Scores::kRows>& sums,
                                          typename Block::PairSums& pair_sums) {
  using T = typename Block::T;
  using Scores = typename Block::Scores;
  constexpr bool kTwoStages = Block::kStages == 2;
  static_assert(Block::kStages == 1 || kTwoStages, "one tile on its way at most");
  // Without a second stage the matrices of the next tile take the places of this one's when those are free:
  // the second one as soon as the only step is done with it.
  constexpr bool kOneStep = Block::kOthers == Block::kStep * Block::kSplit;
  const ThreadStatistics<Config, Block> of_thread(block);
  const int others = block.work().others;
  for (int at = 0; at < others; at += Block::kOthers) {
    const int stage = kTwoStages ? at / Block::kOthers % 2 : 0;
    const int next = at + Block::kOthers;
    wait_for_copies();
    if constexpr (kTwoStages) {
      copy_arrays<Config>(params.forward, block, block.work(), next, stage ^ 1);
      copy_first<false, Config>(params, block, block.work(), next, stage ^ 1);
      copy_second<false, Config>(params, block, block.work(), next, stage ^ 1);
      if (!Block::kExchange) copy_statistics<Config>(block, block.work(), next, stage ^ 1);
    } else if (at > 0) {
      copy_arrays<Config>(params.forward, block, block.work(), at, 0);
      copy_first<false, Config>(params, block, block.work(), at, 0);
      if (!Block::kExchange) copy_statistics<Config>(block, block.work(), at, 0);
    }
    commit_async();
    const PairGradients<Config> pairs = pair_gradients_at<Config>(params, block, at);
#pragma unroll
    for (int column = 0; column < Block::kOthers; column += Block::kStep * Block::kSplit) {
      const Step<Config, Block> step(block, at, column);
      const typename Block::StepFirst first = {block.first(stage).base +
                                               step.column * Block::First::kPitch};
      const typename Block::StepSecond second = {block.second(stage).base +
                                                 step.column * Block::Second::kPitch};
      // Of a step without barriers an idle warp does nothing.
      constexpr bool kBarriers = Block::kArrays || Block::kExchange || !kTwoStages;
      if (!kBarriers && step.idle) continue;
      const bool idle = kBarriers && step.idle;
      Scores S, dP;
      // S first, whose exponentials don't wait for dP then. Without a second stage the second matrix is what
      // has come.
      if (kTwoStages && !idle) {
        S.clear();
        product_qk<T>(OwnFragments<Block, typename Block::OwnFirst>(block, block.own_first()), first,
                      block.lane(), S);
      }
      if constexpr (Block::kDerivative) {
        if (!idle) {
          dP.clear();
          product_qk<T>(OwnFragments<Block, typename Block::OwnSecond>(block, block.own_second()),
                        second, block.lane(), dP);
        }
      }
      if (!kTwoStages && column == 0) {
        wait_for_copies();
        if (kOneStep && !Config::kSecond) {
          copy_second<false, Config>(params, block, block.work(), next, 0);
          commit_async();
        }
      }
      if (!kTwoStages && !idle) {
        S.clear();
        product_qk<T>(OwnFragments<Block, typename Block::OwnFirst>(block, block.own_first()), first,
                      block.lane(), S);
      }
      if (Block::kArrays && block.work().careful && column == 0) {
        __syncthreads();
        clear_hidden_others<Config>(params.forward, block, at, stage);
        __syncthreads();
      }
      // What the arrays have is not to be loaded ahead of the products, which need the registers.
      if (Block::kArrays) __syncwarp();
      if (!idle) {
        // Where no gradient would show that hidden pairs have NaN, they are chosen always.
        constexpr bool kShows = Config::kFirst || Config::kSecond || Block::kPairSums;
        if (step.all && !(Block::kArrays && (!kShows || block.work().careful))) {
          differentiate<false>(params.forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
        } else {
          differentiate<true>(params.forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
        }
      } else if (Config::kPairs && !Block::kPairSums) {
        store_no_gradients(block, step.column, pairs);
      }
      if constexpr (Block::kExchange) {
        if (idle) {
          S.clear();
          dP.clear();
        }
        if constexpr (Config::kFirst) store_exchange<T, Block>(block.exchange(0), dP);
        if constexpr (Config::kSecond) store_exchange<T, Block>(block.exchange(Config::kFirst), S);
        __syncthreads();
        copy_statistics<Config>(block, block.work(), next, 0);
        commit_async();
      }
      const bool adds = Block::kExchange ? shares_see(block, at) : !idle;
      if constexpr (Config::kSecond) {
        if (adds) add_second<Config>(block, S, second, stage, gradients.second);
        if (!kTwoStages && kOneStep && next < others) {
          __syncthreads();
          copy_second<false, Config>(params, block, block.work(), next, 0);
          commit_async();
        }
      }
      if constexpr (Config::kFirst) {
        if (adds) add_first<Config>(block, dP, first, stage, gradients.first);
      }
    }
    if (!kTwoStages && !kOneStep && next < others) {
      __syncthreads();
      copy_second<false, Config>(params, block, block.work(), next, 0);
      commit_async();
    }
  }
}

// Zeroes the gradients of an own tile's pairs with keys that no tile of the entry has.
template <class Config, class Block>
__device__ __forceinline__ void store_no_pairs(const BackwardParams& params, const Block& block) {
  using Element = typename Config::DBias;
  const auto& work = block.work();
  const OwnTile& own = work.own;
  const long long first = first_other(block);
  const long long tiles = (work.others + Block::kOthers - 1) / Block::kOthers;
  const long long behind = minimum(first + tiles * Block::kOthers, own.chunk.end);
  Element* dbias = own_entry_of<Element>(params.dbias, own);
  for (int row = threadIdx.x / 32; row < work.own_count; row += Block::kWarps) {
    Element* of_row = dbias + (own.begin + row) * params.dbias.row;
    for (long long key = own.chunk.begin + block.lane(); key < own.chunk.end; key += 32) {
      if (tiles > 0 && key >= first && key < behind) continue;
      store_global(of_row + key * params.dbias.column, Round<Element>::from(0.0f));
    }
  }
}

// Writes an entry's sums over the others, one number for each of the own rows or keys.
template <class Config, class Block>
__device__ __forceinline__ void store_sums(const Operand& operand, float (&sums)[Block::Scores::kRows],
                                           const Block& block, float factor) {
  using Scores = typename Block::Scores;
  const auto& work = block.work();
  float* target = entry_of<float>(operand, work.entry, work.entry.head) + work.own.begin;
  const bool writes = block.lane() % Scores::kLanes == 0;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) sums[r] = lanes_sum<float, Scores::kLanes>(sums[r]);
  if constexpr (Block::kExchange) {
    // Each of the warps that share a row has seen its part of the others.
    const unsigned parts = block.exchange(0).base;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = block.warp_row() + Scores::row_of(block.lane(), r);
      const unsigned place = parts + (block.part() * Config::kBlockM + row) * 4;
      if (writes) store_shared(place, __float_as_uint(sums[r]));
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      const int row = block.warp_row() + Scores::row_of(block.lane(), r);
      sums[r] = 0.0f;
#pragma unroll
      for (int part = 0; part < Block::kSplit; ++part) {
        sums[r] += __uint_as_float(load_shared<unsigned>(parts + (part * Config::kBlockM + row) * 4));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    const int row = block.warp_row() + Scores::row_of(block.lane(), r);
    if (writes && block.part() == 0 && row < work.own_count) store_global(target + row, sums[r] * factor);
  }
}

// Writes a warp's gradients times a factor, by way of an own tile, which nobody reads any more.
template <class T, class OwnTile, class Block, class Sums>
__device__ __forceinline__ void store_gradients(const Block& block, const OwnTile& tile,
                                                const Operand& operand, T* target, int columns,
                                                float factor, Sums& sums) {
  const int first = block.part() * (OwnTile::kColumns / Block::kSplit);
#pragma unroll
  for (int r = 0; r < Sums::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Sums::kColumns; c += 2) {
      const int column = first + Sums::column_of(block.lane(), c);
      store_shared(tile.at(block.warp_row() + Sums::row_of(block.lane(), r), column / 8) + column % 8 * 2,
                   pack_pair<T>(sums(r, c) * factor, sums(r, c + 1) * factor));
    }
  }
  if (Block::kExchange) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  // Each of the warps that share rows writes some of them.
  using Rows = MatrixTile<Block::kWarpRows / Block::kSplit, OwnTile::kColumns>;
  const int row = block.warp_row() + block.part() * Rows::kRows;
  const auto& work = block.work();
  store_tile(Rows{tile.base + row * OwnTile::kPitch}, target + (work.own.begin + row) * operand.row,
             operand, work.own_count - row, columns);
}

template <class Config>
__device__ __forceinline__ void backward_sm80(const BackwardParams& params) {
  using Block = Sm80BackwardBlock<Config>;
  using T = typename Block::T;
  constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;
  const Block block;
  const Params& forward = params.forward;
  BackwardSchedule<Config> schedule(params);
  OwnTile own;
  while (schedule.next(own)) {
    Gradients<Config, Block> gradients;
    typename Block::PairSums pair_sums;
    bool careful = false;
    for (;;) {
      gradients.clear();
      pair_sums.clear();
      for (int share = 0; share < params.shares; ++share) {
        // All threads compute it, so that the copies are on their way before a barrier.
        const typename Block::Work work =
            work_on<Config>(schedule, schedule.current(), share, careful);
        copy_own<Config>(params, block, work);
        copy_first<kSkip, Config>(params, block, work, 0, 0);
        copy_second<kSkip, Config>(params, block, work, 0, 0);
        copy_statistics<Config>(block, work, 0, 0);
        copy_arrays<Config>(forward, block, work, 0, 0);
        commit_async();
        if (threadIdx.x == 0) block.work() = work;
        scale_own<Config>(params, block);
        __syncthreads();
        if constexpr (Config::kPairs && !Block::kPairSums) store_no_pairs<Config>(params, block);
        OthersSums<Config, Block::Scores::kRows> sums;
        add_entry<Config>(params, block, gradients, sums, pair_sums);
        if constexpr (Config::kBiasSums) store_sums<Config>(params.bias_sums, sums.bias, block, 1.0f);
        if constexpr (Config::kSlopeSums) store_sums<Config>(params.slope_sums, sums.slope, block, 1.0f);
        if constexpr (Config::kScaleSums) {
          const float inverse = 1.0f / static_cast<float>(forward.scale_q);
          store_sums<Config>(params.scale_sums, sums.scale, block, inverse);
        }
        wait_async<0>();
        __syncthreads();
      }
      if (!Block::kArrays || careful) break;
      const bool finite = gradients.finite() && multiples_of_zero(pair_sums, 0.0f) == 0.0f;
      careful = __any_sync(0xffffffffu, __syncthreads_or(!finite));
      if (!careful) break;
    }
    if constexpr (Config::kFirst || Config::kSecond) {
      // Without entries nobody wrote down where the block is.
      if (params.shares == 0) {
        if (threadIdx.x == 0) block.work() = without_entries<Config>(schedule);
        __syncthreads();
      }
      const OwnTile& done = block.work().own;
      if constexpr (Config::kFirst) {
        const Operand& operand = Config::kOfKeys ? params.dk : params.dq;
        const float scale = static_cast<float>(forward.scale_s * forward.scale_q);
        store_gradients(block, block.own_first(), operand, own_entry_of<T>(operand, done),
                        static_cast<int>(forward.d), scale, gradients.first);
      }
      if constexpr (Config::kSecond) {
        constexpr float kUnscale = is_float16<T> ? 0x1p-15f : 1.0f;
        store_gradients(block, block.own_second(), params.dv, own_entry_of<T>(params.dv, done),
                        static_cast<int>(forward.p), kUnscale, gradients.second);
      }
    }
    if constexpr (Block::kPairSums) {
      const OwnTile done = schedule.current();
      store_pair_sums<Config>(block, pair_gradients<Config>(params, block, done, done.chunk.begin),
                              pair_sums);
    }
    __syncthreads();
  }
}
