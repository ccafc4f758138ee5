// What a block of sm80 is: its tiles in shared memory, and the rows of which head and which keys it is at.
#pragma once

#include "fragments.cuh"
#include "mask.cuh"
#include "matrix_tile.cuh"
#include "params.cuh"
#include "ptx/opaque.cuh"
#include "schedule.cuh"
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

  // What the block is at. In shared memory, for every register counts in the loop. Keys count from the
  // first one of the first tile.
  struct Work {
    Tile tile;
    int rows;    // of the tile
    int round;   // of the schedule
    bool careful;  // whether what hidden keys have may be NaN
    const T* k;  // row of key 0
    const T* v;
    TileMask<Config> sees;  // of the block's rows
    int skipped;      // keys of the first tile that no row sees
    long long place;  // where the block's first row stands
    // The elements of the block's first row and key 0. No pointers: through one that comes from shared
    // memory loads are generic.
    long long mask;
    long long bias;
    int mask_unit;  // rows consist of aligned units of so many bytes
    int bias_unit;
    Score<Config> score;
  };

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
  __device__ __forceinline__ KTile K() const { return {shared + kKOffset}; }
  __device__ __forceinline__ VTile V() const { return {shared + kVOffset}; }
  __device__ __forceinline__ BiasTile bias() const { return {shared + kBiasOffset}; }
  // Of the keys from `key` on. There are two, for whether to skip a tile mustn't wait.
  __device__ __forceinline__ MaskTile mask(int key) const {
    return {shared + kMaskOffset + key / Config::kBlockN % 2 * MaskTile::kBytes};
  }
};

__device__ __forceinline__ long long element_of(const Operand& operand, const Tile& tile,
                                                long long row, long long key) {
  return index_of(operand, tile, tile.head) + row * operand.row + key * operand.column;
}

// Of how many bytes the aligned units are that the rows of `keys` elements from `element` on consist of, as
// copies take them: 16, 4, or any smaller ones.
template <class T>
__device__ __forceinline__ int unit_of(const Operand& operand, long long element, long long keys) {
  constexpr int kSize = sizeof(T);
  const auto address = reinterpret_cast<unsigned long long>(operand.data) + element * kSize;
  // Where an element is a unit columns may be apart.
  const bool dense = operand.column == 1 || kSize == 4;
  const unsigned long long bytes = address | operand.row * kSize | keys * kSize;
  if (operand.column == 1 && bytes % 16 == 0) return 16;
  return dense && bytes % 4 == 0 ? 4 : 1;
}

template <class Config>
__device__ __forceinline__ typename Sm80Block<Config>::Work work_on(const Params& params,
                                                                    const Tile& tile, int round) {
  using T = typename Config::QType;
  typename Sm80Block<Config>::Work work = {};
  const Mask<Config> mask = {params, tile.extent};
  const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);
  const KeyRange tiles = Mask<Config>::template tiles_of<Config::kBlockN>(keys);
  const long long kv_head = quotient(tile.head, params.group);
  work.tile = tile;
  work.rows = static_cast<int>(tile.row_end - tile.row_begin);
  work.round = round;
  work.careful = false;
  work.k = entry_of<const T>(params.k, tile, kv_head) + tiles.begin * params.k.row;
  work.v = entry_of<const T>(params.v, tile, kv_head) + tiles.begin * params.v.row;
  work.sees = mask.tile(tile.row_begin, tiles);
  work.skipped = static_cast<int>(keys.begin - tiles.begin);
  work.place = tile.row_begin + tile.extent.offset - tiles.begin;
  if (Config::kMask) {
    work.mask = element_of(params.mask, tile, tile.row_begin, tiles.begin);
    work.mask_unit = unit_of<unsigned char>(params.mask, work.mask, params.n);
  }
  if (Score<Config>::kBias) {
    work.bias = element_of(params.bias, tile, tile.row_begin, tiles.begin);
    work.bias_unit = unit_of<typename Config::Bias>(params.bias, work.bias, params.n);
  }
  work.score = Score<Config>(
      params, number_of_head<float, typename Config::Slopes>(params.alibi_slopes, tile));
  return work;
}
