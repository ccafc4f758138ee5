// What happens to a score on its way from q k^T to the softmax: scale, then the mask.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "types.cuh"

// The type arguments of calls without these arrays.
struct NoBias {};
struct NoSlopes {};
struct NoSinks {};

template <class Config>
struct Score {
  using A = typename Config::Accumulate;
  A scale;

  __device__ __forceinline__ explicit Score(const Params& params)
      : scale(static_cast<A>(params.scale_s)) {}

  // The score of a pair whose scaled q times k is `dot`.
  __device__ __forceinline__ A operator()(A dot, bool visible) const {
    return masked(dot * scale, visible);
  }

  // Chosen, not multiplied, so that a NaN of an invisible key goes.
  static __device__ __forceinline__ A masked(A score, bool visible) {
    return visible ? score : -Limits<A>::infinity();
  }
};
