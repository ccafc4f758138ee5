// The online softmax of sm90, where every instruction on a score counts: mostly its weight is one multiply-add and one
// ex2 away from the product, without a subtraction before.
#pragma once

#include "ptx/exponential.cuh"
#include "softmax.cuh"
#include "types.cuh"

template <int kRows, int kLanes, bool kSink>
struct FusedSoftmax : OnlineSoftmax<float, kRows, kLanes, ScaledWeight, kSink> {
  using Base = OnlineSoftmax<float, kRows, kLanes, ScaledWeight, kSink>;
  using Base::Base;
  using Base::l;
  using Base::m;
  using Base::weight;

  // As OnlineSoftmax::update. Of weights 2^(c S + b) with b = p_exponent - c m the largest must be p_scale, however b
  // is rounded; that holds while c m is below 8 or so. From rows of which it doesn't hold m is subtracted first: each
  // row by itself, so that no bit depends on its neighbours.
  template <class Tile>
  __device__ __forceinline__ void update(Tile& S, float (&alpha)[kRows]) {
    float offset[kRows];
    float subtracted[kRows];
    bool subtracts = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float tile_m = S(r, 0);
#pragma unroll
      for (int c = 1; c < Tile::kColumns; ++c) tile_m = maximum(tile_m, S(r, c));
      const float m_new = maximum(m[r], lanes_maximum<float, kLanes>(tile_m));
      const float reference = reference_of(m_new);
      alpha[r] = weight.rescale(m[r] - reference);
      m[r] = m_new;
      offset[r] = multiply_add(-reference, weight.unit_log2, weight.p_exponent);
      const bool fuses = multiply_add(reference, weight.unit_log2, offset[r]) == weight.p_exponent;
      subtracted[r] = fuses ? 0.0f : reference;
      if (!fuses) offset[r] = weight.p_exponent;
      subtracts = subtracts || !fuses;
    }
    if (__any_sync(0xffffffffu, subtracts)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < Tile::kColumns; ++c) S(r, c) -= subtracted[r];
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      l[r] *= alpha[r];
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) {
        S(r, c) = exp2_approx(multiply_add(S(r, c), weight.unit_log2, offset[r]));
        l[r] += S(r, c);
      }
    }
  }
};
