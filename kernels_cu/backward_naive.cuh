// The gradients of attention in obvious code: one warp an own row or key, one of the others a lane, any d
// and p. It stays as the second opinion on what the fast kernels compute.
#pragma once

#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "naive_gradients.cuh"

template <class Config>
__device__ __forceinline__ void backward_naive(const BackwardParams& params) {
  BackwardSchedule<Config> schedule(params);
  OwnTile tile;
  while (schedule.next(tile)) {
    const long long own = tile.begin + threadIdx.x / kWarp;
    if (own < tile.end) differentiate_own<Config>(params, schedule, tile, own);
  }
}
