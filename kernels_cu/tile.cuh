// Tiles in shared memory: a padded array of the accumulation type, filled from strided global memory
// with zeros outside the array, and read in 16-byte vectors.
#pragma once

#include "ptx/opaque.cuh"
#include "types.cuh"

template <class A>
struct Vector {
  static constexpr int kSize = 16 / sizeof(A);
};

template <class A, int kSize>
struct alignas(kSize * sizeof(A)) Pack {
  A value[kSize];
};

// Rows of kColumns elements. The padding of 16 bytes puts equal columns of eight successive rows into
// eight different groups of banks, so that a warp reads 16-byte vectors of different rows without
// conflict; one of 32 does the same for float64 of four rows by four columns, the fragments of a product.
template <class A, int kColumns_, int kPad = Vector<A>::kSize>
struct SharedTile {
  static constexpr int kColumns = kColumns_;
  static constexpr int kPitch = kColumns + kPad;
  A* data;

  __device__ __forceinline__ A* at(int row, int column) const {
    return data + row * kPitch + column;
  }

  template <int kSize>
  __device__ __forceinline__ Pack<A, kSize> read(int row, int column) const {
    return *reinterpret_cast<const Pack<A, kSize>*>(at(row, column));
  }
};

// A thread's elements of a tile in shared memory that its threads share by own and others, from and to registers.
template <class Threads, class Tile, class Elements>
__device__ __forceinline__ void write_elements(const Threads& threads, const Tile& tile, Elements& X) {
#pragma unroll
  for (int r = 0; r < Elements::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Elements::kColumns; ++j) *tile.at(threads.row_of(r), threads.other_of(j)) = X(r, j);
  }
}
template <class Threads, class Tile, class Elements>
__device__ __forceinline__ void read_elements(const Threads& threads, const Tile& tile, Elements& X) {
#pragma unroll
  for (int r = 0; r < Elements::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Elements::kColumns; ++j) X(r, j) = *tile.at(threads.row_of(r), threads.other_of(j));
  }
}

// Zeroes a row.
template <class A, int kColumns, int kPad>
__device__ __forceinline__ void clear_row(const SharedTile<A, kColumns, kPad>& tile, int row) {
#pragma unroll 1
  for (int c = 0; c < kColumns; ++c) *tile.at(row, c) = A(0);
}

// A thread's part of a tile in registers.
template <class A, int kRows_, int kColumns_>
struct RegisterTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  A value[kRows][kColumns] = {};

  __device__ __forceinline__ A& operator()(int row, int column) { return value[row][column]; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) value[r][c] = A(0);
    }
  }
};

// Multiplies the rows that a thread holds of a tile, however it holds them.
template <class A, class Tile>
__device__ __forceinline__ void scale_rows(Tile& tile, const A (&factor)[Tile::kRows]) {
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Tile::kColumns; ++c) tile(r, c) *= factor[r];
  }
}

// Whether a thread's part of a row of a tile is finite: 0 times anything else isn't 0.
template <class Tile>
__device__ __forceinline__ bool finite(int r, Tile& tile) {
  auto zero = tile(r, 0) * 0;
#pragma unroll
  for (int c = 1; c < Tile::kColumns; ++c) zero = multiply_add(tile(r, c), decltype(zero)(0), zero);
  return zero == 0;
}

// The same of all its rows.
template <class Tile>
__device__ __forceinline__ bool finite(Tile& tile) {
  bool all = true;
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) all = finite(r, tile) && all;
  return all;
}

// A strided matrix in global memory.
template <class T>
struct Matrix {
  const T* data;
  long long row_stride;
  long long column_stride;
};

// kRows x kColumns elements on their way from global to shared memory, held in registers between the two
// steps, so that the loads of the next tile run while this one is computed.
template <class T, int kThreads, int kRows, int kColumns>
struct Transfer {
  static constexpr int kAcross = kColumns < kThreads ? kColumns : kThreads;
  static constexpr int kDown = kThreads / kAcross;
  static constexpr int kRowSteps = kRows / kDown;
  static constexpr int kColumnSteps = kColumns / kAcross;
  static_assert(kThreads % kAcross == 0 && kColumns % kAcross == 0, "threads tile the columns");
  static_assert(kRows % kDown == 0, "threads tile the rows");

  T value[kColumnSteps][kRowSteps];

  // Loads from (row, column); what lies at or beyond row_end or column_end, and with kSkip before
  // row_begin, becomes 0 and isn't read.
  template <bool kSkip = false>
  __device__ __forceinline__ void fetch(const Matrix<T>& matrix, long long row, long long row_end,
                                        long long column, long long column_end,
                                        long long row_begin = 0) {
    // Opaque, or what follows from the thread's place and the step lives in registers through the
    // whole kernel.
    const int thread = opaque(static_cast<int>(threadIdx.x));
    const int first_row = thread / kAcross;
    const int first_column = thread % kAcross;
    const int rows = static_cast<int>(minimum(row_end - row, static_cast<long long>(kRows)));
    const int skipped =
        kSkip ? static_cast<int>(maximum(row_begin - row, 0ll)) - first_row : 0;
    const long long step = opaque(kDown * matrix.row_stride);
#pragma unroll
    for (int c = 0; c < kColumnSteps; ++c) {
      const long long x = column + first_column + c * kAcross;
      const T* source = matrix.data + (row + first_row) * matrix.row_stride +
                        x * matrix.column_stride;
#pragma unroll
      for (int r = 0; r < kRowSteps; ++r) {
        value[c][r] = T();
        if (x < column_end && first_row + r * kDown < rows && (!kSkip || r * kDown >= skipped)) {
          value[c][r] = load_global(source);
        }
        source += step;
      }
    }
  }

  // Writes to the tile's first kRows rows and kColumns columns, times a factor.
  template <class A, int kTileColumns, int kPad>
  __device__ __forceinline__ void store(const SharedTile<A, kTileColumns, kPad>& tile, A factor) const {
    const int first_row = threadIdx.x / kAcross;
    const int first_column = threadIdx.x % kAcross;
#pragma unroll
    for (int c = 0; c < kColumnSteps; ++c) {
#pragma unroll
      for (int r = 0; r < kRowSteps; ++r) {
        *tile.at(first_row + r * kDown, first_column + c * kAcross) =
            Convert<A>::from(value[c][r]) * factor;
      }
    }
  }
};
