// Softmax of rows with the online update (Milakov and Gimelshein, arXiv:1805.02867, algorithm 3): maximum
// and sum in one pass over x, the result in a second one. A row that fits in the registers of its threads
// is read once; a longer one is shared by blocks, which leave (m, l) of their parts to a second launch.
#pragma once

#include "row_packs.cuh"
#include "row_statistics.cuh"
#include "softmax.cuh"
#include "softmax_params.cuh"
#include "tile.cuh"

// The weight of a softmax that isn't attention's: nothing scales it.
template <class A>
struct PlainWeight {
  __device__ __forceinline__ explicit PlainWeight(const SoftmaxParams&) {}

  __device__ __forceinline__ A operator()(A below) const { return exponential(below); }
  __device__ __forceinline__ A rescale(A below) const { return exponential(below); }
};

template <class Config>
struct OnlineColumns {
  using A = typename Config::Accumulate;
  static constexpr int kSize = Packs<Config>::kSize;
  // Packs of one update: the more, the fewer rescalings; the fewer, the fewer registers.
  static constexpr int kUpdate = Config::kPacks < Config::kUpdate ? Config::kPacks : Config::kUpdate;
  static_assert(Config::kPacks % kUpdate == 0, "whole updates");

  OnlineSoftmax<A, 1, 1, PlainWeight<A>> softmax;

  __device__ __forceinline__ explicit OnlineColumns(const SoftmaxParams& params)
      : softmax(params) {}

  __device__ __forceinline__ void update(const Packs<Config>& packs) {
    update(packs, [](int, A) {});
  }

  // The same of all that a thread has of a row, whose packs become the weights exp(x - m).
  __device__ __forceinline__ void weigh(Packs<Config>& packs) {
    static_assert(Config::kPacks == kUpdate, "all weights are relative to one maximum");
    update(packs, [&](int c, A weight) { packs.held[c / kSize].set(c % kSize, weight); });
  }

  __device__ __forceinline__ Statistics<A> statistics() const {
    Statistics<A> mine;
    mine.m = softmax.m[0];
    mine.l = softmax.l[0];
    return RowReduction<A, Config::kLanes>::join(mine);
  }

 private:
  // keep(c, weight) gets the weight of each column.
  template <class Keep>
  __device__ __forceinline__ void update(const Packs<Config>& packs, const Keep& keep) {
#pragma unroll
    for (int begin = 0; begin < Config::kPacks; begin += kUpdate) {
      RegisterTile<A, 1, kUpdate * kSize> S;
#pragma unroll
      for (int c = 0; c < kUpdate * kSize; ++c) {
        S(0, c) = Convert<A>::from(packs.held[begin + c / kSize].get(c % kSize));
      }
      A alpha[1];
      softmax.update(S, alpha);
#pragma unroll
      for (int c = 0; c < kUpdate * kSize; ++c) keep(begin * kSize + c, S(0, c));
    }
  }
};

template <class Config>
__device__ __forceinline__ void softmax_online_row(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    Packs<Config> packs;
    packs.load(piece, params.x.column, 0);
    OnlineColumns<Config> columns(params);
    if constexpr (Packs<Config>::kKeepsWeights) {
      columns.weigh(packs);
      const Normaliser<A> row(columns.statistics());
      normalise_weights(packs, reference_of(columns.softmax.m[0]), row);
      packs.store(piece, params.o.column, 0, AsItIs());
    } else {
      columns.update(packs);
      const Normaliser<A> normalise(columns.statistics());
      packs.store(piece, params.o.column, 0, normalise);
    }
    RowReduction<A, Config::kLanes>::release();
  }
}

// First launch of a row in parts: m and l of each.
template <class Config>
__device__ __forceinline__ void softmax_online_reduce(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    OnlineColumns<Config> columns(params);
    Packs<Config> first;
    first.load(piece, params.x.column, 0);
    for_each_tile<Config>(params, piece, first,
                          [&](const Packs<Config>& packs, int) { columns.update(packs); });
    const Statistics<A> found = columns.statistics();
    const PartStatistics<A> row(params, piece);
    if (threadIdx.x == 0) {
      store_global(row.m + piece.part, found.m);
      store_global(row.l + piece.part, found.l);
    }
    RowReduction<A, Config::kLanes>::release();
  }
}

// Second launch: the row's m and l from those of all parts, then the part's result.
template <class Config>
__device__ __forceinline__ void softmax_online_write(const SoftmaxParams& params) {
  using A = typename Config::Accumulate;
  Pieces<Config> pieces(params);
  Piece<typename Config::Element> piece;
  while (pieces.next(piece)) {
    write_piece<Config>(params, piece, [&] {
      const PartStatistics<A> row(params, piece);
      Statistics<A> mine;
      for (int part = threadIdx.x; part < row.parts; part += Config::kThreads) {
        Statistics<A> other;
        other.m = load_global(row.m + part);
        other.l = load_global(row.l + part);
        mine.join(other);
      }
      return RowReduction<A, Config::kLanes>::join(mine);
    });
    RowReduction<A, Config::kLanes>::release();
  }
}
