// Which rows and columns of a tile a thread has where warps multiply on the tensor cores: those of fragments.
#pragma once

// Warps of 8 kRows rows each, below each other, or kParts that share rows: those take turns at 8 columns. Of each 16
// rows a thread has two, 8 apart, and of each 8 columns two neighbours.
template <int kRows, int kParts>
struct FragmentThreads {
  static constexpr int kThreadsN = 4 * kParts;
  template <int kColumns>
  static constexpr int kPack = 2;
  static_assert(kRows % 2 == 0, "whole fragments");

  int thread_m;
  int thread_n;

  __device__ __forceinline__ FragmentThreads()
      : thread_m(threadIdx.x / (32 * kParts) * 8 + threadIdx.x % 32 / 4),
        thread_n(threadIdx.x / 32 % kParts * 4 + threadIdx.x % 4) {}

  // Whether the thread has none of them.
  __device__ __forceinline__ bool provides() const { return false; }

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
};
