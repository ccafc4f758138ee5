// The gradients of attention with tensor cores that multiply float64.
//
// As backward_simt.cuh, but both own operands stay in shared memory, and tiles of both operands of the others come there
// whole, by cp.async, each while the other one is multiplied: dP before the scores, for V, or dO, is free first.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "matrix_backward_block.cuh"
#include "matrix_threads.cuh"
#include "score_arrays.cuh"
#include "simt_backward_entries.cuh"
#include "simt_backward_gradients.cuh"
#include "simt_backward_loads.cuh"
#include "simt_backward_pairs.cuh"
#include "tile.cuh"
#include "types.cuh"

// Brings own rows or keys of one operand.
template <int kNumber, class Config, class Block>
__device__ __forceinline__ void load_own(const BackwardParams& params, const Block& block) {
  using A = typename Block::A;
  using On = Sides<Config>;
  using Operand = typename Block::template Operand<kNumber>;
  const EntryWork<Config>& work = block.work();
  const A factor = kNumber == 1 ? static_cast<A>(params.forward.scale_q) : A(1);
  Transfer<typename On::template Own<kNumber>, Block::kThreads, Block::kBlockM, Operand::kColumns> all;
  all.fetch(work.sides.template own<kNumber>(params), work.own.begin, work.own.end, 0,
            On::template columns<kNumber>(params));
  all.store(block.template own<kNumber>(), factor);
}

// Starts the copies of the others from `other` on of one operand; nobody reads its last ones any more.
template <int kNumber, class Config, class Block>
__device__ __forceinline__ void copy_others(const BackwardParams& params, const Block& block, long long other) {
  using Operand = typename Block::template Operand<kNumber>;
  const EntryWork<Config>& work = block.work();
  AsyncTransfer<Block::kThreads, Block::kBlockN, Operand>(block.template others<kNumber>())
      .template fetch<Block::kSkip>(work.sides.template others<kNumber>(params), other, work.others.end, 0,
                                    Sides<Config>::template columns<kNumber>(params), work.others.begin);
}

// Adds what one entry gives to the gradients of a tile.
template <class Config, class Block>
__device__ __forceinline__ void add_entry_by_matrix(const BackwardParams& params, const Block& block, bool careful,
                                                    TileGradients<Config, Block>& G) {
  constexpr int kEarly = Block::kScores ? 2 : 1;
  constexpr int kLate = 3 - kEarly;
  constexpr bool kBoth = Config::kFirst && Config::kSecond;
  load_own<1, Config>(params, block);
  if constexpr (Block::kScores) load_own<2, Config>(params, block);
  long long other = Block::tile_of(block.work().others.begin);
  copy_others<kEarly, Config>(params, block, other);
  for (; other < block.work().others.end; other += Block::kBlockN) {
    if (G.ends_span(block, other)) G.end_span(params, block);
    typename Block::Pairs X, dP;
    wait_for_copies();
    copy_others<kLate, Config>(params, block, other);
    if constexpr (Block::kScores) {
      block.product_of_columns(block.template own<2>(), block.template others<2>(), dP);
    } else {
      block.product_of_columns(block.template own<1>(), block.template others<1>(), X);
    }
    wait_for_copies();
    if constexpr (!kBoth) copy_others<kEarly, Config>(params, block, other + Block::kBlockN);
    if constexpr (Block::kScores) block.product_of_columns(block.template own<1>(), block.template others<1>(), X);
    write_elements(block, block.pairs(), X);
    TilePairs<Config, Block>(params, block, other).compute(dP);
    block.meet_rows();
    if (ScoreArrays<Config>::kHide && careful) {
      const int j = threadIdx.x;
      if (j < Block::kBlockN && is_hidden_other<Config>(params, block.work(), other + j)) {
        if constexpr (Config::kFirst) clear_row(block.template others<1>(), j);
        if constexpr (Config::kSecond) clear_row(block.template others<2>(), j);
      }
      __syncthreads();
    }
    if constexpr (Config::kSecond) {
      block.product_of_rows(block.pairs(), block.template others<2>(), G.second);
    }
    if constexpr (kBoth) {
      __syncthreads();
      copy_others<kEarly, Config>(params, block, other + Block::kBlockN);
      write_elements(block, block.pairs(), dP);
      block.meet_rows();
    }
    if constexpr (Config::kFirst) {
      block.product_of_rows(block.pairs(), block.template others<1>(), G.first);
    }
  }
  // The last copies are zeros.
  wait_for_copies();
}

template <class Config>
__device__ __forceinline__ void backward_matrix(const BackwardParams& params) {
  const MatrixGradientBlock<Config> block;
  differentiate_tiles<Config>(params, block, [&](bool careful, auto& G) {
    add_entry_by_matrix<Config>(params, block, careful, G);
  });
}
