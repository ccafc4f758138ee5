// Copies from global to shared memory that a thread starts and doesn't wait for (PTX ISA,
// "cp.async", "cp.async.commit_group", "cp.async.wait_group"; sm_80).
//
// A thread that has waited sees its own copies; the block's other threads see them after a barrier.
#pragma once

#ifdef CUPY_FLASH_EMULATE

template <int kSize>
__device__ __forceinline__ void copy_async(unsigned shared_address, const void* global, bool present) {
  emu::copy_async(shared_address, global, present, kSize);
}

__device__ __forceinline__ void commit_async() { emu::commit_async(); }

template <int kPending>
__device__ __forceinline__ void wait_async() {
  static_assert(kPending >= 0, "a number of groups");
  emu::wait_async(kPending);
}

#else

// Copies kSize bytes, 16 past L1 or 8 or 4, between addresses that are multiples of it; of what isn't present
// nothing is read and the bytes become zero.
template <int kSize>
__device__ __forceinline__ void copy_async(unsigned shared_address, const void* global, bool present) {
  static_assert(kSize == 16 || kSize == 8 || kSize == 4, "sizes of cp.async");
  if (kSize == 16) {
    asm volatile(
        "{\n"
        ".reg .pred absent;\n"
        "setp.eq.s32 absent, %2, 0;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, absent;\n"
        "}\n"
        :
        : "r"(shared_address), "l"(__cvta_generic_to_global(global)),
          "r"(static_cast<int>(present))
        : "memory");
  } else {
    asm volatile(
        "{\n"
        ".reg .pred absent;\n"
        "setp.eq.s32 absent, %2, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %3, absent;\n"
        "}\n"
        :
        : "r"(shared_address), "l"(__cvta_generic_to_global(global)),
          "r"(static_cast<int>(present)), "n"(kSize)
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
