// Gradients of attention on the tensor cores, for 16-bit elements, d and p to 256, Ampere and newer: by mma.sync,
// here, and on Hopper by wgmma, in sm80_backward_groups.cuh.
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
#include "sm80_backward_block.cuh"
#include "sm80_backward_copies.cuh"
#include "sm80_backward_epilogue.cuh"
#include "sm80_backward_gradients.cuh"
#include "sm80_backward_groups.cuh"
#include "sm80_backward_scores.cuh"
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
  static_assert(kTwoStages || Block::kOthers == Block::kStep * Block::kSplit, "one step");
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
        if (!Config::kSecond) {
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
          differentiate<false, Makes::both>(params.forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
        } else {
          differentiate<true, Makes::both>(params.forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
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
        if (!kTwoStages && next < others) {
          __syncthreads();
          copy_second<false, Config>(params, block, block.work(), next, 0);
          commit_async();
        }
      }
      if constexpr (Config::kFirst) {
        if (adds) add_first<Config>(block, dP, first, stage, gradients.first);
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ void backward_sm80(const BackwardParams& params) {
  using Block = Sm80BackwardBlock<Config>;
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
        if constexpr (Block::kGroups) {
          add_entry_by_groups<Config>(params, block, gradients, sums, pair_sums);
        } else {
          add_entry<Config>(params, block, gradients, sums, pair_sums);
        }
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
      gradients.store(params, block);
    }
    if constexpr (Block::kPairSums) {
      const OwnTile done = schedule.current();
      store_pair_sums<Config>(block, pair_gradients<Config>(params, block, done, done.chunk.begin),
                              pair_sums);
    }
    __syncthreads();
  }
}
