// The arrays over rows and keys: the mask, and the bias, which hides a pair where it is -inf.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "tile.cuh"
#include "types.cuh"

// What the arrays hold of a pair.
template <class A>
struct ScoreElements {
  bool visible = true;
  A bias = A(0);
};

// A head's arrays, seen from some row and key. An axis that an array broadcasts over has stride 0.
template <class Config>
struct ScoreArrays {
  using A = typename Config::Accumulate;
  using Bias = typename Config::Bias;
  using Elements = ScoreElements<A>;
  static constexpr bool kBias = is_given<Bias>;
  // Whether a key may be hidden from every row of a block that loads it.
  static constexpr bool kHide = Config::kMask || kBias;

  Matrix<unsigned char> mask;  // numpy.bool
  Matrix<Bias> bias;

  // From row 0 and key 0 on.
  static __device__ __forceinline__ ScoreArrays of(const Params& params, const Tile& tile) {
    return at(params, index_of(params.mask, tile, tile.head),
              index_of(params.bias, tile, tile.head));
  }

  // From these elements on.
  static __device__ __forceinline__ ScoreArrays at(const Params& params, long long mask,
                                                   long long bias) {
    return {matrix_at<unsigned char>(params.mask, mask), matrix_at<Bias>(params.bias, bias)};
  }

  // From a row and a key of these on.
  __device__ __forceinline__ ScoreArrays from(long long row, long long key) const {
    return {further(mask, row, key), further(bias, row, key)};
  }

  // Of a pair of the problem's rows and keys; of others nothing may be read.
  __device__ __forceinline__ Elements operator()(long long row, long long key) const {
    return elements<true>(row, key, elements<false>(row, key, {}));
  }

  // Adds to what was found of a pair what those arrays hold that vary along rows, or the others.
  template <bool kAlongRows>
  __device__ __forceinline__ Elements elements(long long row, long long key,
                                               Elements found) const {
    if (Config::kMask && Config::kMaskRows == kAlongRows) {
      found.visible = found.visible && load_global(further(mask, row, key).data) != 0;
    }
    if constexpr (kBias && Config::kBiasRows == kAlongRows) {
      found.bias = Convert<A>::from(load_global(further(bias, row, key).data));
      found.visible = found.visible && found.bias != -Limits<A>::infinity();
    }
    return found;
  }

  // Whether a row of the block sees the key. `sees` and the arrays begin at the block's first row and at
  // the same key. Of V, the rows of other keys must not be multiplied: 0 times NaN is NaN.
  __device__ __forceinline__ bool any_row_sees(const TileMask<Config>& sees, int key) const {
#pragma unroll 1
    for (int r = 0; r < Config::kBlockM; ++r) {
      if (sees.visible(r, key) && (*this)(r, key).visible) return true;
    }
    return false;
  }

 private:
  template <class T>
  static __device__ __forceinline__ Matrix<T> matrix_at(const Operand& operand, long long index) {
    return {static_cast<const T*>(operand.data) + index, operand.row, operand.column};
  }

  template <class T>
  static __device__ __forceinline__ Matrix<T> further(const Matrix<T>& array, long long row,
                                                      long long key) {
    return {array.data + row * array.row_stride + key * array.column_stride, array.row_stride,
            array.column_stride};
  }
};

// Whether a block must compute its sums again, with care for what hidden keys or rows hold: something
// isn't finite. All its threads ask, each about its share of the sums.
template <class Config>
__device__ __forceinline__ bool needs_care(bool finite) {
  if constexpr (!ScoreArrays<Config>::kHide) return false;
  // By the second vote the compiler sees that a warp stays together.
  return __any_sync(0xffffffffu, __syncthreads_or(!finite));
}

template <class Config, class Softmax, class Output>
__device__ __forceinline__ bool needs_care(const Softmax& softmax, Output& O) {
  if constexpr (!ScoreArrays<Config>::kHide) return false;
  return needs_care<Config>(softmax.finite(O));
}
