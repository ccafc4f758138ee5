// How threads share tiles where warps multiply float64 on the tensor cores, as SimtThreads where they don't.
#pragma once

#include "fragment_threads.cuh"
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

// See FragmentThreads.
template <int kRows, int kParts>
struct MatrixThreads : FragmentThreads<kRows, kParts> {
  using FragmentThreads<kRows, kParts>::thread_m;
  using FragmentThreads<kRows, kParts>::thread_n;
  using FragmentThreads<kRows, kParts>::row_of;
  using FragmentThreads<kRows, kParts>::other_of;
  static constexpr bool kSplit = false;
  static constexpr int kVector = Vector<double>::kSize;
  static constexpr int kTiles = kRows / 2;

  // X += rows others^T.
  template <class Rows, class Others, class Product>
  __device__ __forceinline__ void product_of_columns(const Rows& rows, const Others& others, Product& X) const {
#pragma unroll 1
    for (int k = 0; k < Others::kColumns; k += 16) {
      double a[kTiles][8];
      load_left(rows, k, a);
#pragma unroll
      for (int j = 0; j < Product::kColumns / 2; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = *others.at(right_of(j), k + 4 * i + place());
        multiply(a, b, j, X);
      }
    }
  }

  // X += weights others.
  template <class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_rows(const Weights& weights, const Others& others, Product& X) const {
#pragma unroll 1
    for (int k = 0; k < Weights::kColumns; k += 16) {
      double a[kTiles][8];
      load_left(weights, k, a);
#pragma unroll
      for (int j = 0; j < Product::kColumns / 2; ++j) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = *others.at(k + 4 * i + place(), right_of(j));
        multiply(a, b, j, X);
      }
    }
  }

  // X = alpha X + weights others, with weights that a thread has: they are fragments as they lie, if others are taken in
  // the order in which it has them. One sum over all keys loses as many roundings as there are; this is one a tile.
  template <class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_fragments(Weights& weights, const Others& others,
                                                       const double (&alpha)[kRows], Product& X) const {
#pragma unroll
    for (int j = 0; j < Product::kColumns / 2; ++j) {
      double sum[kTiles][4] = {};
#pragma unroll
      for (int k = 0; k < Weights::kColumns; k += 4) {
        double b[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) b[i] = *others.at(other_of(k + i), right_of(j));
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          double a[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) a[i] = weights(2 * t + i % 2, k + i / 2);
          multiply_accumulate(sum[t], a, b);
        }
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          double& x = X(2 * t + i / 2, 2 * j + i % 2);
          x = multiply_add(x, alpha[2 * t + i / 2], sum[t][i]);
        }
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

// Waits until the copies that the block's threads started have landed for all of them, and what they used is free.
__device__ __forceinline__ void wait_for_copies() {
  wait_async<0>();
  __syncthreads();
}

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
  __device__ __forceinline__ void fetch(const Matrix<double>& matrix, long long row, long long row_end, long long column,
                                        long long column_end, long long row_begin = 0) {
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

 private:
  template <int kElements>
  __device__ __forceinline__ void copy(const double* source, const Matrix<double>& matrix, int rows, int skipped,
                                       int columns) const {
    constexpr int kAcross = Tile::kColumns / kElements < kThreads ? Tile::kColumns / kElements : kThreads;
    constexpr int kDown = kThreads / kAcross;
    static_assert(kThreads % kAcross == 0 && kRows % kDown == 0, "threads tile the tile");
    const int thread = opaque(static_cast<int>(threadIdx.x));
    const int first_row = thread / kAcross;
    const long long step = opaque(kDown * matrix.row_stride);
#pragma unroll
    for (int c = 0; c < Tile::kColumns / kElements; c += kAcross) {
      const int x = (thread % kAcross + c) * kElements;
      const unsigned target = shared_address(tile.at(first_row, x));
      const double* place = source + first_row * matrix.row_stride + x * matrix.column_stride;
#pragma unroll
      for (int r = 0; r < kRows; r += kDown) {
        const bool present = x < columns && first_row + r < rows && first_row + r >= skipped;
        copy_async<8 * kElements>(target + r * Tile::kPitch * 8, place, present);
        place = opaque(place + step);
      }
    }
    commit_async();
  }
};
