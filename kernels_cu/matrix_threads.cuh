// How threads share tiles where warps multiply float32 or float64 on the tensor cores, as SimtThreads where they don't.
#pragma once

#include "fragment_threads.cuh"
#include "matrix_factors.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "simt_threads.cuh"
#include "tile.cuh"
#include "types.cuh"

// Elements between rows in shared memory, so that fragments take all banks once: eight rows by four columns of float32,
// four by four of float64. Where those of a right factor are rows by eight columns, the rows are every other one in
// float32, by the order of its terms, and in float64 where P is the left factor as it lies in registers.
constexpr int kMatrixPad = 4;
template <class A>
constexpr int kAlternatePad = 4;
template <>
constexpr int kAlternatePad<double> = 2;

// See FragmentThreads.
template <class A, bool kWhole, int kRows, int kParts>
struct MatrixThreads : FragmentThreads<kRows, kParts> {
  using Factors = MatrixFactors<A, kWhole>;
  using Factor = typename Factors::Factor;
  using FragmentThreads<kRows, kParts>::thread_m;
  using FragmentThreads<kRows, kParts>::thread_n;
  using FragmentThreads<kRows, kParts>::row_of;
  using FragmentThreads<kRows, kParts>::other_of;
  static constexpr bool kSplit = Factors::kSplit;
  static constexpr int kVector = Vector<A>::kSize;
  static constexpr int kTiles = kRows / 2;
  // Terms of a sum in the tensor cores: what they cut off grows with their number.
  static constexpr int kTerms = Factors::kApart ? 32 : 16;
  // The same of columns. Where warps share rows they have few products with each left factor: loaded for two steps at
  // once, those of a step wait less.
  static constexpr int kColumnTerms = kParts > 1 ? 32 : kTerms;

  // X += rows[:, column : column + kChunk] others^T for a chunk of the others' columns.
  template <class Rows, int kChunk, class Product>
  __device__ __forceinline__ void product_of_columns(const Rows& rows, int column,
                                                     const SharedTile<A, kChunk, kMatrixPad>& others,
                                                     Product& X) const {
    constexpr int kStep = kChunk < kColumnTerms ? kChunk : kColumnTerms;
#pragma unroll 1
    for (int k = 0; k < kChunk; k += kStep) {
      Factor a[kStep / 16][kTiles][8];
#pragma unroll
      for (int s = 0; s < kStep / 16; ++s) {
        load_left(rows, [&](int i) { return column + k + 16 * s + 4 * i + place(); }, a[s]);
      }
      multiply(a, [&](int s, int i, int j) { return others.at(right_of(j), k + 16 * s + 4 * i + place()); }, X);
    }
  }

  // X += weights[:, other : other + kChunk] others for a chunk of the others.
  template <int kChunk, class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_rows(const Weights& weights, int other, const Others& others,
                                                  Product& X) const {
    constexpr int kStep = kChunk < kTerms ? kChunk : kTerms;
#pragma unroll 1
    for (int k = 0; k < kChunk; k += kStep) {
      Factor a[kStep / 16][kTiles][8];
#pragma unroll
      for (int s = 0; s < kStep / 16; ++s) {
        load_left(weights, [&](int i) { return other + k + 16 * s + term(i); }, a[s]);
      }
      multiply(a, [&](int s, int i, int j) { return others.at(k + 16 * s + term(i), right_of(j)); }, X);
    }
  }

  // X = alpha X + weights others, with weights that a thread has: they are fragments as they lie, if others are taken in
  // the order in which it has them.
  template <class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_fragments(Weights& weights, const Others& others, const A (&alpha)[kRows],
                                                       Product& X) const {
    constexpr int kSteps = Weights::kColumns / 4;
    Factor a[kSteps][kTiles][8];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 8; ++i) a[s][t][i] = Factors::of(weights(2 * t + i % 2, 4 * s + i / 2));
      }
    }
#pragma unroll
    for (int j = 0; j < Product::kColumns / 2; ++j) {
      A sum[kTiles][4] = {};
      multiply_steps(a, [&](int s, int i) { return Factors::whole(*others.at(other_of(4 * s + i), right_of(j))); }, sum);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          A& x = X(2 * t + i / 2, 2 * j + i % 2);
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
  // Which of 16 rows of a right factor is the thread's i-th.
  __device__ __forceinline__ int term(int i) const {
    return sizeof(A) == 4 ? i / 2 * 8 + 2 * place() + i % 2 : 4 * i + place();
  }

  // The left fragments of the columns that `column_of_term` says.
  template <class Rows, class ColumnOfTerm>
  __device__ __forceinline__ void load_left(const Rows& rows, const ColumnOfTerm& column_of_term,
                                            Factor (&a)[kTiles][8]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 8; ++i) a[t][i] = Factors::of(*rows.at(row_of(2 * t + i % 2), column_of_term(i / 2)));
    }
  }

  // sum += a b; `right(s, i)` is the right factor's i-th element of the thread, of 16 terms.
  template <int kSteps, class Right>
  __device__ __forceinline__ void multiply_steps(const Factor (&a)[kSteps][kTiles][8], const Right& right,
                                                 A (&sum)[kTiles][4]) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      decltype(right(0, 0)) b[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i] = right(s, i);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) Factors::multiply(sum[t], a[s][t], b);
    }
  }

  // X += a b.
  template <int kSteps, class Right, class Product>
  __device__ __forceinline__ void multiply(const Factor (&a)[kSteps][kTiles][8], const Right& right, Product& X) const {
#pragma unroll
    for (int j = 0; j < Product::kColumns / 2; ++j) {
      A sum[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[t][i] = Factors::kApart ? A(0) : X(2 * t + i / 2, 2 * j + i % 2);
      }
      multiply_steps(a, [&](int s, int i) { return Factors::of(*right(s, i, j)); }, sum);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          A& x = X(2 * t + i / 2, 2 * j + i % 2);
          x = Factors::kApart ? x + sum[t][i] : sum[t][i];
        }
      }
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
    typename Either<Config::kMatrix,
                    MatrixThreads<typename Config::Accumulate, !Config::kTf32, Config::kBlockM / Config::kThreadsM,
                                  Config::kThreadsN / 4>,
                    SimtThreads<typename Config::Accumulate, Config::kThreadsM, Config::kThreadsN>>::Type;

// A tile on its way from global to shared memory by cp.async, as Transfer has it in registers.
template <class A, int kThreads, int kRows, class Tile>
struct AsyncTransfer {
  static constexpr int kUnit = Vector<A>::kSize;  // elements of 16 bytes
  Tile tile;

  __device__ __forceinline__ explicit AsyncTransfer(const Tile& tile) : tile(tile) {}

  // As Transfer::fetch; the tile's last readers have met at a barrier.
  template <bool kSkip = false>
  __device__ __forceinline__ void fetch(const Matrix<A>& matrix, long long row, long long row_end, long long column,
                                        long long column_end, long long row_begin = 0) {
    const bool units = matrix.column_stride == 1 && matrix.row_stride % kUnit == 0 && column_end % kUnit == 0 &&
                       reinterpret_cast<unsigned long long>(matrix.data) % 16 == 0;
    const A* source = matrix.data + row * matrix.row_stride + column * matrix.column_stride;
    const int rows = static_cast<int>(minimum(row_end - row, static_cast<long long>(kRows)));
    const int skipped = kSkip ? static_cast<int>(maximum(row_begin - row, 0ll)) : 0;
    const int columns = static_cast<int>(minimum(column_end - column, static_cast<long long>(Tile::kColumns)));
    if (units) {
      copy<kUnit>(source, matrix, rows, skipped, columns);
    } else {
      copy<1>(source, matrix, rows, skipped, columns);
    }
  }

 private:
  template <int kElements>
  __device__ __forceinline__ void copy(const A* source, const Matrix<A>& matrix, int rows, int skipped,
                                       int columns) const {
    constexpr int kAcross = Tile::kColumns / kElements < kThreads ? Tile::kColumns / kElements : kThreads;
    constexpr int kDown = kThreads / kAcross;
    constexpr int kSize = sizeof(A);
    static_assert(kThreads % kAcross == 0, "threads tile a row");
    const int thread = opaque(static_cast<int>(threadIdx.x));
    const int first_row = thread / kAcross;
    const long long step = opaque(kDown * matrix.row_stride);
#pragma unroll
    for (int c = 0; c < Tile::kColumns / kElements; c += kAcross) {
      const int x = (thread % kAcross + c) * kElements;
      const unsigned target = shared_address(tile.at(first_row, x));
      const A* place = source + first_row * matrix.row_stride + x * matrix.column_stride;
#pragma unroll
      for (int r = 0; r < kRows; r += kDown) {
        const bool present = x < columns && first_row + r < rows && first_row + r >= skipped;
        if (kRows % kDown == 0 || first_row + r < kRows) {
          copy_async<kSize * kElements>(target + r * Tile::kPitch * kSize, place, present);
        }
        place = opaque(place + step);
      }
    }
    commit_async();
  }
};
