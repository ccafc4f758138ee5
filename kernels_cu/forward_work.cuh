// What a block of the tensor cores' kernels is at in the forward pass: the rows of which head, and which keys.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "types.cuh"

// What the block is at. In shared memory, for every register counts in the loop. Keys count from the
// first one of the first tile.
template <class Config>
struct ForwardWork {
  using T = typename Config::QType;

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
__device__ __forceinline__ ForwardWork<Config> work_on(const Params& params, const Tile& tile,
                                                       int round) {
  using T = typename Config::QType;
  ForwardWork<Config> work = {};
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
