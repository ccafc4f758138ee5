// Which rows, or parts of rows, the threads of a softmax kernel compute next. The grid is one-dimensional
// and may be smaller than the work.
#pragma once

#include "softmax_params.cuh"
#include "types.cuh"

template <class T>
struct Piece {
  const T* x;  // first column
  T* o;
  int columns;  // 0, if there is nothing to do
  long long row;
  long long part;
};

// All threads of a block go through its pieces together; some may get an empty one at the end.
template <class Config>
struct Pieces {
  using T = typename Config::Element;
  static constexpr int kAtATime = Config::kThreads / Config::kLanes;

  const SoftmaxParams& params;
  long long number = blockIdx.x;

  __device__ __forceinline__ explicit Pieces(const SoftmaxParams& params) : params(params) {}

  __device__ __forceinline__ bool next(Piece<T>& piece) {
    const long long work = params.rows * params.parts;
    const long long first = number * kAtATime;
    number += gridDim.x;
    if (first >= work) return false;
    const long long index = first + threadIdx.x / Config::kLanes;
    const bool there = index < work;
    piece.row = there ? index : 0;
    piece.part = 0;
    if (params.parts > 1) {
      piece.row = index / params.parts;
      piece.part = index - piece.row * params.parts;
    }
    const long long begin = piece.part * params.part_columns;
    const long long columns = minimum(params.part_columns, params.columns - begin);
    piece.columns = there ? static_cast<int>(columns) : 0;
    locate(piece, begin);
    return true;
  }

 private:
  __device__ __forceinline__ void locate(Piece<T>& piece, long long column) const {
    long long rest = piece.row;
    long long x = column * params.x.column;
    long long o = column * params.o.column;
#pragma unroll
    for (int axis = kBatchAxes - 1; axis >= 0; --axis) {
      // Most calls have one axis of rows, and a division takes about 40 instructions.
      if (params.row_extent[axis] > 1) {
        const long long quotient = axis == 0 ? 0 : rest / params.row_extent[axis];
        const long long digit = rest - quotient * params.row_extent[axis];
        x += digit * params.x.batch[axis];
        o += digit * params.o.batch[axis];
        rest = quotient;
      }
    }
    piece.x = static_cast<const T*>(params.x.data) + x;
    piece.o = static_cast<T*>(params.o.data) + o;
  }
};
