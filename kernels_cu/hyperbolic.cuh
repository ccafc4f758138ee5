// tanh, what a softcap needs of it.
#pragma once

#include "exponential.cuh"

// Up to here a polynomial is tanh(x), in 5 instructions of which none is slow.
constexpr float kSmallTangent = 0.35f;

// x + x^3 q(x^2) for |x| <= kSmallTangent: the error of q is minimax, 2^-24.5 of tanh(x), and with the
// rounding of each step 1.2 ulp.
__device__ __forceinline__ float small_hyperbolic_tangent(float x) {
  const float square = x * x;
  const float q = fmaf(fmaf(-0.049148496240377426f, square, 0.1329982578754425f), square,
                       -0.33332663774490356f);
  return fmaf(q * square, x, x);
}

// The same for any x: 1 - 2 / (1 + e^2|x|) beyond. Which formula an x gets depends on nothing else.
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const float size = fabsf(x);
  const float large = 1.0f - 2.0f * reciprocal_approx(1.0f + exp2_approx(2.8853900817779268f * size));
  return size > kSmallTangent ? copysignf(large, x) : small_hyperbolic_tangent(x);
}

__device__ __forceinline__ double hyperbolic_tangent(double x) { return tanh(x); }
