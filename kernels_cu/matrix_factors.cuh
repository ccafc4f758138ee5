// Factors of products on the tensor cores, 16 terms of a sum at a time: float64 as it is, float32 as TF32 numbers.
#pragma once

#include "ptx/matrix32.cuh"
#include "ptx/matrix64.cuh"
#include "types.cuh"

// kWhole: with the accuracy of A.
template <class A, bool kWhole>
struct MatrixFactors;

template <>
struct MatrixFactors<double, true> {
  using Factor = double;
  // Whether sums run outside of the tensor cores.
  static constexpr bool kApart = false;
  // Whether a factor is split or rounded, which one that isn't finite, or is rounded to infinity, can't be.
  static constexpr bool kSplit = false;

  static __device__ __forceinline__ Factor of(double x) { return x; }
  static __device__ __forceinline__ void multiply(double (&c)[4], const Factor (&a)[8], const Factor (&b)[4]) {
    multiply_accumulate(c, a, b);
  }
};

// x is the sum of two TF32 numbers but for its last bit, and the product of two low ones is below 2^-22 of the whole:
// three products have the accuracy of float32. The tensor cores cut sums off where FMA rounds them: they sum few terms,
// and what they have is added outside (Ootomo and Yokota, arXiv:2203.03341).
template <>
struct MatrixFactors<float, true> {
  struct Factor {
    unsigned high;
    unsigned low;
  };
  static constexpr bool kApart = true;
  static constexpr bool kSplit = true;

  // The tensor cores cut off the last 13 bits: adding half of their unit rounds.
  static __device__ __forceinline__ Factor of(float x) {
    const unsigned high = __float_as_uint(x) + 0x1000u;
    return {high, __float_as_uint(x - __uint_as_float(high & 0xffffe000u))};
  }

  // The small products first.
  static __device__ __forceinline__ void multiply(float (&c)[4], const Factor (&a)[8], const Factor (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_accumulate(c, a[4 * i].low, a[4 * i + 1].low, a[4 * i + 2].low, a[4 * i + 3].low, b[2 * i].high,
                          b[2 * i + 1].high);
      multiply_accumulate(c, a[4 * i].high, a[4 * i + 1].high, a[4 * i + 2].high, a[4 * i + 3].high, b[2 * i].low,
                          b[2 * i + 1].low);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_accumulate(c, a[4 * i].high, a[4 * i + 1].high, a[4 * i + 2].high, a[4 * i + 3].high, b[2 * i].high,
                          b[2 * i + 1].high);
    }
  }
};

// One TF32 product.
template <>
struct MatrixFactors<float, false> {
  using Factor = unsigned;
  static constexpr bool kApart = false;
  static constexpr bool kSplit = true;

  static __device__ __forceinline__ Factor of(float x) { return rounded_tf32(x); }
  static __device__ __forceinline__ void multiply(float (&c)[4], const Factor (&a)[8], const Factor (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_accumulate(c, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], b[2 * i], b[2 * i + 1]);
    }
  }
};
