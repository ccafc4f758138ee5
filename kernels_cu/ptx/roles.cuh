// Warpgroups of a block with roles of their own: barriers that some warps come to, and their shares of registers (PTX
// ISA, "barrier.cta", "setmaxnreg"; sm_90a).
#pragma once

#ifdef CUPY_FLASH_EMULATE

// Waits until kThreads threads, whole warps, have come to the barrier: by this or by arrive(). What they did before is
// visible after.
template <int kThreads>
__device__ __forceinline__ void meet(int barrier, emu::Site site = emu::Site::here()) {
  emu::meet_named(site, barrier, kThreads);
}
template <int kThreads>
__device__ __forceinline__ void arrive(int barrier, emu::Site site = emu::Site::here()) {
  emu::arrive_named(site, barrier, kThreads);
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {}

#else

template <int kThreads>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("barrier.cta.sync.aligned %0, %1;" : : "r"(barrier), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void arrive(int barrier) {
  asm volatile("barrier.cta.arrive.aligned %0, %1;" : : "r"(barrier), "n"(kThreads) : "memory");
}

// A warpgroup goes on with so many registers a thread: gives the others back, or waits for more.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
#endif
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
#endif
}

#endif
