// What the backward pass needs of each row: its lse and delta (Dao et al., FlashAttention, arXiv:2205.14135,
// appendix B.2), and the row's share of its sink's gradient. kLanes lanes of a warp share a row.
#pragma once

#include "backward_params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

// Sum of dO O over the lane's columns of a row. Where O is 0 nothing is added: it is in a row that sees no
// key, whose dO may be NaN.
template <class Config>
__device__ __forceinline__ typename Config::Accumulate row_product(const BackwardParams& params,
                                                                   const typename Config::OType* d_o,
                                                                   const typename Config::OType* o,
                                                                   int lane) {
  using A = typename Config::Accumulate;
  using Pieces = Pack<typename Config::OType, Config::kPack>;
  const long long d_o_step = params.d_o.column;
  const long long o_step = params.forward.o.column;
  A sum = A(0);
  for (long long x = lane * Config::kPack; x < params.forward.p; x += Config::kLanes * Config::kPack) {
    const Pieces left = load_global(reinterpret_cast<const Pieces*>(d_o + x * d_o_step));
    const Pieces right = load_global(reinterpret_cast<const Pieces*>(o + x * o_step));
#pragma unroll
    for (int e = 0; e < Config::kPack; ++e) {
      const A o_x = Convert<A>::from(right.value[e]);
      const A product = multiply_add(Convert<A>::from(left.value[e]), o_x, sum);
      sum = o_x == A(0) ? sum : product;
    }
  }
  return sum;
}

// The derivative of lse with respect to a sink is its weight, that of O -O times the weight.
template <class A>
__device__ __forceinline__ A sink_gradient(A sink, A lse, A delta) {
  return sink == -Limits<A>::infinity() ? A(0) : -exponential(sink - lse) * delta;
}

template <class Config>
__device__ __forceinline__ void backward_statistics(const BackwardParams& params) {
  using A = typename Config::Accumulate;
  using OType = typename Config::OType;
  const int lane = threadIdx.x % Config::kLanes;
  const Params& forward = params.forward;
  Schedule<Config> schedule(forward);
  Tile tile;
  while (schedule.next(tile)) {
    const long long row = tile.row_begin + threadIdx.x / Config::kLanes;
    const bool exists = row < forward.m;
    A delta = A(0);
    if (exists) {
      delta = row_product<Config>(
          params, entry_of<const OType>(params.d_o, tile, tile.head) + row * params.d_o.row,
          entry_of<const OType>(forward.o, tile, tile.head) + row * forward.o.row, lane);
    }
    delta = lanes_sum<A, Config::kLanes>(delta);
    if (lane != 0) continue;
    Statistics<A> statistics = {Limits<A>::infinity(), A(0)};
    if (exists) {
      const A lse = load_global(entry_of<const A>(forward.lse, tile, tile.head) +
                                row * forward.lse.row);
      if (params.dlse.data != nullptr) {
        delta -= load_global(entry_of<const A>(params.dlse, tile, tile.head) + row * params.dlse.row);
      }
      if (lse != -Limits<A>::infinity()) {
        statistics = {lse * static_cast<A>(params.lse_unit) - static_cast<A>(params.p_exponent),
                      delta};
      }
      if constexpr (is_given<typename Config::Sinks>) {
        const A sink = number_of_head<A, typename Config::Sinks>(forward.sinks, tile);
        store_global(entry_of<A>(params.sink_sums, tile, tile.head) + row * params.sink_sums.row,
                     sink_gradient(sink, lse, delta));
      }
    }
    store_global(entry_of<Statistics<A>>(params.statistics, tile, tile.head) + row, statistics);
  }
}
