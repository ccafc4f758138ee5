// Which keys a row may see. Tiles nobody sees are skipped, keys that no row of a block sees are never
// loaded, and the elements of a tile on the edge are masked one by one.
#pragma once

#include "params.cuh"
#include "types.cuh"

// The lengths of a batch entry, and where its row 0 stands.
struct Extent {
  long long rows;    // q_length: rows beyond are padding
  long long keys;    // k_length: keys beyond are padding
  long long offset;  // row i sees keys to i + offset
};

struct KeyRange {
  long long begin;
  long long end;
};

// A tile of scores seen from its first row and key, in 32 bits: element (r, j) is row row_begin + r and
// key key_begin + j.
template <class Config>
struct TileMask {
  int rows;      // rows of the tile that count
  int keys;      // keys of the tile that count
  int diagonal;  // causal: row r sees key j if j <= r + diagonal

  // The rows from `row` and the keys from `key` on.
  __device__ __forceinline__ TileMask from(int row, int key) const {
    return {rows - row, keys - key, Config::kRight ? diagonal + row - key : 0};
  }

  // Row r sees the keys before this one.
  __device__ __forceinline__ int end(int r) const {
    const int last = Config::kRight ? minimum(keys, r + diagonal + 1) : keys;
    return r < rows ? last : 0;
  }

  __device__ __forceinline__ bool visible(int r, int j) const { return j < end(r); }

  // Whether any of the first kRows rows sees a key.
  template <int kRows>
  __device__ __forceinline__ bool any_visible() const {
    bool any = rows > 0 && keys > 0;
    if (Config::kRight) any = any && minimum(rows, kRows) - 1 + diagonal >= 0;
    return any;
  }

  // Whether each of the first kRows rows sees each of the first kKeys keys.
  template <int kRows, int kKeys>
  __device__ __forceinline__ bool all_visible() const {
    bool all = rows >= kRows && keys >= kKeys;
    if (Config::kRight) all = all && diagonal >= kKeys - 1;
    return all;
  }
};

template <class Config>
struct Mask {
  Extent extent;

  // Keys that at least one of rows [row_begin, row_end) sees; everything outside is invisible.
  __device__ __forceinline__ KeyRange keys_of(long long row_begin, long long row_end) const {
    row_end = minimum(row_end, extent.rows);
    if (row_begin >= row_end) return {0, 0};
    long long end = extent.keys;
    if (Config::kRight) end = minimum(end, row_end + extent.offset);
    return {0, maximum(end, 0ll)};
  }

  // Of the rows from row_begin on, and the keys of a range; whoever sees beyond it is not asked.
  __device__ __forceinline__ TileMask<Config> tile(long long row_begin, KeyRange keys) const {
    return {within_int(extent.rows - row_begin), within_int(keys.end - keys.begin),
            Config::kRight ? within_int(row_begin + extent.offset - keys.begin) : 0};
  }

  __device__ __forceinline__ TileMask<Config> tile(long long row_begin, long long key_begin) const {
    return tile(row_begin, {key_begin, extent.keys});
  }

 private:
  // Far beyond any tile, so that clipping changes no comparison.
  static __device__ __forceinline__ int within_int(long long distance) {
    constexpr long long kFar = 1 << 30;
    return static_cast<int>(minimum(maximum(distance, -kFar), kFar));
  }
};
