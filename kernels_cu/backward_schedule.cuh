// Whose gradients a block computes next, and which entries share them. As in schedule.cuh the grid may be
// smaller than the work, and no block ever waits for another.
#pragma once

#include "backward_params.cuh"
#include "division.cuh"
#include "mask.cuh"
#include "ptx/opaque.cuh"
#include "schedule.cuh"

// Rows, or if Config::kOfKeys keys, of a head: kBlockM of them.
struct OwnTile {
  long long batch[kBatchAxes];
  long long head;  // of those that have gradients of their own
  long long begin;
  long long end;       // at most m or n
  KeyRange chunk;      // the keys that a tile of rows takes
};

template <class Config>
struct BackwardSchedule {
  const BackwardParams& params;
  int round = -1;  // one register, where the tile's number takes two

  __device__ __forceinline__ explicit BackwardSchedule(const BackwardParams& params)
      : params(params) {}

  __device__ __forceinline__ bool next(OwnTile& tile) {
    ++round;
    if (number(round) >= params.tiles) return false;
    tile = locate(number(round));
    return true;
  }

  // The tile of the last next(), worked out again, lest it lives in registers meanwhile.
  __device__ __forceinline__ OwnTile current() const { return locate(number(opaque(round))); }

  // One of the entries that share a tile's gradients, and of tiles of rows those.
  __device__ __forceinline__ Tile entry(const OwnTile& own, long long share) const {
    Tile tile;
    long long rest = quotient(share, params.shared_heads);
    tile.head = own.head * params.shared_heads + (share - rest * params.shared_heads);
#pragma unroll
    for (int axis = kBatchAxes - 1; axis >= 0; --axis) {
      tile.batch[axis] = own.batch[axis];
      if (params.shared_batch[axis] > 1) {
        const long long outer = quotient(rest, params.shared_batch[axis]);
        tile.batch[axis] = rest - outer * params.shared_batch[axis];
        rest = outer;
      }
    }
    tile.row_begin = Config::kOfKeys ? 0 : own.begin;
    tile.row_end = Config::kOfKeys ? params.forward.m : own.end;
    tile.extent = extent_of<Config>(params.forward, tile);
    return tile;
  }

 private:
  static __device__ __forceinline__ long long number(int round) {
    return blockIdx.x + static_cast<long long>(round) * gridDim.x;
  }

  __device__ __forceinline__ OwnTile locate(long long number) const {
    OwnTile tile;
    const long long extent = Config::kOfKeys ? params.forward.n : params.forward.m;
    const long long parts = params.own_tiles * params.chunks;  // of an entry
    long long part, entry;
    if constexpr (Config::kRight) {
      // The tiles that see the most start first, of all entries whose others fit in the L2 cache: those of the
      // last entries would else be the last to start.
      const long long first = quotient(number, parts * params.together) * params.together;
      const long long entries = minimum(params.tiles / parts - first, params.together);
      const long long rest = number - first * parts;
      part = quotient(rest, entries);
      entry = first + rest - part * entries;
    } else {
      entry = quotient(number, parts);
      part = number - entry * parts;
    }
    const long long chunk = quotient(part, params.own_tiles);
    const long long own_tile = part - chunk * params.own_tiles;
    // Where keys are bounded on the right the last rows see the most of them, and the first keys are seen by
    // the most rows.
    const bool last_first = Config::kRight && !Config::kOfKeys;
    tile.begin = (last_first ? params.own_tiles - 1 - own_tile : own_tile) * Config::kBlockM;
    tile.end = minimum(tile.begin + Config::kBlockM, extent);
    tile.chunk = {chunk * params.chunk_keys, params.forward.n};
    if (params.chunks > 1) {
      tile.chunk.end = minimum(tile.chunk.begin + params.chunk_keys, params.forward.n);
    }
    long long rest = quotient(entry, params.own_heads);
    tile.head = entry - rest * params.own_heads;
#pragma unroll
    for (int axis = kBatchAxes - 1; axis >= 0; --axis) {
      tile.batch[axis] = 0;
      if (params.own_batch[axis] > 1) {
        const long long outer = quotient(rest, params.own_batch[axis]);
        tile.batch[axis] = rest - outer * params.own_batch[axis];
        rest = outer;
      }
    }
    return tile;
  }
};

// Where an array of gradients begins for a tile's own head.
template <class T>
__device__ __forceinline__ T* own_entry_of(const Operand& operand, const OwnTile& own) {
  long long index = own.head * operand.head;
#pragma unroll
  for (int axis = 0; axis < kBatchAxes; ++axis) index += own.batch[axis] * operand.batch[axis];
  return static_cast<T*>(operand.data) + index;
}
