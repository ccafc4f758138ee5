// The online softmax (Milakov and Gimelshein, arXiv:1805.02867): running maximum m and running sum l of
// rows whose scores arrive in tiles. A thread holds kRows rows; the columns of a row are spread over
// kLanes neighbouring lanes of a warp.
#pragma once

#include "types.cuh"

template <class A, int kLanes>
__device__ __forceinline__ A lanes_maximum(A value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value = maximum(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

template <class A, int kLanes>
__device__ __forceinline__ A lanes_sum(A value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

template <class A, int kRows, int kLanes>
struct OnlineSoftmax {
  A m[kRows];  // maximum of the scores so far, -inf before the first visible one
  A l[kRows];  // this lane's share of the sum of p_scale exp(S - m)
  A p_scale;

  __device__ __forceinline__ explicit OnlineSoftmax(double scale) : p_scale(static_cast<A>(scale)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      m[r] = -Limits<A>::infinity();
      l[r] = A(0);
    }
  }

  // Replaces a tile's scores by P = p_scale exp(S - m) and returns in alpha what the sums so far, O
  // among them, must be multiplied by.
  template <int kColumns>
  __device__ __forceinline__ void update(A (&S)[kRows][kColumns], A (&alpha)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      A tile_m = S[r][0];
#pragma unroll
      for (int c = 1; c < kColumns; ++c) tile_m = maximum(tile_m, S[r][c]);
      const A m_new = maximum(m[r], lanes_maximum<A, kLanes>(tile_m));
      // A row that has seen no key keeps m = -inf, and -inf - -inf would be NaN.
      const A reference = m_new == -Limits<A>::infinity() ? A(0) : m_new;
      alpha[r] = exponential(m[r] - reference);
      l[r] *= alpha[r];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        S[r][c] = exponential(S[r][c] - reference) * p_scale;
        l[r] += S[r][c];
      }
      m[r] = m_new;
    }
  }

  // Sums l over the lanes; after the last tile.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) l[r] = lanes_sum<A, kLanes>(l[r]);
  }

  __device__ __forceinline__ bool empty(int r) const { return m[r] == -Limits<A>::infinity(); }

  // log of the sum of exp(S); p_scale is a power of two, so dividing by it is exact.
  __device__ __forceinline__ A lse(int r) const {
    return empty(r) ? -Limits<A>::infinity() : m[r] + logarithm(l[r] / p_scale);
  }

  // O of a row from its running sum. The sums can't overflow (p_scale), the quotient by half an ulp
  // can where v is the largest number: a mean is never beyond the values that it is of.
  __device__ __forceinline__ A output(int r, A sum) const {
    if (empty(r)) return A(0);
    const A mean = sum / l[r];
    const A largest = Limits<A>::largest();
    const bool finite = sum <= largest && sum >= -largest;
    return finite ? minimum(maximum(mean, -largest), largest) : mean;
  }
};
