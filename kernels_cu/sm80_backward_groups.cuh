// The products of the backward pass by warpgroups (wgmma): the matrices are read where they lie in shared memory, and
// a block's registers hold twice the sums that they hold beside mma.sync's fragments.
#pragma once

#include "backward_params.cuh"
#include "group_products.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/wgmma.cuh"
#include "sm80_backward_block.cuh"
#include "sm80_backward_copies.cuh"
#include "sm80_backward_epilogue.cuh"
#include "sm80_backward_gradients.cuh"
#include "sm80_backward_scores.cuh"
#include "types.cuh"

// Makes P and dS, or one of them, of the products of a step.
template <Makes kMakes, class Config, class Block>
__device__ __forceinline__ void differentiate_step(const Params& forward, const Block& block,
                                                   const Step<Config, Block>& step, int stage,
                                                   const ThreadStatistics<Config, Block>& of_thread,
                                                   const PairGradients<Config>& pairs,
                                                   OthersSums<Config, Block::Scores::kRows>& sums,
                                                   typename Block::PairSums& pair_sums,
                                                   typename Block::Scores& S, typename Block::Scores& dP) {
  // Where no gradient would show that hidden pairs have NaN, they are chosen always.
  constexpr bool kShows = Config::kFirst || Config::kSecond || Block::kPairSums;
  if (step.all && !(Block::kArrays && (!kShows || block.work().careful))) {
    differentiate<false, kMakes>(forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
  } else {
    differentiate<true, kMakes>(forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
  }
}

// Adds what one entry has of the gradients. The first others are on their way.
template <class Config, class Block>
__device__ __forceinline__ void add_entry_by_groups(const BackwardParams& params, const Block& block,
                                                    Gradients<Config, Block>& gradients,
                                                    OthersSums<Config, Block::Scores::kRows>& sums,
                                                    typename Block::PairSums& pair_sums) {
  static_assert(kHasGroups, "compile for sm_90a");
  using T = typename Block::T;
  // Whether P is enough to make dS of dP, so that exponentials don't wait for dP.
  constexpr bool kApart = Block::kDerivative && !Config::kSoftcap && !Config::kPairs && !Config::kBiasSums &&
                          !Config::kSlopeSums && !Config::kScaleSums;
  const ThreadStatistics<Config, Block> of_thread(block);
  const int others = block.work().others;
  for (int at = 0; at < others; at += Block::kOthers) {
    const int stage = at / Block::kOthers % 2;
    const int next = at + Block::kOthers;
    wait_async<0>();
    show_products();
    __syncthreads();
    copy_arrays<Config>(params.forward, block, block.work(), next, stage ^ 1);
    copy_first<false, Config>(params, block, block.work(), next, stage ^ 1);
    copy_second<false, Config>(params, block, block.work(), next, stage ^ 1);
    copy_statistics<Config>(block, block.work(), next, stage ^ 1);
    commit_async();
    const PairGradients<Config> pairs = pair_gradients_at<Config>(params, block, at);
    const Step<Config, Block> step(block, at, 0);
    if (Block::kArrays && block.work().careful) {
      clear_hidden_others<Config>(params.forward, block, at, stage);
      show_products();
      __syncthreads();
    }
    if (step.idle) {
      if (Config::kPairs && !Block::kPairSums) store_no_gradients(block, step.column, pairs);
      continue;
    }
    typename Block::Scores S, dP;
    begin_products();
    group_product<T>(block.own_first(), block.group_row(), block.first(stage), S);
    commit_products();
    if constexpr (Block::kDerivative) {
      group_product<T>(block.own_second(), block.group_row(), block.second(stage), dP);
      commit_products();
    }
    wait_products<kApart ? 1 : 0>();
    settle(S.sum[0]);
    if constexpr (Block::kDerivative && !kApart) settle(dP.sum[0]);
    constexpr Makes kFirstOf = kApart ? Makes::weights : Makes::both;
    differentiate_step<kFirstOf>(params.forward, block, step, stage, of_thread, pairs, sums, pair_sums, S, dP);
    GroupFragments<Block::kOthers> P, dS;
    if constexpr (Config::kSecond) {
      P.template round<T>(S);
      begin_products();
      group_sums<T>(P, block.second(stage), gradients.second);
      commit_products();
    }
    if constexpr (kApart) {
      wait_products<Config::kSecond ? 1 : 0>();
      settle(dP.sum[0]);
      differentiate_step<Makes::derivatives>(params.forward, block, step, stage, of_thread, pairs, sums, pair_sums,
                                             S, dP);
    }
    if constexpr (Config::kFirst) {
      dS.template round<T>(dP);
      begin_products();
      group_sums<T>(dS, block.first(stage), gradients.first);
      commit_products();
    }
    wait_products<0>();
    if constexpr (Config::kSecond) settle(gradients.second.sum[0]);
    if constexpr (Config::kFirst) settle(gradients.first.sum[0]);
  }
}
