// Which keys a row may see by its place. Tiles nobody sees are skipped, keys that no row of a block sees
// are never loaded, and the elements of a tile on the edge are masked one by one.
#pragma once

#include "params.cuh"
#include "types.cuh"

// The lengths of a batch entry, and where its row 0 stands.
struct Extent {
  long long rows;    // q_length: rows beyond are padding
  long long keys;    // k_length: keys beyond are padding
  long long offset;  // row i stands at key i + offset
};

struct KeyRange {
  long long begin;
  long long end;
};

struct RowRange {
  long long begin;
  long long end;
};

// A tile of scores seen from its first row and key, in 32 bits: element (r, j) is row row_begin + r and
// key key_begin + j.
template <class Config>
struct TileMask {
  int rows;   // rows of the tile that count
  int keys;   // keys of the tile that count
  int left;   // kLeft: row r sees key j only if j >= r + left
  int right;  // kRight: row r sees key j only if j <= r + right

  // The rows from `row` and the keys from `key` on.
  __device__ __forceinline__ TileMask from(int row, int key) const {
    return {rows - row, keys - key, Config::kLeft ? left + row - key : 0,
            Config::kRight ? right + row - key : 0};
  }

  // Row r sees the keys from this one on; in tiles of keys that begin before key 0, keys below too.
  __device__ __forceinline__ int begin(int r) const { return Config::kLeft ? r + left : 0; }

  // Row r sees the keys before this one.
  __device__ __forceinline__ int end(int r) const {
    const int last = Config::kRight ? minimum(keys, r + right + 1) : keys;
    return r < rows ? last : 0;
  }

  // The same seen from key j: the rows from this one on see it, those before the other one. In tiles of rows
  // that begin before row 0, rows below too.
  __device__ __forceinline__ int row_begin(int j) const { return Config::kRight ? j - right : 0; }
  __device__ __forceinline__ int row_end(int j) const {
    const int last = Config::kLeft ? minimum(rows, j - left + 1) : rows;
    return j < keys ? last : 0;
  }

  __device__ __forceinline__ bool visible(int r, int j) const {
    return (!Config::kLeft || j >= begin(r)) && j < end(r);
  }

  // Whether any of the first kRows rows sees one of the first kKeys keys. From row to row what is seen
  // moves by one key, so that together the rows see one range.
  template <int kRows, int kKeys>
  __device__ __forceinline__ bool any_visible() const {
    bool any = rows > 0 && keys > 0;
    if (Config::kRight) any = any && minimum(rows, kRows) - 1 + right >= 0;
    if (Config::kLeft) any = any && left < minimum(keys, kKeys);
    return any;
  }

  // Whether each of the first kRows rows sees each of the first kKeys keys.
  template <int kRows, int kKeys>
  __device__ __forceinline__ bool all_visible() const {
    bool all = rows >= kRows && keys >= kKeys;
    if (Config::kRight) all = all && right >= kKeys - 1;
    if (Config::kLeft) all = all && kRows - 1 + left <= 0;
    return all;
  }
};

template <class Config>
struct Mask {
  const Params& params;
  Extent extent;

  // Keys that at least one of rows [row_begin, row_end) sees; everything outside is invisible.
  __device__ __forceinline__ KeyRange keys_of(long long row_begin, long long row_end) const {
    row_end = minimum(row_end, extent.rows);
    if (row_begin >= row_end) return {0, 0};
    long long begin = 0;
    long long end = extent.keys;
    if (Config::kLeft) begin = maximum(row_begin + extent.offset - params.left, begin);
    if (Config::kRight) end = minimum(end, row_end + extent.offset + params.right);
    if (Config::kLeft && begin >= end) return {0, 0};
    return {begin, maximum(end, 0ll)};
  }

  // Rows that see at least one of keys [key_begin, key_end): nobody else does.
  __device__ __forceinline__ RowRange rows_of(long long key_begin, long long key_end) const {
    key_end = minimum(key_end, extent.keys);
    if (key_begin >= key_end) return {0, 0};
    long long begin = 0;
    long long end = extent.rows;
    if (Config::kRight) begin = maximum(key_begin - extent.offset - params.right, begin);
    if (Config::kLeft) end = minimum(end, key_end - extent.offset + params.left);
    if (Config::kRight && begin >= end) return {0, 0};
    return {begin, maximum(end, 0ll)};
  }

  // The same from the tile of kKeys keys on that the first of them lies in: which keys form a tile
  // depends on no row.
  template <int kKeys>
  static __device__ __forceinline__ KeyRange tiles_of(KeyRange keys) {
    static_assert((kKeys & (kKeys - 1)) == 0, "a power of two");
    return {Config::kLeft ? keys.begin & -static_cast<long long>(kKeys) : 0, keys.end};
  }

  // Of the rows from row_begin on, and the keys of a range; whoever sees beyond it is not asked.
  __device__ __forceinline__ TileMask<Config> tile(long long row_begin, KeyRange keys) const {
    const long long place = row_begin + extent.offset - keys.begin;
    return {within_int(extent.rows - row_begin), within_int(keys.end - keys.begin),
            Config::kLeft ? within_int(place - params.left) : 0,
            Config::kRight ? within_int(place + params.right) : 0};
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
