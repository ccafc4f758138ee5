// 2^x and 1 / x in float32 on the special function unit (PTX ISA, "ex2": .approx.ftz.f32, relative error at
// most 2^-22, which takes -inf to 0 and flushes results below 2^-126; "rcp": .approx.ftz.f32, at most 1 ulp,
// which takes inf to 0).
#pragma once

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ float exp2_approx(float x) {
  const float power = exp2f(x);
  return power < 0x1p-126f ? 0.0f : power;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  const float reciprocal = 1.0f / x;
  return fabsf(reciprocal) < 0x1p-126f ? 0.0f : reciprocal;
}

#else

__device__ __forceinline__ float exp2_approx(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
  return reciprocal;
}

#endif
