// Attention in obvious code: one warp a row, one key a lane, any d and p. It stays as the second opinion
// on what the fast kernels compute, and serves head dims above theirs.
#pragma once

#include "naive_row.cuh"
#include "params.cuh"
#include "schedule.cuh"

template <class Config>
__device__ __forceinline__ void forward_naive(const Params& params) {
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    const long long row = tile.row_begin + threadIdx.x / kWarp;
    if (row < tile.row_end) attend_row<Config>(params, tile, row);
  }
}
