// Barriers in shared memory that count arrivals, and whose phases threads wait for (PTX ISA, "mbarrier"; sm_80, the
// waiting sm_90).
#pragma once

// Eight bytes of shared memory. After so many arrivals a phase ends and the next one begins.
struct Mbarrier {
  static constexpr int kBytes = 8;

  unsigned address;

#ifdef CUPY_FLASH_EMULATE

  __device__ __forceinline__ void init(int arrivals) const { emu::init_mbarrier(address, arrivals); }
  __device__ __forceinline__ void arrive() const { emu::arrive_mbarrier(address); }
  __device__ __forceinline__ void wait(int parity, emu::Site site = emu::Site::here()) const {
    emu::wait_mbarrier(site, address, parity);
  }

#else

  // By one thread; the others see it after a barrier of the block.
  __device__ __forceinline__ void init(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(address), "r"(arrivals) : "memory");
  }

  // What the thread did before is visible to whoever has waited for the phase.
  __device__ __forceinline__ void arrive() const {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}\n" : : "r"(address) : "memory");
  }

  // Waits for the end of the latest phase with this parity, of phases 0, 1, 2 ...; before the first one that of
  // parity 1 counts as over.
  __device__ __forceinline__ void wait(int parity) const {
    asm volatile(
        "{\n.reg .pred over;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@!over bra WAIT;\n}\n"
        :
        : "r"(address), "r"(parity)
        : "memory");
  }

#endif
};
