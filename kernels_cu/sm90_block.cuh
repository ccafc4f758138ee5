// What a block of sm90 is: groups of four warps, each with 64 rows, that multiply (wgmma), and one more group, the
// provider, that brings what they multiply. Q, K and V go round in shared memory, each in its stages.
#pragma once

#include "forward_work.cuh"
#include "fragments.cuh"
#include "matrix_tile.cuh"
#include "params.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/opaque.cuh"
#include "ptx/roles.cuh"
#include "score.cuh"
#include "sm90_softmax.cuh"
#include "types.cuh"

// Places in shared memory that one side fills and the other one empties, in turns: the barriers that tell that one is
// full, and that it is free again. Each side counts its own turns.
template <int kStages>
struct Places {
  static constexpr int kBytes = 2 * kStages * Mbarrier::kBytes;

  unsigned base;

  __device__ __forceinline__ Mbarrier full(int stage) const { return {base + stage * Mbarrier::kBytes}; }
  __device__ __forceinline__ Mbarrier free(int stage) const {
    return {base + (kStages + stage) * Mbarrier::kBytes};
  }

  __device__ __forceinline__ void init(int fillers, int users) const {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      full(stage).init(fillers);
      free(stage).init(users);
    }
  }
};

// Which of the places is next, and how often all of them have been.
template <int kStages>
struct Turn {
  int stage = 0;
  int parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <class Config>
struct Sm90Block {
  using T = typename Config::QType;
  static constexpr int kGroups = Config::kBlockM / 64;
  static constexpr int kWarps = 4 * kGroups;  // that multiply
  static constexpr int kGroupThreads = 32 * kWarps;
  static constexpr int kProviders = 128;
  static constexpr int kThreads = kGroupThreads + kProviders;
  static constexpr int kSplit = 1;  // warps that share rows
  static constexpr int kWarpRows = 16;
  // A block is launched with so many registers a thread, a multiple of 8, and can't have more: to wait for one hangs.
  static constexpr int kLaunchedRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProviderRegisters = kThreads > 384 ? 32 : 40;
  static constexpr int kGroupRegisters =
      (kLaunchedRegisters * kThreads - kProviders * kProviderRegisters) / kGroupThreads / 8 * 8;

  static constexpr int kStages = Config::kStages;  // of K and of V
  static constexpr int kRowStages = 2;
  using QTile = PanelTile<Config::kBlockM, Config::kHeadDim>;
  using KTile = PanelTile<Config::kBlockN, Config::kHeadDim>;
  using VTile = PanelTile<Config::kBlockN, Config::kHeadDimV>;
  using CopyQ = TileCopy<T, QTile, kProviders, Config::kUnit, 1, kGroupThreads>;
  using CopyK = TileCopy<T, KTile, kProviders, Config::kUnit, 1, kGroupThreads>;
  using CopyV = TileCopy<T, VTile, kProviders, Config::kUnit, 1, kGroupThreads>;
  using Scores = Accumulators<1, Config::kBlockN>;
  using Output = Accumulators<1, Config::kHeadDimV>;
  static constexpr bool kSink = is_given<typename Config::Sinks>;
  using Softmax = FusedSoftmax<Scores::kRows, Scores::kLanes, kSink>;
  using Work = ForwardWork<Config>;

  static constexpr int kKOffset = kRowStages * QTile::kBytes;
  static constexpr int kVOffset = kKOffset + kStages * KTile::kBytes;
  static constexpr int kOutputOffset = kVOffset + kStages * VTile::kBytes;
  static constexpr int kOutputBytes = Config::kBlockM * Config::kHeadDimV * 2;
  static constexpr int kWorkOffset = kOutputOffset + kOutputBytes;
  static constexpr int kWorkBytes = 192;
  static constexpr int kPlacesOffset = kWorkOffset + kRowStages * kWorkBytes;
  static constexpr int kPlacesBytes = 128;
  static_assert(kPlacesOffset + kPlacesBytes == Config::kSharedMemory, "variant.py: Variant.shared_memory");
  static_assert(Places<kRowStages>::kBytes + 2 * Places<kStages>::kBytes <= kPlacesBytes, "the rest of shared memory");
  static_assert(sizeof(Work) <= kWorkBytes, "the rest of shared memory");

  unsigned shared = shared_address(shared_memory());
  int stage = 0;  // of the rows that work() is about

  __device__ __forceinline__ bool provides() const { return threadIdx.x >= kGroupThreads; }
  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  // The warp's first row of the tile, and its group's.
  __device__ __forceinline__ int warp_row() const { return threadIdx.x / 32 * kWarpRows; }
  __device__ __forceinline__ int group_row() const { return threadIdx.x / 128 * 64; }

  __device__ __forceinline__ Work& work() const {
    return work(stage);
  }
  __device__ __forceinline__ Work& work(int stage) const {
    return *reinterpret_cast<Work*>(shared_memory() + kWorkOffset + stage * kWorkBytes);
  }
  // Opaque, or the descriptors of all products take registers through the whole kernel.
  __device__ __forceinline__ QTile Q(int stage) const { return {opaque(shared + stage * QTile::kBytes)}; }
  __device__ __forceinline__ KTile K(int stage) const { return {opaque(shared + kKOffset + stage * KTile::kBytes)}; }
  __device__ __forceinline__ VTile V(int stage) const { return {opaque(shared + kVOffset + stage * VTile::kBytes)}; }
  __device__ __forceinline__ unsigned output() const { return shared + kOutputOffset; }

  __device__ __forceinline__ Places<kRowStages> rows() const { return {shared + kPlacesOffset}; }
  __device__ __forceinline__ Places<kStages> keys() const { return {rows().base + Places<kRowStages>::kBytes}; }
  __device__ __forceinline__ Places<kStages> values() const { return {keys().base + Places<kStages>::kBytes}; }

  // What a warp has done with a place.
  __device__ __forceinline__ void arrive(const Mbarrier& barrier) const {
    __syncwarp();
    if (lane() == 0) barrier.arrive();
  }
};
