// The gradients of one own row or key by one warp, one of the others a lane, any d and p.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "mask.cuh"
#include "naive_columns.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class T>
struct NaiveRow {
  const T* data;
  long long step;

  template <class A>
  __device__ __forceinline__ A at(long long column) const {
    return Convert<A>::from(load_global(data + column * step));
  }
};

template <class T>
__device__ __forceinline__ NaiveRow<T> row_of(const Matrix<T>& matrix, long long row) {
  return {matrix.data + row * matrix.row_stride, matrix.column_stride};
}

// Of one entry, and one own row or key of it.
template <class Config>
struct NaiveGradients {
  using A = typename Config::Accumulate;
  using Arrays = ScoreArrays<Config>;
  static constexpr bool kOfKeys = Config::kOfKeys;
  static constexpr bool kScores = Wanted<Config>::kScores;

  const BackwardParams& params;
  const Tile& entry;
  Sides<Config> sides;
  Mask<Config> mask;
  Arrays arrays;  // from row and key 0 on
  Score<Config> score;
  const Statistics<A>* statistics;
  Range others;  // that may see the own one, or be seen
  long long own;
  int lane;

  template <int kNumber>
  __device__ __forceinline__ A product(long long other, A factor) const {
    const auto x = row_of(sides.template own<kNumber>(params), own);
    const auto y = row_of(sides.template others<kNumber>(params), other);
    A dot = A(0);
    for (long long c = 0; c < sides.template columns<kNumber>(params); ++c) {
      dot = multiply_add(x.template at<A>(c) * factor, y.template at<A>(c), dot);
    }
    return dot;
  }

  // What the pair with one of the others gives; `visible` whether it gives anything.
  __device__ __forceinline__ PairGradient<A> pair(long long other, bool& visible,
                                                  PairSums<Config>& sums) const {
    const long long row = kOfKeys ? other : own;
    const long long key = kOfKeys ? own : other;
    visible = others.begin <= other && other < others.end && mask.tile(row, key).visible(0, 0);
    ScoreElements<A> found;
    if (Arrays::kHide && visible) found = arrays(row, key);
    visible = visible && found.visible;
    if (!visible) return {};
    const A dot = product<1>(other, static_cast<A>(params.forward.scale_q));
    const A dP = kScores ? product<2>(other, A(1)) : A(0);
    const A distance = static_cast<A>(row + mask.extent.offset - key);
    const PairGradient<A> pair = pair_gradient(score, dot, dP, found.bias, distance,
                                               load_global(statistics + row), true);
    sums.add(pair, dot, distance);
    return pair;
  }
};

template <class Config>
struct NaiveSums {
  using A = typename Config::Accumulate;
  using Gradient = RegisterTile<A, 1, kColumnsPerLane>;
  // Columns of a gradient: the sum of the spans that have ended, and that of the one at hand.
  struct Sum {
    Gradient spans;
    Gradient span;

    __device__ __forceinline__ void end_span() {
#pragma unroll
      for (int c = 0; c < kColumnsPerLane; ++c) spans(0, c) += span(0, c);
      span.clear();
    }
  };
  Sum first;   // of dq or dk
  Sum second;  // of dv

  // The gradients of pairs where nothing is added.
  static __device__ __forceinline__ void clear_pairs(const BackwardParams& params,
                                                     const OwnTile& tile, int lane) {
    using DBias = typename Config::DBias;
    DBias* row = own_entry_of<DBias>(params.dbias, tile) + tile.begin * params.dbias.row;
    for (long long key = tile.chunk.begin + lane; key < tile.chunk.end; key += kWarp) {
      store_global(row + key * params.dbias.column, Round<DBias>::from(A(0)));
    }
  }

  // Adds what one entry gives to columns from `column` on.
  __device__ __forceinline__ void add(const NaiveGradients<Config>& work, const OwnTile& tile,
                                      long long column) {
    const int lane = work.lane;
    PairSums<Config> sums;
    for (long long begin = work.others.begin & -kWarp; begin < work.others.end; begin += kWarp) {
      bool visible;
      const PairGradient<A> own_pair = work.pair(begin + lane, visible, sums);
      if constexpr (Config::kPairs) {
        if (column == 0 && visible) {
          const Operand& dbias = work.params.dbias;
          add_pair<Config>(own_entry_of<typename Config::DBias>(dbias, tile) +
                               work.own * dbias.row + (begin + lane) * dbias.column,
                           own_pair.dy);
        }
      }
      for (int j = 0; j < kWarp; ++j) {
        // What is hidden may be NaN.
        if (!__shfl_sync(0xffffffffu, static_cast<int>(visible), j)) continue;
        if (Config::kFirst) {
          const A dx = __shfl_sync(0xffffffffu, own_pair.dx, j);
          accumulate<1>(first.span, dx, work, begin + j, column);
        }
        if (Config::kSecond) {
          const A P = __shfl_sync(0xffffffffu, own_pair.P, j);
          accumulate<2>(second.span, P, work, begin + j, column);
        }
      }
      if ((begin + kWarp) % kSpan == 0) end_span();
    }
    end_span();
    if (Wanted<Config>::kSums > 0 && column == 0) {
      const PairSums<Config> total = sums.template over_lanes<kWarp>();
      if (lane == 0) total.store(work.params, work.entry, work.own);
    }
  }

  // Writes columns of a row of gradients.
  template <class T>
  static __device__ __forceinline__ void store(Sum& sum, const Operand& target,
                                               const OwnTile& tile, long long own, long long column,
                                               long long columns, A factor_q, A factor_s, int lane) {
    T* row = own_entry_of<T>(target, tile) + own * target.row;
#pragma unroll
    for (int c = 0; c < kColumnsPerLane; ++c) {
      const long long x = column + lane + c * kWarp;
      if (x < columns) {
        store_global(row + x * target.column, Round<T>::from(sum.spans(0, c) * factor_q * factor_s));
      }
    }
  }

 private:
  __device__ __forceinline__ void end_span() {
    first.end_span();
    second.end_span();
  }

  template <int kNumber>
  static __device__ __forceinline__ void accumulate(Gradient& sum, A weight,
                                                    const NaiveGradients<Config>& work,
                                                    long long other, long long column) {
    const auto row = row_of(work.sides.template others<kNumber>(work.params), other);
#pragma unroll
    for (int c = 0; c < kColumnsPerLane; ++c) {
      const long long x = column + work.lane + c * kWarp;
      if (x < work.sides.template columns<kNumber>(work.params)) {
        sum(0, c) = multiply_add(weight, row.template at<A>(x), sum(0, c));
      }
    }
  }
};

// Computes and writes the gradients of an own row or key of a tile.
template <class Config>
__device__ __forceinline__ void differentiate_own(const BackwardParams& params, const BackwardSchedule<Config>& schedule,
                                                  const OwnTile& tile, long long own) {
  using A = typename Config::Accumulate;
  const Params& forward = params.forward;
  const int lane = threadIdx.x % kWarp;
  OwnTile alone = tile;
  alone.begin = own;
  alone.end = own + 1;
  const long long columns =
      maximum(Config::kFirst ? forward.d : 0ll, Config::kSecond ? forward.p : 0ll);
  // One pass even if there is no column: sums and pairs need it.
  long long column = 0;
  do {
    NaiveSums<Config> sums;
    if (Config::kPairs && column == 0) {
      sums.clear_pairs(params, alone, lane);
      // Lanes add to what others cleared.
      __syncwarp();
    }
    for (long long share = 0; share < params.shares; ++share) {
      const Tile entry = schedule.entry(tile, share);
      const NaiveGradients<Config> work = {
          params,
          entry,
          Sides<Config>::of(params, entry),
          {forward, entry.extent},
          ScoreArrays<Config>::of(forward, entry),
          Score<Config>(forward, number_of_head<A, typename Config::Slopes>(forward.alibi_slopes, entry)),
          entry_of<const Statistics<A>>(params.statistics, entry, entry.head),
          others_of<Config>(params, alone, entry),
          own,
          lane,
      };
      sums.add(work, alone, column);
    }
    if constexpr (Config::kFirst) {
      using T = typename Sides<Config>::template Own<1>;
      sums.template store<T>(sums.first, Config::kOfKeys ? params.dk : params.dq, tile, own, column,
                             forward.d, static_cast<A>(forward.scale_q),
                             static_cast<A>(forward.scale_s), lane);
    }
    if constexpr (Config::kSecond) {
      sums.template store<typename Config::VType>(sums.second, params.dv, tile, own, column,
                                                  forward.p, A(1), A(1), lane);
    }
    column += kColumnChunk;
  } while (column < columns);
}
