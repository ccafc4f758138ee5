// Tiles of 16-bit elements in shared memory, laid out for ldmatrix, and the copies of tiles from strided
// global memory with zeros outside the array.
#pragma once

#include "ptx/async_copy.cuh"
#include "ptx/opaque.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared.cuh"
#include "stored.cuh"
#include "tile.cuh"
#include "types.cuh"

// Rows of kColumns elements in pieces of 16 bytes. A piece's place in its row is its number xor the low
// bits of the row, so that the eight rows of an 8 x 8 matrix lie in eight different groups of banks.
template <int kRows_, int kColumns_>
struct MatrixTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieceElements = 8;
  static constexpr int kPieces = kColumns / kPieceElements;
  static constexpr int kPitch = kColumns * 2;
  static constexpr int kBytes = kRows * kPitch;
  static_assert(kColumns % 32 == 0 && kRows % 8 == 0, "rows of a multiple of 64 bytes");

  unsigned base;

  // What the pieces of a row are permuted by: eight rows of 64 bytes, modulo 128, take two places, which
  // two bits of the row tell apart; longer ones take one, and need three.
  static __device__ __forceinline__ int turn(int row) {
    return kColumns % 64 == 0 ? row & 7 : row >> 1 & 3;
  }

  __device__ __forceinline__ unsigned at(int row, int piece) const {
    return base + row * kPitch + (piece ^ turn(row)) * 16;
  }

  // From the address of (row, 0) or (row, 1) to that of 16 `steps` columns and `rows`, a multiple of 8,
  // further: one xor with a constant, and a constant that fits into an instruction.
  static __device__ __forceinline__ unsigned further(unsigned address, int steps, int rows) {
    constexpr int kTurned = kColumns % 64 == 0 ? 4 : 2;  // steps whose pieces change places
    return (address ^ (steps % kTurned * 32)) + steps / kTurned * kTurned * 32 + rows * kPitch;
  }
};

// The same as wgmma wants it: panels of 64 columns one after the other, each like a tile of 64 columns. `base` is a
// multiple of 1024.
template <int kRows_, int kColumns_>
struct PanelTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieceElements = 8;
  static constexpr int kPieces = kColumns / kPieceElements;
  static constexpr int kPitch = 128;
  static constexpr int kPanelBytes = kRows * kPitch;
  static constexpr int kBytes = kColumns / 64 * kPanelBytes;
  static_assert(kColumns % 64 == 0 && kRows % 8 == 0, "whole panels");

  unsigned base;

  __device__ __forceinline__ unsigned at(int row, int piece) const {
    return base + piece / 8 * kPanelBytes + row * kPitch + (piece % 8 ^ (row & 7)) * 16;
  }
};

// Some rows of a tile.
template <class Tile, int kRows_>
struct TileRows {
  static constexpr int kRows = kRows_;
  static constexpr int kPieces = Tile::kPieces;

  Tile tile;
  int first;

  __device__ __forceinline__ unsigned at(int row, int piece) const { return tile.at(first + row, piece); }
};

constexpr int greatest_common_divisor(int a, int b) {
  return b == 0 ? a : greatest_common_divisor(b, a % b);
}

// The copy of one tile by kThreads threads from kFirstThread on. With kUnit 16 or 4 a row's units of so many bytes are aligned
// in global memory and travel by cp.async; with a smaller one elements are loaded one by one, for any
// strides, kBatch pieces of 16 bytes at a time.
template <class T, class Tile, int kThreads, int kUnit, int kBatch = 1, int kFirstThread = 0>
struct TileCopy {
  static constexpr int kPieceElements = Tile::kPieceElements;
  static constexpr int kAcross = greatest_common_divisor(Tile::kPieces, 16);
  static constexpr int kDown = kThreads / kAcross;
  static constexpr int kPieceSteps = Tile::kPieces / kAcross;
  static constexpr int kRowSteps = (Tile::kRows + kDown - 1) / kDown;
  static constexpr bool kElements = kUnit < 4;
  static constexpr int kUnroll = kUnit == 16 ? kRowSteps : 1;
  static constexpr bool kEven = Tile::kRows % kDown == 0;
  static_assert(kDown % 8 == 0, "the rows of a thread are turned alike");

  // Copies rows from `row` on; beyond `rows` rows and `columns` columns, and with kSkip in the first
  // `skipped` rows, the tile becomes 0 and nothing is read.
  template <bool kSkip = false>
  static __device__ __forceinline__ void run(const Tile& tile, const Matrix<T>& matrix,
                                             long long row, int rows, int columns,
                                             int skipped = 0) {
    const Place place(matrix);
    const int first_row = place.row;
    const int first_piece = place.piece;
    const long long step = opaque(kDown * matrix.row_stride);
#pragma unroll
    for (int c = 0; c < kPieceSteps; ++c) {
      const int piece = first_piece + c * kAcross;
      const int count = minimum(maximum(columns - piece * kPieceElements, 0), kPieceElements);
      const T* source = matrix.data + (row + first_row) * matrix.row_stride +
                        piece * kPieceElements * matrix.column_stride;
      const unsigned target = tile.at(first_row, piece);
      const int below = count > 0 ? rows - first_row : 0;  // rows from the thread's first one on
      const int above = kSkip ? skipped - first_row : 0;
      const auto present = [&](int r) {
        return r * kDown < below && (!kSkip || r * kDown >= above) ? count : 0;
      };
      const auto in_tile = [&](int r) { return kEven || first_row < Tile::kRows - r * kDown; };
      if constexpr (kElements) {
#pragma unroll 1
        for (int r = 0; r < kRowSteps; r += kBatch) {
          Words4 piece[kBatch];
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            piece[b] = load_piece(source, matrix.column_stride,
                                  r + b < kRowSteps && in_tile(r + b) ? present(r + b) : 0);
            source = opaque(source + step);
          }
#pragma unroll
          for (int b = 0; b < kBatch; ++b) {
            if (r + b < kRowSteps && in_tile(r + b)) {
              store_shared(target + (r + b) * kDown * Tile::kPitch, piece[b]);
            }
          }
        }
      } else {
#pragma unroll kUnroll
        for (int r = 0; r < kRowSteps; ++r) {
          if (in_tile(r)) {
            copy_piece(target + r * kDown * Tile::kPitch, source, matrix.column_stride, present(r));
          }
          // Opaque, or the addresses of all copies take registers that the products need.
          if (r + 1 < kRowSteps) source = opaque(source + step);
        }
      }
    }
  }

  // Multiplies the pieces that this thread copied of a matrix by a power of two, or 0, or changes their
  // sign.
  static __device__ __forceinline__ void scale(const Tile& tile, const Matrix<T>& matrix,
                                               float factor) {
    const Place place(matrix);
#pragma unroll 1
    for (int i = 0; i < kPieceSteps * kRowSteps; ++i) {
      const int row = place.row + i / kPieceSteps * kDown;
      if (!kEven && row >= Tile::kRows) break;
      const unsigned address = tile.at(row, place.piece + i % kPieceSteps * kAcross);
      Words4 words = load_shared<Words4>(address);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float low = to_float(T{static_cast<unsigned short>(words.word[w] & 0xffffu)});
        const float high = to_float(T{static_cast<unsigned short>(words.word[w] >> 16)});
        words.word[w] = pack_pair<T>(low * factor, high * factor);
      }
      store_shared(address, words);
    }
  }

 private:
  // Where a thread's pieces begin.
  struct Place {
    int row;
    int piece;

    __device__ __forceinline__ explicit Place(const Matrix<T>& matrix) {
      // Opaque, or what follows from the thread's place lives in registers through the whole kernel.
      const int thread = opaque(static_cast<int>(threadIdx.x)) - kFirstThread;
      // Elements that are neighbours in memory are loaded by neighbouring threads.
      const bool upright = kElements && matrix.row_stride < matrix.column_stride;
      row = upright ? thread % kDown : thread / kAcross;
      piece = upright ? thread / kDown : thread % kAcross;
    }
  };

  // Starts the copy of the first `count` of a piece's elements and of zeros; with kUnit 16 of all if there
  // is one.
  static __device__ __forceinline__ void copy_piece(unsigned target, const T* source,
                                                    long long stride, int count) {
    if (kUnit == 16) {
      copy_async<16>(target, source, count != 0);
    } else {
      constexpr int kUnitElements = kPieceElements / 4;
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const T* unit = source + (kUnitElements > 1 ? kUnitElements * u : u * stride);
        copy_async<4>(target + 4 * u, unit, count > kUnitElements * u);
      }
    }
  }

  // The first `count` of a piece's elements and zeros, as they lie in shared memory.
  static __device__ __forceinline__ Words4 load_piece(const T* source, long long stride, int count) {
    constexpr int kWordElements = kPieceElements / 4;
    Words4 words;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words.word[w] = 0;
#pragma unroll
      for (int e = 0; e < kWordElements; ++e) {
        const int i = w * kWordElements + e;
        if (i < count) {
          const unsigned bits = Stored<T>::of(load_global(source + i * stride));
          words.word[w] |= bits << 32 / kWordElements * e;
        }
      }
    }
    return words;
  }
};
