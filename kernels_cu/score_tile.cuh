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

// A thread's elements of a tile whose scores from column `column` on are `Scores`.
template <class T, class Tile, class Scores>
struct ScoreReader {
  static constexpr int kBytes = Tile::kElementBytes;
  static constexpr bool kAlongRows = Tile::kRows > 1;
  unsigned address;  // of the first row's first pair
  int column;        // a multiple of 8, known to the compiler

  // `place` has the first `row` of the thread's warp, and its `lane`.
  template <class Place>
  __device__ __forceinline__ ScoreReader(const Tile& tile, const Place& place, int column = 0)
      : column(column) {
    const int row = kAlongRows ? place.row + Scores::row_of(place.lane, 0) : 0;
    const int byte = Scores::column_of(place.lane, 0) * kBytes;
    address = tile.at(row, byte / 16) + byte % 16;
  }

  // The elements of row r in columns 2 pair and 2 pair + 1.
  __device__ __forceinline__ StoredPair<T> operator()(int r, int pair) const {
    const int byte = (column + Scores::column_of(0, 2 * pair)) * kBytes;
    const int row = kAlongRows ? Scores::row_of(0, r) : 0;
    StoredPair<T> elements;
    elements.load((address ^ byte % 128 / 16 * 16) + byte % 16 + byte / 128 * 128 +
                  row * Tile::kPitch);
    return elements;
  }
};

// The same where `Scores` are transposed: their rows are the tile's keys, and their columns its rows from
// `column` on.
template <class T, class Tile, class Scores>
struct TransposedScoreReader {
  static constexpr int kBytes = Tile::kElementBytes;
  static constexpr bool kAlongRows = Tile::kRows > 1;
  // Eight rows further the pieces have changed places alike.
  static_assert(!kAlongRows || 8 / Tile::kLineRows % Tile::kPlaces == 0, "as far as a pair of columns");
  unsigned address[kAlongRows ? 2 : 1];  // of the first key in the first two columns
  int column;

  template <class Place>
  __device__ __forceinline__ TransposedScoreReader(const Tile& tile, const Place& place, int column)
      : column(column) {
    const int byte = (place.row + Scores::row_of(place.lane, 0)) * kBytes;
#pragma unroll
    for (int i = 0; i < (kAlongRows ? 2 : 1); ++i) {
      const int row = kAlongRows ? Scores::column_of(place.lane, i) : 0;
      address[i] = tile.at(row, byte / 16) + byte % 16;
    }
  }

  __device__ __forceinline__ StoredPair<T> operator()(int r, int pair) const {
    StoredPair<T> elements;
    if constexpr (kAlongRows) {
      const int row = column + Scores::column_of(0, 2 * pair);
      elements.load(at(0, r) + row * Tile::kPitch, at(1, r) + row * Tile::kPitch);
    } else {
      elements.load(at(0, r), at(0, r));
    }
    return elements;
  }

 private:
  // A row of scores is eight keys further, or sixteen: neighbours of the first one in no bit.
  __device__ __forceinline__ unsigned at(int i, int r) const {
    return address[i] ^ Scores::row_of(0, r) * kBytes;
  }
};

// Copies a tile of the mask or the bias, whose first element `array` begins at, with zeros beyond `rows` rows
// and `keys` keys. The array's rows consist of aligned units of `unit` bytes.
template <int kThreads, class T, class Tile>
__device__ __forceinline__ void copy_score_tile(const Tile& tile, const Matrix<T>& array, int rows,
                                                int keys, int unit) {
  if (Stored<T>::kSame && unit == 16) {
    TileCopy<T, Tile, kThreads, 16>::run(tile, array, 0, rows, keys);
  } else if (Stored<T>::kSame && unit == 4) {
    TileCopy<T, Tile, kThreads, 4>::run(tile, array, 0, rows, keys);
  } else {
    constexpr int kBatch = 16 / Tile::kPieceElements;
    TileCopy<T, Tile, kThreads, 1, kBatch>::run(tile, array, 0, rows, keys);
  }
}

// Calls use(c, elements) for each pair of a thread's scores in row r, whose columns are c and c + 1.
template <class T, class Tile, class Scores, class Use>
__device__ __forceinline__ void each_pair(const ScoreReader<T, Tile, Scores>& reader, int r,
                                          const Use& use) {
#pragma unroll
  for (int pair = 0; pair < Scores::kColumns / 2; ++pair) use(2 * pair, reader(r, pair));
}
