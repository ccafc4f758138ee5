// What a block of simt is in the forward pass where warpgroups multiply float32.
#pragma once

#include "fragments.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "softmax.cuh"
#include "split_roles.cuh"
#include "split_tile.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class Config>
struct SplitBlock : SplitRoles<Config, Config::kTf32 ? 104 : 72> {
  using Roles = SplitRoles<Config, Config::kTf32 ? 104 : 72>;
  using A = float;
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  using Roles::other_of;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr int kChunkN = kBlockN;
  static constexpr int kTerms = Roles::kTerms;
  static constexpr int kRows = Roles::kRows;
  static constexpr int kKeys = kBlockN / 4;
  static constexpr int kColumns = kHeadDimV / 4;
  static constexpr bool kSink = is_given<typename Config::Sinks>;

  using Scores = Accumulators<1, kBlockN>;
  using Output = Accumulators<1, kHeadDimV>;
  using Softmax = OnlineSoftmax<float, kRows, 4, NaturalWeight<float>, kSink>;
  using QTile = SplitTile<kTerms, kBlockM, kHeadDim>;
  using KTile = SplitTile<kTerms, kBlockN, kHeadDim>;
  using VTile = SplitTile<kTerms, kBlockN, kHeadDimV>;
  using PTile = SharedTile<float, kBlockN>;
  // Whether products wait for their rows' turn in shared memory.
  static constexpr bool kPairs = ScoreArrays<Config>::kHide || Score<Config>::kMore;
  static constexpr int kTileBytes = QTile::kBytes + KTile::kBytes + VTile::kBytes;
  static_assert(kTileBytes + (kPairs ? kBlockM * PTile::kPitch * 4 : 0) == Config::kSharedMemory,
                "variant.py: Variant.shared_memory");

  unsigned shared = shared_address(shared_memory());
  PTile P = {reinterpret_cast<float*>(shared_memory() + kTileBytes)};

  __device__ __forceinline__ QTile Q() const { return {shared}; }
  __device__ __forceinline__ KTile K() const { return {shared + QTile::kBytes}; }
  __device__ __forceinline__ VTile V() const { return {shared + QTile::kBytes + KTile::kBytes}; }
  __device__ __forceinline__ int key_of(int j) const { return other_of(j); }

  __device__ __forceinline__ void clear_value(int j) const { V().clear(j); }
};
