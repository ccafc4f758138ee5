// Copies from global to shared memory that a thread starts and doesn't wait for (PTX ISA,
// "cp.async", "cp.async.commit_group", "cp.async.wait_group"; sm_80).
//
// A thread that has waited sees its own copies; the block's other threads see them after a barrier.
#pragma once

#ifdef CUPY_FLASH_EMULATE

template <int kSize>
__device__ __forceinline__ void copy_async(unsigned shared_address, const void* global, int bytes) {
  emu::copy_async(shared_address, global, bytes, kSize);
}

__device__ __forceinline__ void commit_async() { emu::commit_async(); }

template <int kPending>
__device__ __forceinline__ void wait_async() {
  static_assert(kPending >= 0, "a number of groups");
  emu::wait_async(kPending);
}

#else

// Copies `bytes` of kSize bytes, 0 to kSize, and sets the rest to zero; with 0 nothing is read. kSize is
// 16, past L1, or 4. Both addresses are multiples of it.
template <int kSize>
__device__ __forceinline__ void copy_async(unsigned shared_address, const void* global, int bytes) {
  static_assert(kSize == 16 || kSize == 4, "sizes of cp.async");
  if (kSize == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
  }
}

// Makes a group of the copies that the thread started since the last group.
__device__ __forceinline__ void commit_async() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of the thread's latest groups are on their way.
template <int kPending>
__device__ __forceinline__ void wait_async() {
  static_assert(kPending >= 0, "a number of groups");
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif
