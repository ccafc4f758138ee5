// Softmax of rows as it is taught first: a pass over x for the maximum, one for the sum of exp(x - m), one
// for the result. A row that fits in the registers of its threads is read once, and the passes go over
// registers; a longer one is shared by blocks, in a launch for each pass.
#pragma once

#include "row_packs.cuh"
#include "row_statistics.cuh"
#include "softmax.cuh"
#include "softmax_params.cuh"

// One thread's share of the first two passes over kPacks packs.
template <class Config>
struct ThreePassColumns {
  using A = typename Config::Accumulate;
  static constexpr int kSize = Packs<Config>::kSize;

  static __device__ __forceinline__ A maximum_of(const Packs<Config>& packs, A m) {
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) m = maximum(m, Convert<A>::from(packs.held[i].get(e)));
    }
    return m;
  }

  static __device__ __forceinline__ A sum_of(const Packs<Config>& packs, A reference,
                                             A l) {
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
      const auto x = packs.held[i].anew();
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        l += exponential(Convert<A>::from(x.get(e)) - reference);
      }
    }
    return l;
  }

  // The same of all that a thread has of a row, whose packs become the weights that are summed.
  static __device__ __forceinline__ A weigh(Packs<Config>& packs, A reference) {
    A l = A(0);
#pragma unroll
    for (int i = 0; i < Config::kPacks; ++i) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        const A weight = exponential(packs.held[i].get(e) - reference);
        packs.held[i].set(e, weight);
        l += weight;
      }
    }
    return l;
  }
};

template <class Config>
__device__ __forceinline__ void softmax_three_pass_row(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  using Columns = ThreePassColumns<Config>;
  using Reduction = RowReduction<A, Config::kLanes>;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    Packs<Config> packs;
    packs.load(piece, params.x.column, 0);
    Statistics<A> row;
    row.m = Reduction::row_maximum(Columns::maximum_of(packs, row.m));
    const A reference = reference_of(row.m);
    if constexpr (Packs<Config>::kKeepsWeights) {
      row.l = Reduction::row_sum(Columns::weigh(packs, reference));
      normalise_weights(packs, reference, Normaliser<A>(row));
      packs.store(piece, params.o.column, 0, AsItIs());
    } else {
      row.l = Reduction::row_sum(Columns::sum_of(packs, reference, row.l));
      const Normaliser<A> normalise(row);
      packs.store(piece, params.o.column, 0, normalise);
    }
    Reduction::release();
  }
}

// The row's maximum from those of its parts.
template <class Config>
__device__ __forceinline__ typename Config::Accumulate maximum_of_parts(
    const PartStatistics<typename Config::Accumulate>& row) {
  using A = typename Config::Accumulate;
  A m = -Limits<A>::infinity();
  for (int part = threadIdx.x; part < row.parts; part += Config::kThreads) {
    m = maximum(m, load_global(row.m + part));
  }
  return RowReduction<A, Config::kLanes>::row_maximum(m);
}

// First launch of a row in parts: the maximum of each.
template <class Config>
__device__ __forceinline__ void softmax_three_pass_maximum(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    A m = -Limits<A>::infinity();
    Packs<Config> first;
    first.load(piece, params.x.column, 0);
    for_each_tile<Config>(params, piece, first, [&](const Packs<Config>& packs, int) {
      m = ThreePassColumns<Config>::maximum_of(packs, m);
    });
    m = RowReduction<A, Config::kLanes>::row_maximum(m);
    const PartStatistics<A> row(params, piece);
    if (threadIdx.x == 0) store_global(row.m + piece.part, m);
    RowReduction<A, Config::kLanes>::release();
  }
}

// Second launch: the sum of each part, relative to the row's maximum.
template <class Config>
__device__ __forceinline__ void softmax_three_pass_sum(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    const PartStatistics<A> row(params, piece);
    Packs<Config> first;
    first.load(piece, params.x.column, 0);
    const A reference = reference_of(maximum_of_parts<Config>(row));
    A l = A(0);
    for_each_tile<Config>(params, piece, first, [&](const Packs<Config>& packs, int) {
      l = ThreePassColumns<Config>::sum_of(packs, reference, l);
    });
    l = RowReduction<A, Config::kLanes>::row_sum(l);
    if (threadIdx.x == 0) store_global(row.l + piece.part, l);
    RowReduction<A, Config::kLanes>::release();
  }
}

// Third launch: the row's m and l from those of all parts, then the part's result.
template <class Config>
__device__ __forceinline__ void softmax_three_pass_write(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    write_piece<Config>(params, piece, [&] {
      const PartStatistics<A> row(params, piece);
      Statistics<A> whole;
      whole.m = maximum_of_parts<Config>(row);
      A l = A(0);
      for (int part = threadIdx.x; part < row.parts; part += Config::kThreads) {
        l += load_global(row.l + part);
      }
      whole.l = RowReduction<A, Config::kLanes>::row_sum(l);
      return whole;
    });
    RowReduction<A, Config::kLanes>::release();
  }
}
