// Tiles of float32 in shared memory as sums of bfloat16 ones, for products by warpgroups.
//
// Three bfloat16 numbers of 8 bits each are a float32 but for numbers near the ends of its range; two have 16 bits.
#pragma once

#include "matrix_tile.cuh"
#include "ptx/opaque.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared.cuh"
#include "tile.cuh"
#include "types.cuh"

// Two numbers as pairs of bfloat16 terms, the largest ones first.
template <int kTerms>
__device__ __forceinline__ void split_pair(float low, float high, unsigned (&terms)[kTerms]) {
#pragma unroll
  for (int t = 0; t < kTerms; ++t) {
    terms[t] = pack_pair<BFloat16>(low, high);
    low -= __uint_as_float(terms[t] << 16);
    high -= __uint_as_float(terms[t] & 0xffff0000u);
  }
}

template <int kTerms_, int kRows_, int kColumns_>
struct SplitTile {
  static constexpr int kTerms = kTerms_;
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  using Term = PanelTile<kRows, kColumns>;
  static constexpr int kBytes = kTerms * Term::kBytes;

  unsigned base;

  __device__ __forceinline__ Term term(int t) const { return {base + t * Term::kBytes}; }

  // Zeroes a row.
  __device__ __forceinline__ void clear(int row) const {
#pragma unroll 1
    for (int piece = 0; piece < Term::kPieces; ++piece) {
#pragma unroll
      for (int t = 0; t < kTerms; ++t) store_shared(term(t).at(row, piece), Words4{});
    }
  }
};

struct Nothing {
  __device__ __forceinline__ void operator()() const {}
};

// Brings a tile from global to shared memory and splits it, up to kMostPieces pieces a thread at a time: what is on its
// way is in registers.
template <int kThreads, class Tile, int kMostPieces = 4>
struct SplitCopy {
  static constexpr int kPiece = 8;  // elements, 16 bytes of each term
  static constexpr int kAcross = Tile::kColumns / kPiece;
  static constexpr int kDown = kThreads / kAcross;
  static constexpr int kSteps = Tile::kRows / kDown;
  static constexpr int kAtOnce = kSteps < kMostPieces ? kSteps : kMostPieces;
  static_assert(kThreads % kAcross == 0 && Tile::kRows % kDown == 0 && kSteps % kAtOnce == 0, "threads tile the tile");

  // Copies rows from `row` on and all columns, times a power of two; what lies beyond the ends, and with kSkip before
  // row_begin, becomes 0 and isn't read. `until_free` is called when the first ones are on their way.
  template <bool kSkip = false, class UntilFree = Nothing>
  static __device__ __forceinline__ void run(const Tile& tile, const Matrix<float>& matrix, long long row,
                                             long long row_end, long long columns, long long row_begin = 0,
                                             float factor = 1.0f, const UntilFree& until_free = {}) {
    const int thread = opaque(static_cast<int>(threadIdx.x)) % kThreads;
    const int piece = thread % kAcross;
    const int x = piece * kPiece;
    const int rows = static_cast<int>(minimum(row_end - row, static_cast<long long>(Tile::kRows)));
    const int skipped = kSkip ? static_cast<int>(maximum(row_begin - row, 0ll)) : 0;
    const int count = minimum(maximum(static_cast<int>(columns) - x, 0), kPiece);
    int at = thread / kAcross;
    const float* source = matrix.data + (row + at) * matrix.row_stride + x * matrix.column_stride;
    const long long step = opaque(kDown * matrix.row_stride);
    const bool whole = matrix.column_stride == 1 && matrix.row_stride % 4 == 0 && columns % kPiece == 0 &&
                       reinterpret_cast<unsigned long long>(matrix.data) % 16 == 0;
#pragma unroll 1
    for (int done = 0; done < kSteps; done += kAtOnce) {
      float value[kAtOnce][kPiece];
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) {
        const int here = at + r * kDown;
        load(source, matrix.column_stride, here < rows && here >= skipped ? count : 0, whole, value[r]);
        source += step;
      }
      if (done == 0) until_free();
#pragma unroll
      for (int r = 0; r < kAtOnce; ++r) store(tile, at + r * kDown, piece, factor, value[r]);
      at += kAtOnce * kDown;
    }
  }

 private:
  // The first `count` elements of a piece and zeros; all or none if `whole`.
  static __device__ __forceinline__ void load(const float* source, long long stride, int count, bool whole,
                                              float (&value)[kPiece]) {
    if (whole) {
#pragma unroll
      for (int h = 0; h < kPiece; h += 4) {
        Pack<float, 4> four = {};
        if (count > 0) four = load_global(reinterpret_cast<const Pack<float, 4>*>(source + h));
#pragma unroll
        for (int e = 0; e < 4; ++e) value[h + e] = four.value[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < kPiece; ++e) value[e] = e < count ? load_global(source + e * stride) : 0.0f;
    }
  }

  static __device__ __forceinline__ void store(const Tile& tile, int row, int piece, float factor,
                                               const float (&value)[kPiece]) {
    Words4 words[Tile::kTerms];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      unsigned terms[Tile::kTerms];
      split_pair(value[2 * w] * factor, value[2 * w + 1] * factor, terms);
#pragma unroll
      for (int t = 0; t < Tile::kTerms; ++t) words[t].word[w] = terms[t];
    }
#pragma unroll
    for (int t = 0; t < Tile::kTerms; ++t) store_shared(tile.term(t).at(row, piece), words[t]);
  }
};
