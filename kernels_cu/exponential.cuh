// e^x for x <= 0, what a softmax needs of it.
#pragma once

#include "ptx/exponential.cuh"

// The product x log2(e) costs |x| 2^-24 of relative accuracy, what the rounding of the score x itself
// costs already.
__device__ __forceinline__ float exponential(float x) {
  return exp2_approx(x * 1.4426950408889634f);
}

// The polynomial for e^r on |r| <= ln(2) / 2, from r^11 down to r^2: minimax of the relative error, 2^-57.9.
// In constant memory, which a multiply-add reads as an operand: as literals they took 17 of a softmax's 75
// instructions an element, to bring them into registers.
__constant__ double kExponential[10] = {
    2.5000061602835666e-08, 2.763024837921144e-07, 2.7557586373840165e-06, 2.480149309890655e-05,
    0.00019841269506578688, 0.0013888888943630114, 0.008333333333494461,   0.041666666666530155,
    0.16666666666666413,    0.5000000000000011,
};

// 2^k e^r with k = x / ln 2 to the nearest integer and a polynomial of degree 11 for e^r: off by less than
// 1 ulp, and 0 below e^-708.396, where powers become subnormal. CUDA's exp has a branch for results near overflow and underflow; without
// one the compiler interleaves the exponentials of a thread's elements, which hides the latency of the
// chain of 15 multiply-adds that each of them is.
__device__ __forceinline__ double exponential(double x) {
  constexpr double kRounding = 6755399441055744.0;  // 1.5 * 2^52: what is added to it loses its fraction
  const double shifted = fma(x, 1.4426950408889634, kRounding);
  const double k = shifted - kRounding;
  // ln 2 in two parts, so that r has more bits than k ln 2 would leave.
  const double r = fma(k, -2.3190468138462996e-17, fma(k, -0.6931471805599453, x));
  double p = kExponential[0];
#pragma unroll
  for (int i = 1; i < 10; ++i) p = fma(p, r, kExponential[i]);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  // The integer k is the low word of `shifted`; it goes to p's exponent.
  const long long bits = __double_as_longlong(p) + (__double_as_longlong(shifted) << 52);
  const unsigned high = static_cast<unsigned>(__double_as_longlong(x) >> 32);
  // The high word of an x orders those below 0 and tells a NaN.
  constexpr unsigned kLowest = 0xc086232au;
  constexpr unsigned kInfinity = 0x7ff00000u;
  const double power = high > kLowest ? 0.0 : __longlong_as_double(bits);
  return (high & 0x7fffffffu) > kInfinity ? p : power;
}
