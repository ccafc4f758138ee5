// Products of tiles of 16-bit elements by warpgroups (wgmma), as they lie in shared memory.
#pragma once

#include "fragments.cuh"
#include "ptx/wgmma.cuh"
#include "types.cuh"

// S = own others^T of a group's 64 own rows, from `row` on.
template <class T, class OwnTile, class OthersTile>
__device__ __forceinline__ void group_product(const OwnTile& own, int row, const OthersTile& others,
                                              Accumulators<1, OthersTile::kRows>& S) {
  // Where columns are summed over panels are reached by the address alone.
  const MatrixDescriptor a = MatrixDescriptor::of(own.base + row * OwnTile::kPitch, 16);
  const MatrixDescriptor b = MatrixDescriptor::of(others.base, 16);
#pragma unroll
  for (int step = 0; step < OwnTile::kColumns / 16; ++step) {
    const int within = step % 4 * 32;
    multiply_group<T>(S.sum[0], a.further(step / 4 * OwnTile::kPanelBytes + within),
                      b.further(step / 4 * OthersTile::kPanelBytes + within), step > 0);
  }
}

// The fragments of all columns of P or dS, rounded to T.
template <int kColumns>
struct GroupFragments {
  unsigned a[kColumns / 16][4];

  template <class T>
  __device__ __forceinline__ void round(const Accumulators<1, kColumns>& X) {
    const RoundedFragments<T, Accumulators<1, kColumns>> rounded = {X};
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) rounded(0, step, a[step]);
  }
};

// G += X others.
template <class T, class OthersTile>
__device__ __forceinline__ void group_sums(const GroupFragments<OthersTile::kRows>& X, const OthersTile& others,
                                           Accumulators<1, OthersTile::kColumns>& G) {
  const MatrixDescriptor b = MatrixDescriptor::of(others.base, OthersTile::kPanelBytes);
#pragma unroll
  for (int step = 0; step < OthersTile::kRows / 16; ++step) {
    multiply_group<T, true>(G.sum[0], X.a[step], b.further(step * 16 * OthersTile::kPitch), true);
  }
}
