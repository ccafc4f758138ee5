// Element types in memory, the types that sums run in, and what both need of arithmetic.
#pragma once

#include "exponential.cuh"
#include "hyperbolic.cuh"
#include "ptx/convert.cuh"
#include "ptx/memory.cuh"

struct Float16 {
  unsigned short bits;
};

struct BFloat16 {
  unsigned short bits;
};

// The first type if the condition holds, and the second one if not.
template <bool kCondition, class First, class Second>
struct Either {
  using Type = First;
};
template <class First, class Second>
struct Either<false, First, Second> {
  using Type = Second;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(Float16 value) { return float_from_half(value.bits); }
__device__ __forceinline__ float to_float(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
// Of integers and float64, rounded to nearest.
template <class T>
__device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}

template <class A>
struct Convert;

template <>
struct Convert<float> {
  template <class T>
  static __device__ __forceinline__ float from(T value) {
    return to_float(value);
  }
};

template <>
struct Convert<double> {
  template <class T>
  static __device__ __forceinline__ double from(T value) {
    return static_cast<double>(value);
  }
  static __device__ __forceinline__ double from(Float16 value) { return to_float(value); }
  static __device__ __forceinline__ double from(BFloat16 value) { return to_float(value); }
};

template <class T>
struct Round;

template <>
struct Round<float> {
  static __device__ __forceinline__ float from(float value) { return value; }
};

template <>
struct Round<double> {
  static __device__ __forceinline__ double from(double value) { return value; }
};

template <>
struct Round<Float16> {
  static __device__ __forceinline__ Float16 from(float value) { return {half_from_float(value)}; }
};

template <>
struct Round<BFloat16> {
  // Round to nearest even on the integer; a NaN keeps its top bits and stays a NaN.
  static __device__ __forceinline__ BFloat16 from(float value) {
    const unsigned bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      return {static_cast<unsigned short>((bits >> 16) | 0x40u)};
    }
    return {static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
  }
};

// Infinity and the largest finite number, in the type that sums run in.
template <class T>
struct Limits;

template <>
struct Limits<Float16> {
  static __device__ __forceinline__ float largest() { return 65504.0f; }
};

template <>
struct Limits<BFloat16> {
  static __device__ __forceinline__ float largest() { return __uint_as_float(0x7f7f0000u); }
};

template <>
struct Limits<float> {
  static __device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
  static __device__ __forceinline__ float largest() { return __uint_as_float(0x7f7fffffu); }
};

template <>
struct Limits<double> {
  static __device__ __forceinline__ double infinity() {
    return __longlong_as_double(0x7ff0000000000000ll);
  }
  static __device__ __forceinline__ double largest() {
    return __longlong_as_double(0x7fefffffffffffffll);
  }
};

__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

__device__ __forceinline__ float maximum(float a, float b) { return fmaxf(a, b); }
// Half the instructions of fmax, and the same unless `a` is a NaN: a row with a NaN has no maximum that
// matters.
__device__ __forceinline__ double maximum(double a, double b) { return b > a ? b : a; }

__device__ __forceinline__ float minimum(float a, float b) { return fminf(a, b); }
__device__ __forceinline__ double minimum(double a, double b) { return fmin(a, b); }

__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

__device__ __forceinline__ int maximum(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int minimum(int a, int b) { return a < b ? a : b; }

__device__ __forceinline__ long long maximum(long long a, long long b) { return a > b ? a : b; }
__device__ __forceinline__ long long minimum(long long a, long long b) { return a < b ? a : b; }

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}
