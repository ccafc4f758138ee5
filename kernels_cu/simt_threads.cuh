// How simt's threads share tiles, and its two products of tiles in shared memory.
#pragma once

#include "tile.cuh"
#include "types.cuh"

// kThreadsM x kThreadsN threads. One has rows kThreadsM apart, and of others kThreadsN apart.
template <class A, int kThreadsM, int kThreadsN>
struct SimtThreads {
  static constexpr bool kSplit = false;
  static constexpr int kVector = Vector<A>::kSize;
  // The columns that a thread has of kColumns x kThreadsN: pieces that it reads at once, kThreadsN apart.
  template <int kColumns>
  static constexpr int kPack = kColumns < kVector ? kColumns : kVector;

  int thread_m;
  int thread_n;

  __device__ __forceinline__ SimtThreads()
      : thread_m(threadIdx.x / kThreadsN), thread_n(threadIdx.x % kThreadsN) {}

  // Whether the thread has no rows.
  __device__ __forceinline__ bool provides() const { return false; }

  __device__ __forceinline__ int row_of(int r) const { return thread_m + r * kThreadsM; }
  __device__ __forceinline__ int other_of(int j) const { return thread_n + j * kThreadsN; }
  template <int kColumns>
  __device__ __forceinline__ int column_of(int c) const {
    constexpr int pack = kPack<kColumns>;
    return (c / pack * kThreadsN + thread_n) * pack + c % pack;
  }

  // X += rows[:, column : column + kChunk] others^T for a chunk of the others' columns.
  template <class Rows, int kChunk, class Product>
  __device__ __forceinline__ void product_of_columns(const Rows& rows, int column,
                                                     const SharedTile<A, kChunk>& others,
                                                     Product& X) const {
#pragma unroll 1
    for (int x = 0; x < kChunk; x += kVector) {
      Pack<A, kVector> y[Product::kColumns];
#pragma unroll
      for (int j = 0; j < Product::kColumns; ++j) {
        y[j] = others.template read<kVector>(other_of(j), x);
      }
#pragma unroll
      for (int r = 0; r < Product::kRows; ++r) {
        const Pack<A, kVector> o = rows.template read<kVector>(row_of(r), column + x);
#pragma unroll
        for (int j = 0; j < Product::kColumns; ++j) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            X(r, j) = multiply_add(o.value[e], y[j].value[e], X(r, j));
          }
        }
      }
    }
  }

  // X += weights[:, other : other + kChunk] others for a chunk of the others.
  template <int kChunk, class Weights, class Others, class Product>
  __device__ __forceinline__ void product_of_rows(const Weights& weights, int other,
                                                  const Others& others, Product& X) const {
    constexpr int kColumns = Product::kColumns;
    constexpr int pack = kPack<kColumns>;
#pragma unroll 1
    for (int j = 0; j < kChunk; j += kVector) {
      Pack<A, kVector> weight[Product::kRows];
#pragma unroll
      for (int r = 0; r < Product::kRows; ++r) {
        weight[r] = weights.template read<kVector>(row_of(r), other + j);
      }
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int c = 0; c < kColumns; c += pack) {
          const Pack<A, pack> y = others.template read<pack>(j + e, column_of<kColumns>(c));
#pragma unroll
          for (int r = 0; r < Product::kRows; ++r) {
#pragma unroll
            for (int x = 0; x < pack; ++x) {
              X(r, c + x) = multiply_add(weight[r].value[e], y.value[x], X(r, c + x));
            }
          }
        }
      }
    }
  }
};
