// Conversions between float and the bits of IEEE binary16 (PTX ISA, "cvt": .f32.f16 and .rn.f16.f32).
// bfloat16 needs no instruction: types.cuh does it in integers, since cvt.rn.bf16.f32 wants sm_80.
#pragma once

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ float float_from_half(unsigned short bits) {
  const unsigned sign = static_cast<unsigned>(bits & 0x8000u) << 16;
  const unsigned exponent = (bits >> 10) & 0x1fu;
  const unsigned fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) return __uint_as_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return __uint_as_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

__device__ __forceinline__ unsigned short half_from_float(float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned short sign = static_cast<unsigned short>((bits >> 16) & 0x8000u);
  const unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 1/2 moves the last bit of a subnormal half to the last bit of the sum, which rounds.
    const float sum = __uint_as_float(magnitude) + 0.5f;
    return static_cast<unsigned short>(sign | (__float_as_uint(sum) & 0x7fffu));
  }
  const unsigned odd = (magnitude >> 13) & 1u;
  return static_cast<unsigned short>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

#else

__device__ __forceinline__ float float_from_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short half_from_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

#endif
