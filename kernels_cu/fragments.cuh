// Products of tiles by mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). A warp holds
// kTiles x 16 rows; lane t of a warp has rows t / 4 and t / 4 + 8 of each 16, and of every 8 columns the
// two from t % 4 * 2 on.
#pragma once

#include "matrix_tile.cuh"
#include "ptx/matrix.cuh"
#include "types.cuh"

// Sums of 16 kTiles rows and kColumns columns, seen as the rows and columns that a thread has of them.
template <int kTiles_, int kColumns_>
struct Accumulators {
  static constexpr int kTiles = kTiles_;
  static constexpr int kRows = 2 * kTiles;
  static constexpr int kColumns = kColumns_ / 4;
  static constexpr int kLanes = 4;  // lanes that share a row

  float sum[kTiles][kColumns_ / 8][4];

  __device__ __forceinline__ float& operator()(int r, int c) {
    return sum[r / 2][c / 2][r % 2 * 2 + c % 2];
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) (*this)(r, c) = 0.0f;
    }
  }

  // The tile's row and column of the thread's element (r, c), in a warp that starts at row 0.
  static __device__ __forceinline__ int row_of(int lane, int r) {
    return r / 2 * 16 + r % 2 * 8 + lane / 4;
  }
  static __device__ __forceinline__ int column_of(int lane, int c) {
    return c / 2 * 8 + lane % 4 * 2 + c % 2;
  }
};

// S += Q K^T. `left(tile, step, a)` supplies the fragments of Q.
template <class T, int kTiles, class KTile, class Left>
__device__ __forceinline__ void product_qk(const Left& left, const KTile& K, int lane,
                                           Accumulators<kTiles, KTile::kRows>& S) {
  const unsigned address = K.at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int step = 0; step < KTile::kColumns / 16; ++step) {
    unsigned a[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) left(t, step, a[t]);
#pragma unroll
    for (int j = 0; j < KTile::kRows / 16; ++j) {
      unsigned b[4];
      load_matrix(KTile::further(address, step, 16 * j), b);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_accumulate<T>(S.sum[t][2 * j], a[t], b[0], b[1]);
        multiply_accumulate<T>(S.sum[t][2 * j + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// The fragments of P, rounded to T, as a left factor: the accumulators of 16 of its columns are one as they
// lie.
template <class T, class Accumulators>
struct RoundedFragments {
  const Accumulators& P;

  __device__ __forceinline__ void operator()(int tile, int step, unsigned (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = P.sum[tile][2 * step + i / 2];
      a[i] = pack_pair<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
  }
};

// O += P V for O's columns of V, from piece `first` on: 0, or a multiple of 8. `left(tile, step, a)` supplies
// the fragments of P.
template <class T, int kTiles, int kColumns, class VTile, class Left>
__device__ __forceinline__ void product_pv(const Left& left, const VTile& V, int first, int lane,
                                           Accumulators<kTiles, kColumns>& O) {
  const unsigned address = V.at(lane % 16, first + lane / 16);
#pragma unroll
  for (int step = 0; step < VTile::kRows / 16; ++step) {
    unsigned a[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) left(t, step, a[t]);
#pragma unroll
    for (int c = 0; c < kColumns / 16; ++c) {
      unsigned b[4];
      load_matrix_transposed(VTile::further(address, c, 16 * step), b);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_accumulate<T>(O.sum[t][2 * c], a[t], b[0], b[1]);
        multiply_accumulate<T>(O.sum[t][2 * c + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// The same of all columns, with P rounded to T.
template <class T, int kTiles, class VTile>
__device__ __forceinline__ void product_pv(const Accumulators<kTiles, VTile::kRows>& P,
                                           const VTile& V, int lane,
                                           Accumulators<kTiles, VTile::kColumns>& O) {
  product_pv<T>(RoundedFragments<T, Accumulators<kTiles, VTile::kRows>>{P}, V, 0, lane, O);
}
