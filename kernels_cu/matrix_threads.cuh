// How threads share tiles where warps multiply float64 on the tensor cores, as SimtThreads where they don't.
#pragma once

#include "ptx/async_copy.cuh"
#include "ptx/matrix64.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "simt_threads.cuh"
#include "tile.cuh"
#include "types.cuh"

// Elements between rows in shared memory, so that fragments take all banks once: four rows by four columns, and of
// the right factor of P every other row.
constexpr int kMatrixPad = 4;
constexpr int kAlternatePad = 2;

// Warps of 8 kRows rows each, below each other, or kParts that share rows: those take turns at 8 columns. A thread's
// rows and columns are those of its fragments: of each 16 rows two, 8 apart, and of each 8 columns two neighbours.
template <int kRows, int kParts>
struct MatrixThreads {
  static constexpr int kVector = Vector<double>::kSize;
  static constexpr int kThreadsN = 4 * kParts;
  static constexpr int kTiles = kRows / 2;
  static_assert(kRows % 2 == 0, "whole fragments");
  template <int kColumns>
  static constexpr int kPack = 2;

  int thread_m;
  int thread_n;

  __device__ __forceinline__ MatrixThreads()
      : thread_m(threadIdx.x / (32 * kParts) * 8 + threadIdx.x % 32 / 4),
        thread_n(threadIdx.x / 32 % kParts * 4 + threadIdx.x % 4) {}

  __device__ __forceinline__ int row_of(int r) const {
    return thread_m / 8 * (8 * kRows) + thread_m % 8 + r * 8;
  }
  __device__ __forceinline__ int other_of(int j) const {
    return (j / 2 * kThreadsN + thread_n) * 2 + j % 2;
  }
  template <int kColumns>
  __device__ __forceinline__ int column_of(int c) const {
    return other_of(c);
  }

  // X += rows[:, column : column + kChunk] others^T for a chunk of the others' columns.
  template <class Rows, int kChunk, class Product>
  __device__ __forceinline__ void product_of_columns(const Rows& rows, int column,
                                                     const SharedTile<double, kChunk, kMatrixPad>& others,
                                                     Product& X) const {
#pragma unroll 1
    for (int k = 0; k < kChunk; k += 16) {
      double a[kTiles][8];
      load_left(rows, column + k, a);
#pragma unroll
      for (int j = 0; j < Product::kColumns / 2; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = *others.at(right_of(j), k + 4 * i + place());
        multiply(a, b, j, X);
      }
    }
  }

  // X += weights[:, other : other + kChunk] others for a chunk of the others.
  template <int kChunk, class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_rows(const Weights& weights, int other, const Others& others,
                                                  Product& X) const {
#pragma unroll 1
    for (int k = 0; k < kChunk; k += 16) {
      double a[kTiles][8];
      load_left(weights, other + k, a);
#pragma unroll
      for (int j = 0; j < Product::kColumns / 2; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = *others.at(k + 4 * i + place(), right_of(j));
        multiply(a, b, j, X);
      }
    }
  }

  // The same with weights that a thread has: they are fragments as they lie, if others are taken in the order in
  // which it has them.
  template <class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_fragments(Weights& weights, const Others& others,
                                                       Product& X) const {
#pragma unroll
    for (int k = 0; k < Weights::kColumns; k += 4) {
      double a[kTiles][8];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) a[t][i] = weights(2 * t + i % 2, k + i / 2);
      }
#pragma unroll
      for (int j = 0; j < Product::kColumns / 2; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = *others.at(other_of(k + i), right_of(j));
        multiply(a, b, j, X);
      }
    }
  }

 private:
  // Of the four threads that share rows of fragments.
  __device__ __forceinline__ int place() const { return thread_n % 4; }
  // The column of the thread's right fragments, of the warp's j-th 8 columns.
  __device__ __forceinline__ int right_of(int j) const {
    return 8 * (j * kParts + thread_n / 4) + thread_m % 8;
  }

  // The left fragments of 16 columns from `column` on.
  template <class Rows>
  __device__ __forceinline__ void load_left(const Rows& rows, int column, double (&a)[kTiles][8]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) a[t][i] = *rows.at(row_of(2 * t + i % 2), column + i / 2 * 4 + place());
    }
  }

  template <class Product>
  __device__ __forceinline__ void multiply(const double (&a)[kTiles][8], const double (&b)[4], int j,
                                           Product& X) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      double c[4] = {X(2 * t, 2 * j), X(2 * t, 2 * j + 1), X(2 * t + 1, 2 * j), X(2 * t + 1, 2 * j + 1)};
      multiply_accumulate(c, a[t], b);
      X(2 * t, 2 * j) = c[0];
      X(2 * t, 2 * j + 1) = c[1];
      X(2 * t + 1, 2 * j) = c[2];
      X(2 * t + 1, 2 * j + 1) = c[3];
    }
  }
};

// By which class threads share the tiles of a kernel.
template <class Config>
using ThreadsOf =
    typename Either<Config::kMatrix, MatrixThreads<Config::kBlockM / Config::kThreadsM, Config::kThreadsN / 4>,
                    SimtThreads<typename Config::Accumulate, Config::kThreadsM, Config::kThreadsN>>::Type;

// A tile of float64 on its way from global to shared memory by cp.async, as Transfer has it in registers.
template <int kThreads, int kRows, class Tile>
struct AsyncTransfer {
  Tile tile;

  __device__ __forceinline__ explicit AsyncTransfer(const Tile& tile) : tile(tile) {}

  // As Transfer::fetch; the tile's last readers have met at a barrier.
  template <bool kSkip = false>
  __device__ __forceinline__ void fetch(const Matrix<double>& matrix, long long row, long long row_end,
                                        long long column, long long column_end, long long row_begin = 0) {
    const bool pairs = matrix.column_stride == 1 && matrix.row_stride % 2 == 0 && column_end % 2 == 0 &&
                       reinterpret_cast<unsigned long long>(matrix.data) % 16 == 0;
    const double* source = matrix.data + row * matrix.row_stride + column * matrix.column_stride;
    const int rows = static_cast<int>(minimum(row_end - row, static_cast<long long>(kRows)));
    const int skipped = kSkip ? static_cast<int>(maximum(row_begin - row, 0ll)) : 0;
    const int columns = static_cast<int>(minimum(column_end - column, static_cast<long long>(Tile::kColumns)));
    if (pairs) {
      copy<2>(source, matrix, rows, skipped, columns);
    } else {
      copy<1>(source, matrix, rows, skipped, columns);
    }
  }

  template <class A>
  __device__ __forceinline__ void store(const Tile&, A) const {
    wait_async<0>();
  }

  // After the last tile, whose successor's copies are on their way too: zeros.
  __device__ __forceinline__ void finish() const { wait_async<0>(); }

 private:
  template <int kElements>
  __device__ __forceinline__ void copy(const double* source, const Matrix<double>& matrix, int rows, int skipped,
                                       int columns) const {
    constexpr int kAcross = Tile::kColumns / kElements < kThreads ? Tile::kColumns / kElements : kThreads;
    constexpr int kDown = kThreads / kAcross;
    static_assert(kThreads % kAcross == 0 && kRows % kDown == 0, "threads tile the tile");
    const int thread = opaque(static_cast<int>(threadIdx.x));
    const int first_row = thread / kAcross;
    const int x = thread % kAcross * kElements;
    const unsigned target = shared_address(tile.at(first_row, x));
    const double* place = source + first_row * matrix.row_stride + x * matrix.column_stride;
    const long long step = opaque(kDown * matrix.row_stride);
#pragma unroll
    for (int r = 0; r < kRows; r += kDown) {
      const bool present = x < columns && first_row + r < rows && first_row + r >= skipped;
      copy_async<8 * kElements>(target + r * Tile::kPitch * 8, place, present);
      place = opaque(place + step);
    }
    commit_async();
  }
};
