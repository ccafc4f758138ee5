// Global loads and stores, and the block's shared memory. Every access to global memory goes through
// here, so that the emulation can check each address against the arrays of the call.
#pragma once

#ifdef CUPY_FLASH_EMULATE

template <class T>
__device__ __forceinline__ T load_global(const T* address) {
  emu::check_read(address, sizeof(T));
  return *address;
}

template <class T>
__device__ __forceinline__ void store_global(T* address, T value) {
  emu::check_write(address, sizeof(T));
  *address = value;
}

__device__ __forceinline__ unsigned char* shared_memory() { return emu::shared_memory(); }

#else

template <class T>
__device__ __forceinline__ T load_global(const T* address) {
  return *address;
}

template <class T>
__device__ __forceinline__ void store_global(T* address, T value) {
  *address = value;
}

__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return dynamic_shared_memory;
}

#endif
