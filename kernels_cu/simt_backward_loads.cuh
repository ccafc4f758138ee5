// Operands of simt's backward pass on their way from global memory to a stage, and the products with them.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "mask.cuh"
#include "score_arrays.cuh"
#include "simt_backward_block.cuh"
#include "tile.cuh"
#include "types.cuh"

// Chunks of columns of own rows and of others on their way to shared memory; of own rows that stay there
// only the others'.
template <class Config, int kNumber>
struct ColumnLoads {
  using Block = GradientBlock<Config>;
  using A = typename Block::A;
  using On = Sides<Config>;
  static constexpr int kColumns = kNumber == 1 ? Block::kHeadDim : Block::kHeadDimV;

  const BackwardParams& params;
  const Block& block;
  Transfer<typename On::template Own<kNumber>, Block::kThreads, Block::kBlockM, Block::kChunkD> own;
  Transfer<typename On::template Others<kNumber>, Block::kThreads, Block::kBlockN, Block::kChunkD>
      others;

  __device__ __forceinline__ ColumnLoads(const BackwardParams& params, const Block& block)
      : params(params), block(block) {}

  __device__ __forceinline__ auto own_shared() const {
    if constexpr (kNumber == 1) {
      return block.own1();
    } else {
      return block.own2();
    }
  }
  __device__ __forceinline__ typename Block::ColumnTile stage() const { return {block.stage()}; }
  // A power of two.
  __device__ __forceinline__ A factor() const {
    return kNumber == 1 ? static_cast<A>(params.forward.scale_q) : A(1);
  }

  __device__ __forceinline__ void fetch(long long other, int column) {
    const EntryWork<Config>& work = block.work();
    const long long columns = On::template columns<kNumber>(params);
    if (!Block::kResident) {
      own.fetch(work.sides.template own<kNumber>(params), work.own.begin, work.own.end, column,
                columns);
    }
    others.template fetch<Block::kSkip>(work.sides.template others<kNumber>(params), other,
                                        work.others.end, column, columns, work.others.begin);
  }

  __device__ __forceinline__ void store() const {
    if constexpr (!Block::kResident) own.store(own_shared(), factor());
    others.store(stage(), A(1));
  }

  // Brings all columns of own rows that stay.
  __device__ __forceinline__ void load_own() const {
    if constexpr (Block::kResident) {
      const EntryWork<Config>& work = block.work();
      Transfer<typename On::template Own<kNumber>, Block::kThreads, Block::kBlockM, kColumns> all;
      all.fetch(work.sides.template own<kNumber>(params), work.own.begin, work.own.end, 0,
                On::template columns<kNumber>(params));
      all.store(own_shared(), factor());
    }
  }

  // X += own others^T over all columns. The first chunk has been fetched; `after` fetches what comes next.
  template <class After>
  __device__ __forceinline__ void multiply(long long other, typename Block::Pairs& X,
                                           const After& after) {
    constexpr bool kChunks = kColumns > Block::kChunkD;
    const long long columns = On::template columns<kNumber>(params);
    int x = 0;
    do {
      store();
      __syncthreads();
      if (kChunks && x + Block::kChunkD < columns) {
        fetch(other, x + Block::kChunkD);
      } else {
        after();
      }
      block.product_of_columns(own_shared(), Block::kResident ? x : 0, stage(), X);
      __syncthreads();
      x += Block::kChunkD;
    } while (kChunks && x < columns);
  }
};

// Whether none of the block's own sees an other, or is seen by it.
template <class Config>
__device__ __forceinline__ bool is_hidden_other(const BackwardParams& params, const EntryWork<Config>& work,
                                                long long other) {
  const long long row = Config::kOfKeys ? other : work.own.begin;
  const long long key = Config::kOfKeys ? work.own.begin : other;
  const TileMask<Config> sees =
      Mask<Config>{params.forward, work.entry.extent}.tile(row, key);
  const auto arrays = ScoreArrays<Config>::of(params.forward, work.entry).from(row, key);
#pragma unroll 1
  for (int i = 0; i < Config::kBlockM; ++i) {
    const int r = Config::kOfKeys ? 0 : i;
    const int c = Config::kOfKeys ? i : 0;
    if (sees.visible(r, c) && arrays(r, c).visible) return false;
  }
  return true;
}

// Zeroes such others in the stage, those from `other` on.
template <class Config, class Stage>
__device__ __forceinline__ void clear_hidden_others(const BackwardParams& params,
                                                    const GradientBlock<Config>& block, const Stage& stage,
                                                    long long other) {
  const int j = threadIdx.x;
  if (j < Config::kChunkN && is_hidden_other<Config>(params, block.work(), other + j)) clear_row(stage, j);
}

// Chunks of others on their way to shared memory, all their columns.
template <class Config, int kNumber>
struct RowLoads {
  using Block = GradientBlock<Config>;
  using On = Sides<Config>;
  static constexpr int kColumns = kNumber == 1 ? Block::kHeadDim : Block::kHeadDimV;

  const BackwardParams& params;
  const Block& block;
  Transfer<typename On::template Others<kNumber>, Block::kThreads, Block::kChunkN, kColumns> others;

  __device__ __forceinline__ RowLoads(const BackwardParams& params, const Block& block)
      : params(params), block(block) {}

  __device__ __forceinline__ void fetch(long long other) {
    const EntryWork<Config>& work = block.work();
    others.template fetch<Block::kSkip>(work.sides.template others<kNumber>(params), other,
                                        work.others.end, 0, On::template columns<kNumber>(params),
                                        work.others.begin);
  }

  // G += pairs others. The first chunk has been fetched; `after` fetches what comes next. `careful` if
  // others that are hidden may be NaN.
  template <class Gradient, class After>
  __device__ __forceinline__ void multiply(long long other, bool careful, Gradient& G,
                                           const After& after) {
    const int count = static_cast<int>(
        minimum(block.work().others.end - other, static_cast<long long>(Block::kBlockN)));
    const typename Block::template RowTile<kColumns> stage = {block.stage()};
    for (int j = 0; j < count; j += Block::kChunkN) {
      others.store(stage, typename Block::A(1));
      __syncthreads();
      if (ScoreArrays<Config>::kHide && careful) {
        clear_hidden_others<Config>(params, block, stage, other + j);
        __syncthreads();
      }
      if (j + Block::kChunkN < count) {
        fetch(other + j + Block::kChunkN);
      } else {
        after();
      }
      block.template product_of_rows<Block::kChunkN>(block.pairs(), j, stage, G);
      __syncthreads();
    }
  }
};
