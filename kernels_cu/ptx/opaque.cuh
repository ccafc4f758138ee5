// A value that the compiler can't see through, so that it doesn't compute everything that follows from
// it ahead of a loop and keep it in registers. No instruction is emitted.
#pragma once

#ifdef CUPY_FLASH_EMULATE

__device__ __forceinline__ int opaque(int value) { return value; }
__device__ __forceinline__ unsigned opaque(unsigned value) { return value; }
__device__ __forceinline__ long long opaque(long long value) { return value; }

template <class T>
__device__ __forceinline__ const T* opaque(const T* pointer) {
  return pointer;
}

#else

__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ unsigned opaque(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

__device__ __forceinline__ long long opaque(long long value) {
  asm volatile("" : "+l"(value));
  return value;
}

template <class T>
__device__ __forceinline__ const T* opaque(const T* pointer) {
  asm volatile("" : "+l"(pointer));
  return pointer;
}

#endif

// Opaque where a value that is the same for all threads has no uniform register to be in.
__device__ __forceinline__ int opaque_before_sm90(int value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  return value;
#else
  return opaque(value);
#endif
}
