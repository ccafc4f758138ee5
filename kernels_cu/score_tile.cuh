// Tiles of the mask and of the bias in shared memory, and what a thread reads there: the elements of its
// scores, as Accumulators (fragments.cuh) hold them, two neighbouring keys of a row at a time.
#pragma once

#include "matrix_tile.cuh"
#include "ptx/shared.cuh"
#include "stored.cuh"
#include "types.cuh"

// kRows rows, or 1 that all rows of scores share, of kKeys elements in pieces of 16 bytes. Pieces change
// places as in MatrixTile: the eight rows that a warp reads at a time lie in different banks.
template <class T, int kRows_, int kKeys>
struct ScoreTile {
  static constexpr int kElementBytes = sizeof(typename Stored<T>::Type);
  static constexpr int kRows = kRows_;
  static constexpr int kPieceElements = 16 / kElementBytes;
  static constexpr int kPitch = kKeys * kElementBytes;
  static constexpr int kPieces = kPitch / 16;
  static constexpr int kBytes = kRows * kPitch < 128 ? 128 : kRows * kPitch;
  // Eight keys of four bytes fill two pieces, which stay together.
  static constexpr int kTogether = kElementBytes == 4 ? 2 : 1;
  static constexpr int kPlaces = (kPieces < 8 ? kPieces : 8) / kTogether;
  static constexpr int kLineRows = kPitch < 128 ? 128 / kPitch : 1;
  static_assert((kPieces & (kPieces - 1)) == 0 && kPieces >= 2, "a power of two");

  unsigned base;  // a multiple of 128

  static __device__ __forceinline__ int turn(int row) {
    return row / kLineRows % kPlaces * kTogether;
  }
  __device__ __forceinline__ unsigned at(int row, int piece) const {
    return base + row * kPitch + (piece ^ turn(row)) * 16;
  }
};

// A thread's elements of a tile whose scores are `Scores`.
template <class T, class Tile, class Scores>
struct ScoreReader {
  static constexpr int kBytes = Tile::kElementBytes;
  static constexpr bool kAlongRows = Tile::kRows > 1;
  unsigned address;  // of the first row's first pair

  // `place` has the first `row` of the thread's warp, and its `lane`.
  template <class Place>
  __device__ __forceinline__ ScoreReader(const Tile& tile, const Place& place) {
    const int row = kAlongRows ? place.row + Scores::row_of(place.lane, 0) : 0;
    const int byte = Scores::column_of(place.lane, 0) * kBytes;
    address = tile.at(row, byte / 16) + byte % 16;
  }

  // The elements of row r in columns 2 pair and 2 pair + 1.
  __device__ __forceinline__ StoredPair<T> operator()(int r, int pair) const {
    const int byte = Scores::column_of(0, 2 * pair) * kBytes;
    const int row = kAlongRows ? Scores::row_of(0, r) : 0;
    StoredPair<T> elements;
    elements.load((address ^ byte % 128 / 16 * 16) + byte % 16 + byte / 128 * 128 +
                  row * Tile::kPitch);
    return elements;
  }
};

// Calls use(c, elements) for each pair of a thread's scores in row r, whose columns are c and c + 1.
template <class T, class Tile, class Scores, class Use>
__device__ __forceinline__ void each_pair(const ScoreReader<T, Tile, Scores>& reader, int r,
                                          const Use& use) {
#pragma unroll
  for (int pair = 0; pair < Scores::kColumns / 2; ++pair) use(2 * pair, reader(r, pair));
}
