// Who does what in a block where warpgroups multiply float32: groups of 64 rows, or keys, and one more group of four
// warps, the provider, that brings what passes by.
#pragma once

#include "fragment_threads.cuh"
#include "ptx/roles.cuh"

// Where 65,536 registers aren't 255 a thread the provider goes on with kProviderRegisters.
template <class Config, int kProviderRegisters>
struct SplitRoles : FragmentThreads<2, 1> {
  static constexpr int kTerms = Config::kTf32 ? 2 : 3;  // of bfloat16
  static constexpr int kRows = 2;
  static constexpr bool kSplit = true;
  static constexpr int kThreads = Config::kThreadsM * Config::kThreadsN;
  static constexpr int kGroupThreads = 2 * Config::kBlockM;
  static constexpr int kProviders = kThreads - kGroupThreads;
  static_assert(kProviders == 128, "a warpgroup beside those of 64 rows");
  static constexpr bool kShares = kThreads > 256;
  // Pieces of a tile that a provider's thread has on their way.
  static constexpr int kPieces = !kShares || kProviderRegisters > 100 ? 8 : 4;
  // A block is launched with so many a thread, a multiple of 8, and can't have more: to wait for one hangs.
  static constexpr int kLaunched = 65536 / kThreads / 8 * 8;
  static constexpr int kGroupRegisters =
      (kLaunched * kThreads - kProviders * kProviderRegisters) / kGroupThreads / 8 * 8;

  __device__ __forceinline__ bool provides() const { return threadIdx.x >= kGroupThreads; }
  // The first row of the thread's group.
  __device__ __forceinline__ int group_row() const { return threadIdx.x / 128 * 64; }

  // What the provider, and what the groups begin with.
  static __device__ __forceinline__ void give() {
    if constexpr (kShares) give_registers<kProviderRegisters>();
  }
  static __device__ __forceinline__ void take() {
    if constexpr (kShares) take_registers<kGroupRegisters>();
  }
};
