// What the backward pass needs of each row: its lse and delta (Dao et al., FlashAttention, arXiv:2205.14135,
// appendix B.2), and the row's share of its sink's gradient. kLanes lanes of a warp share a row.
#pragma once

#include "backward_params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

// Some neighbours of a row, of which `count` exist: those of an aligned row all or none.
template <class Config>
__device__ __forceinline__ Pack<typename Config::OType, Config::kPack> load_pack(
    const typename Config::OType* row, long long stride, long long count) {
  using Pieces = Pack<typename Config::OType, Config::kPack>;
  if constexpr (Config::kAligned) {
    return load_global(reinterpret_cast<const Pieces*>(row));
  } else {
    Pieces pieces = {};
#pragma unroll
    for (int e = 0; e < Config::kPack; ++e) {
      if (e < count) pieces.value[e] = load_global(row + e * stride);
    }
    return pieces;
  }
}

// Sums of dO O over the lane's columns of kRows rows, kStep apart, of which `count` exist. Where O is 0
// nothing is added: it is in a row that sees no key, whose dO may be NaN.
template <class Config, int kRows, int kStep>
__device__ __forceinline__ void row_products(const BackwardParams& params,
                                             const typename Config::OType* d_o,
                                             const typename Config::OType* o, int count, int lane,
                                             typename Config::Accumulate (&sum)[kRows]) {
  using A = typename Config::Accumulate;
  using Pieces = Pack<typename Config::OType, Config::kPack>;
  const Operand& left_place = params.d_o;
  const Operand& right_place = params.forward.o;
  for (long long x = lane * Config::kPack; x < params.forward.p; x += Config::kLanes * Config::kPack) {
    Pieces left[kRows];
    Pieces right[kRows];
    // All loads first: one row at a time reached 1.3 TB/s of an H200's 4.8.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= count) break;
      const long long columns = params.forward.p - x;
      left[r] = load_pack<Config>(d_o + r * kStep * left_place.row + x * left_place.column,
                                  left_place.column, columns);
      right[r] = load_pack<Config>(o + r * kStep * right_place.row + x * right_place.column,
                                   right_place.column, columns);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= count) break;
#pragma unroll
      for (int e = 0; e < Config::kPack; ++e) {
        const A o_x = Convert<A>::from(right[r].value[e]);
        const A product = multiply_add(Convert<A>::from(left[r].value[e]), o_x, sum[r]);
        sum[r] = o_x == A(0) ? sum[r] : product;
      }
    }
  }
}

// The derivative of lse with respect to a sink is its weight, that of O -O times the weight.
template <class A>
__device__ __forceinline__ A sink_gradient(A sink, A lse, A delta) {
  return sink == -Limits<A>::infinity() ? A(0) : -exponential(sink - lse) * delta;
}

// Writes what follows from a row's sum.
template <class Config>
__device__ __forceinline__ void store_statistics(const BackwardParams& params, const Tile& tile,
                                                 long long row, typename Config::Accumulate delta) {
  using A = typename Config::Accumulate;
  const Params& forward = params.forward;
  if (row >= (forward.m + kStatisticsRows - 1) / kStatisticsRows * kStatisticsRows) return;
  Statistics<A> statistics = {Limits<A>::infinity(), A(0)};
  if (row < forward.m) {
    const A lse = load_global(entry_of<const A>(forward.lse, tile, tile.head) + row * forward.lse.row);
    if (params.dlse.data != nullptr) {
      delta -= load_global(entry_of<const A>(params.dlse, tile, tile.head) + row * params.dlse.row);
    }
    if (lse != -Limits<A>::infinity()) {
      statistics = {lse * static_cast<A>(params.lse_unit) - static_cast<A>(params.p_exponent), delta};
    }
    if constexpr (is_given<typename Config::Sinks>) {
      const A sink = number_of_head<A, typename Config::Sinks>(forward.sinks, tile);
      store_global(entry_of<A>(params.sink_sums, tile, tile.head) + row * params.sink_sums.row,
                   sink_gradient(sink, lse, delta));
    }
  }
  store_global(entry_of<Statistics<A>>(params.statistics, tile, tile.head) + row, statistics);
}

template <class Config>
__device__ __forceinline__ void backward_statistics(const BackwardParams& params) {
  using A = typename Config::Accumulate;
  using OType = typename Config::OType;
  constexpr int kRows = Config::kRows;
  constexpr int kStep = Config::kBlockM / kRows;  // rows that a block's threads have at a time
  const int lane = threadIdx.x % Config::kLanes;
  const Params& forward = params.forward;
  Schedule<Config> schedule(forward);
  Tile tile;
  while (schedule.next(tile)) {
    const long long row = tile.row_begin + threadIdx.x / Config::kLanes;
    const long long below = forward.m - row;
    const int count = static_cast<int>(minimum(maximum(below + kStep - 1, 0ll) / kStep,
                                               static_cast<long long>(kRows)));
    A delta[kRows] = {};
    row_products<Config, kRows, kStep>(
        params, entry_of<const OType>(params.d_o, tile, tile.head) + row * params.d_o.row,
        entry_of<const OType>(forward.o, tile, tile.head) + row * forward.o.row, count, lane, delta);
#pragma unroll
    for (int r = 0; r < kRows; ++r) delta[r] = lanes_sum<A, Config::kLanes>(delta[r]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (lane == r % Config::kLanes) store_statistics<Config>(params, tile, row + r * kStep, delta[r]);
    }
  }
}
