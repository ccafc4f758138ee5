// Two floats to a pair of 16-bit elements, as mma's fragments hold them: `low` in the lower half (PTX
// ISA, "cvt": .rn.f16x2.f32 and .rn.bf16x2.f32; sm_80). Rounds to nearest even; a NaN becomes 0x7fff.
// Before sm_80 it is done one by one, and bfloat16 in integers.
#pragma once

#include "ptx/convert.cuh"

struct Float16;
struct BFloat16;

template <class T>
__device__ __forceinline__ unsigned pack_pair(float low, float high);

#if defined(CUPY_FLASH_EMULATE) || __CUDA_ARCH__ < 800

template <>
__device__ __forceinline__ unsigned pack_pair<Float16>(float low, float high) {
  return half_from_float(low) | static_cast<unsigned>(half_from_float(high)) << 16;
}

__device__ __forceinline__ unsigned bfloat16_from_float(float value) {
  const unsigned bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <>
__device__ __forceinline__ unsigned pack_pair<BFloat16>(float low, float high) {
  return bfloat16_from_float(low) | bfloat16_from_float(high) << 16;
}

#else

template <>
__device__ __forceinline__ unsigned pack_pair<Float16>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <>
__device__ __forceinline__ unsigned pack_pair<BFloat16>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

#endif
