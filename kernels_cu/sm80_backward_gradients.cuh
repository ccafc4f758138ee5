// The gradients of a warp's own rows or keys in sm80's backward pass, in registers.
#pragma once

#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "fragments.cuh"
#include "sm80_backward_block.cuh"
#include "sm80_backward_epilogue.cuh"
#include "types.cuh"

// Adds 0 times each sum, which is 0 if all are finite.
template <class Sums>
__device__ __forceinline__ float multiples_of_zero(Sums& sums, float zero) {
#pragma unroll
  for (int r = 0; r < Sums::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Sums::kColumns; ++c) zero = multiply_add(sums(r, c), 0.0f, zero);
  }
  return zero;
}

// The sums that a warp has of its own rows' or keys' gradients.
template <class Config, class Block>
struct Gradients {
  typename Block::FirstSums first;
  typename Either<Config::kSecond, typename Block::SecondSums, RegisterTile<float, 1, 1>>::Type second;

  __device__ __forceinline__ void clear() {
    if constexpr (Config::kFirst) first.clear();
    if constexpr (Config::kSecond) second.clear();
  }

  // Whether a thread's share of them is finite.
  __device__ __forceinline__ bool finite() {
    float zero = 0.0f;
    if constexpr (Config::kFirst) zero = multiples_of_zero(first, zero);
    if constexpr (Config::kSecond) zero = multiples_of_zero(second, zero);
    return zero == 0.0f;
  }

  __device__ __forceinline__ void store(const BackwardParams& params, const Block& block) {
    using T = typename Block::T;
    const Params& forward = params.forward;
    const OwnTile& done = block.work().own;
    if constexpr (Config::kFirst) {
      const Operand& operand = Config::kOfKeys ? params.dk : params.dq;
      const float scale = static_cast<float>(forward.scale_s * forward.scale_q);
      store_gradients(block, block.own_first(), operand, own_entry_of<T>(operand, done),
                      static_cast<int>(forward.d), scale, first);
    }
    if constexpr (Config::kSecond) {
      constexpr float kUnscale = is_float16<T> ? 0x1p-15f : 1.0f;
      store_gradients(block, block.own_second(), params.dv, own_entry_of<T>(params.dv, done),
                      static_cast<int>(forward.p), kUnscale, second);
    }
  }
};
