// Which rows of which batch entry and head a block computes next. The grid is one-dimensional and may be
// smaller than the work: of every gridDim tiles a block takes one. What a row's result depends on never
// includes the tile's number.
#pragma once

#include "division.cuh"
#include "mask.cuh"
#include "params.cuh"
#include "ptx/opaque.cuh"
#include "types.cuh"

struct Tile {
  long long batch[kBatchAxes];
  long long head;
  long long row_begin;
  long long row_end;  // at most m
  Extent extent;
};

// Where a head's elements begin, in elements.
__device__ __forceinline__ long long index_of(const Operand& operand, const Tile& tile,
                                              long long head) {
  long long index = head * operand.head;
#pragma unroll
  for (int axis = 0; axis < kBatchAxes; ++axis) index += tile.batch[axis] * operand.batch[axis];
  return index;
}

template <class T>
__device__ __forceinline__ T* entry_of(const Operand& operand, const Tile& tile, long long head) {
  return static_cast<T*>(operand.data) + index_of(operand, tile, head);
}

// The type argument of a call without lengths.
struct NoLengths {};

template <class T>
struct LengthOf {
  static constexpr bool kGiven = true;
  static __device__ __forceinline__ long long read(const Operand& lengths, const Tile& tile,
                                                   long long extent) {
    const long long length = load_global(entry_of<const T>(lengths, tile, 0));
    return minimum(maximum(length, 0ll), extent);
  }
};

template <>
struct LengthOf<NoLengths> {
  static constexpr bool kGiven = false;
  static __device__ __forceinline__ long long read(const Operand&, const Tile&, long long extent) {
    return extent;
  }
};

// The lengths of a tile's batch entry.
template <class Config>
__device__ __forceinline__ Extent extent_of(const Params& params, const Tile& tile) {
  Extent extent;
  extent.rows = LengthOf<typename Config::QLengths>::read(params.q_lengths, tile, params.m);
  extent.keys = LengthOf<typename Config::KLengths>::read(params.k_lengths, tile, params.n);
  extent.offset = Config::kOffsetFromLengths ? extent.keys - extent.rows : params.offset;
  return extent;
}

// kToAndFro: rounds of few blocks go to and fro. With fewer keys from tile to tile the first block would else get the
// most in all of them.
template <class Config, bool kToAndFro = false>
struct Schedule {
  const Params& params;
  int round = -1;  // one register, where the tile's number takes two

  __device__ __forceinline__ explicit Schedule(const Params& params) : params(params) {}

  __device__ __forceinline__ bool next(Tile& tile) {
    ++round;
    if (number(round) >= params.tiles) return false;
    tile = locate(number(round));
    return true;
  }

  // The tile of the last next(), worked out again: an epilogue that asks for it keeps the main loop
  // from holding a dozen registers of it.
  __device__ __forceinline__ Tile current() const { return locate(number(opaque(round))); }

 private:
  static __device__ __forceinline__ long long number(int round) {
    const unsigned place = kToAndFro && round % 2 == 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return place + static_cast<long long>(round) * gridDim.x;
  }

  __device__ __forceinline__ Tile locate(long long number) const {
    Tile tile;
    long long rest = quotient(number, params.row_tiles);
    const long long row_tile = number - rest * params.row_tiles;
    // Where keys are bounded on the right the last rows see the most of them: they start first.
    tile.row_begin = (Config::kRight ? params.row_tiles - 1 - row_tile : row_tile) * Config::kBlockM;
    tile.row_end = minimum(tile.row_begin + Config::kBlockM, params.m);
    const long long entry = quotient(rest, params.heads);
    tile.head = rest - entry * params.heads;
    rest = entry;
#pragma unroll
    for (int axis = kBatchAxes - 1; axis >= 0; --axis) {
      tile.batch[axis] = 0;
      // Most calls have one batch axis, and a division takes dozens of instructions.
      if (params.batch_extent[axis] > 1) {
        const long long outer = quotient(rest, params.batch_extent[axis]);
        tile.batch[axis] = rest - outer * params.batch_extent[axis];
        rest = outer;
      }
    }
    tile.extent = extent_of<Config>(params, tile);
    return tile;
  }
};
