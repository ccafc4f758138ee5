// What a block of sm80 is: its tiles in shared memory, and the rows of which head and which keys it is at.
#pragma once

#include "forward_work.cuh"
#include "fragments.cuh"
#include "matrix_tile.cuh"
#include "score.cuh"
#include "score_tile.cuh"
#include "softmax.cuh"
#include "types.cuh"

template <class Config>
struct Sm80Block {
  using T = typename Config::QType;
  static constexpr int kWarps = Config::kWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kSplit = 1;  // warps that share rows
  static constexpr int kWarpRows = Config::kBlockM / kWarps;
  static constexpr int kTiles = kWarpRows / 16;

  using QTile = MatrixTile<Config::kBlockM, Config::kHeadDim>;
  using KTile = MatrixTile<Config::kBlockN, Config::kHeadDim>;
  using VTile = MatrixTile<Config::kBlockN, Config::kHeadDimV>;
  using CopyQ = TileCopy<T, QTile, kThreads, Config::kUnit>;
  using CopyK = TileCopy<T, KTile, kThreads, Config::kUnit>;
  using CopyV = TileCopy<T, VTile, kThreads, Config::kUnit>;
  using Scores = Accumulators<kTiles, Config::kBlockN>;
  using Output = Accumulators<kTiles, Config::kHeadDimV>;
  static constexpr bool kSink = is_given<typename Config::Sinks>;
  using Softmax = OnlineSoftmax<float, Scores::kRows, Scores::kLanes, ScaledWeight, kSink>;
  using Bias = typename Config::Bias;
  using MaskTile = ScoreTile<unsigned char, Config::kMaskRows ? Config::kBlockM : 1, Config::kBlockN>;
  using BiasTile = ScoreTile<Bias, Config::kBiasRows ? Config::kBlockM : 1, Config::kBlockN>;
  using ReadMask = ScoreReader<unsigned char, MaskTile, Scores>;
  using ReadBias = ScoreReader<Bias, BiasTile, Scores>;

  using Work = ForwardWork<Config>;

  static constexpr int kKOffset = QTile::kBytes;
  static constexpr int kVOffset = kKOffset + KTile::kBytes;
  static constexpr int kBiasOffset = kVOffset + VTile::kBytes;
  static constexpr int kMaskOffset = kBiasOffset + (Score<Config>::kBias ? BiasTile::kBytes : 0);
  static constexpr int kTilesEnd = kMaskOffset + (Config::kMask ? 2 * MaskTile::kBytes : 0);
  // In the end O takes the place of the tiles.
  static constexpr int kOutputBytes = Config::kBlockM * Config::kHeadDimV * 2;
  static constexpr int kWorkOffset = kTilesEnd > kOutputBytes ? kTilesEnd : kOutputBytes;
  static constexpr int kWorkBytes = 192;
  // Whether O is rescaled only where a maximum rose. On an H200 with 8,192 keys that takes 2 to 7 % off calls
  // with a mask, a bias or softcap (3 % more with ALiBi) and 4 % off plain ones at d = 128 (causal 1 % more),
  // but adds 3 to 4 % to plain ones at d = 64.
  static constexpr bool kRescaleSeldom =
      Score<Config>::kMore || Config::kMask || Config::kHeadDimV > 64;
  static_assert(kWorkOffset + kWorkBytes == Config::kSharedMemory,
                "select.py: Variant.shared_memory");
  static_assert(sizeof(Work) <= kWorkBytes, "the rest of shared memory");
  static_assert(kWarpRows == 16 || kWarpRows == 32, "a warp holds one or two fragments of rows");

  unsigned shared = shared_address(shared_memory());

  __device__ __forceinline__ Work& work() const {
    return *reinterpret_cast<Work*>(shared_memory() + kWorkOffset);
  }

  __device__ __forceinline__ int lane() const {
    return threadIdx.x % 32;
  }
  // The warp's first row of the tile.
  __device__ __forceinline__ int warp_row() const {
    return threadIdx.x / 32 * kWarpRows;
  }

  __device__ __forceinline__ QTile Q() const { return {shared}; }
  __device__ __forceinline__ unsigned output() const { return shared; }
  __device__ __forceinline__ KTile K() const { return {shared + kKOffset}; }
  __device__ __forceinline__ VTile V() const { return {shared + kVOffset}; }
  __device__ __forceinline__ BiasTile bias() const { return {shared + kBiasOffset}; }
  // Of the keys from `key` on. There are two, for whether to skip a tile mustn't wait.
  __device__ __forceinline__ MaskTile mask(int key) const {
    return {shared + kMaskOffset + key / Config::kBlockN % 2 * MaskTile::kBytes};
  }
};
