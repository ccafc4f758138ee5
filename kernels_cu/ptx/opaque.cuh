// A value that the compiler can't see through, so that it doesn't compute everything that follows from
// it ahead of a loop and keep it in registers. No instruction is emitted.
#pragma once

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ int opaque(int value) { return value; }
__device__ __forceinline__ long long opaque(long long value) { return value; }

#else

__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ long long opaque(long long value) {
  asm volatile("" : "+l"(value));
  return value;
}

#endif
