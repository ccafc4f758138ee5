// The mask and the bias of a tile in registers, as Accumulators (fragments.cuh) hold the scores: two
// neighbouring keys of a row at a time. They are fetched before the products that they are needed after.
#pragma once

#include "fragments.cuh"
#include "ptx/memory.cuh"
#include "ptx/opaque.cuh"
#include "tile.cuh"
#include "types.cuh"

// Where a thread's elements lie in its block's tile.
struct FragmentPlace {
  int row;       // its first row
  int last_row;  // the last row of the problem that the block has: what lies beyond isn't there to be read
  int column;    // its first column
};

// A word of so many bytes, and the element that its bits are.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = unsigned char;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned;
};

template <class T>
struct FromBits {
  static __device__ __forceinline__ T of(unsigned bits) { return static_cast<T>(bits); }
};
template <>
struct FromBits<float> {
  static __device__ __forceinline__ float of(unsigned bits) { return __uint_as_float(bits); }
};
template <>
struct FromBits<Float16> {
  static __device__ __forceinline__ Float16 of(unsigned bits) {
    return {static_cast<unsigned short>(bits)};
  }
};
template <>
struct FromBits<BFloat16> {
  static __device__ __forceinline__ BFloat16 of(unsigned bits) {
    return {static_cast<unsigned short>(bits)};
  }
};

// Two neighbours as they came from memory, so that nothing waits for them before they are used: in one
// register, of four bytes in two. Elements of eight bytes are converted at once, for want of registers.
template <class T, int kBytes = sizeof(T)>
struct Neighbours {
  using Word = typename WordOf<kBytes>::Type;
  using TwoWords = typename WordOf<2 * kBytes>::Type;
  unsigned bits;

  __device__ __forceinline__ void load_both(const T* source) {
    bits = load_global(reinterpret_cast<const TwoWords*>(source));
  }
  // The first `count` of them, and zeros.
  __device__ __forceinline__ void load(const T* source, long long stride, int count) {
    bits = 0;
    if (count > 0) bits = load_global(reinterpret_cast<const Word*>(source));
    if (count > 1) {
      bits |= static_cast<unsigned>(load_global(reinterpret_cast<const Word*>(source + stride)))
              << 8 * kBytes;
    }
  }
  __device__ __forceinline__ float value(int i) const {
    return to_float(FromBits<T>::of(bits >> 8 * kBytes * i));
  }
};

template <class T>
struct Neighbours<T, 4> {
  Pack<T, 2> pair;

  __device__ __forceinline__ void load_both(const T* source) {
    pair = load_global(reinterpret_cast<const Pack<T, 2>*>(source));
  }
  __device__ __forceinline__ void load(const T* source, long long stride, int count) {
    pair = {};
    if (count > 0) pair.value[0] = load_global(source);
    if (count > 1) pair.value[1] = load_global(source + stride);
  }
  __device__ __forceinline__ float value(int i) const { return to_float(pair.value[i]); }
};

template <class T>
struct Neighbours<T, 8> {
  float number[2];

  __device__ __forceinline__ void load_both(const T* source) {
    const Pack<T, 2> pair = load_global(reinterpret_cast<const Pack<T, 2>*>(source));
    number[0] = to_float(pair.value[0]);
    number[1] = to_float(pair.value[1]);
  }
  __device__ __forceinline__ void load(const T* source, long long stride, int count) {
    number[0] = count > 0 ? to_float(load_global(source)) : 0.0f;
    number[1] = count > 1 ? to_float(load_global(source + stride)) : 0.0f;
  }
  __device__ __forceinline__ float value(int i) const { return number[i]; }
};

// A thread's elements of a tile whose scores are `Scores`; with kAlongRows false those of one row, which
// all rows share.
template <class T, class Scores, bool kAlongRows>
struct ScoreFragment {
  static constexpr int kRows = kAlongRows ? Scores::kRows : 1;
  static constexpr int kPairs = Scores::kColumns / 2;
  Neighbours<T> pair[kRows][kPairs];

  // From an array that begins at the block's first row and the tile's first key; of the keys there are
  // `keys`. `paired`: neighbours may be loaded together.
  __device__ __forceinline__ void fetch(const Matrix<T>& array, const FragmentPlace& place, int keys,
                                        bool paired) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = minimum(place.row + Scores::row_of(0, r), place.last_row);
      const T* source =
          array.data + row * array.row_stride + place.column * array.column_stride;
      if (paired && keys >= 4 * Scores::kColumns) {
#pragma unroll
        for (int c = 0; c < kPairs; ++c) pair[r][c].load_both(source + Scores::column_of(0, 2 * c));
      } else {
        const int count = keys - place.column;
        const long long step = opaque(Scores::column_of(0, 2) * array.column_stride);
#pragma unroll
        for (int c = 0; c < kPairs; ++c) {
          pair[r][c].load(source, array.column_stride, count - Scores::column_of(0, 2 * c));
          // Opaque, or the addresses of all elements take registers.
          source = opaque(source + step);
        }
      }
    }
  }

  __device__ __forceinline__ float value(int r, int c) const {
    return pair[kAlongRows ? r : 0][c / 2].value(c % 2);
  }
};

// Whether a thread's elements of a mask are True: a byte each.
template <class Pairs>
struct MaskFragment {
  static constexpr int kWords = Pairs::kPairs / 2;
  unsigned word[Pairs::kRows][kWords];

  __device__ __forceinline__ void pack(const Pairs& pairs) {
#pragma unroll
    for (int r = 0; r < Pairs::kRows; ++r) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        word[r][w] = pairs.pair[r][2 * w].bits | pairs.pair[r][2 * w + 1].bits << 16;
      }
    }
  }

  __device__ __forceinline__ bool any() const {
    unsigned any = 0;
#pragma unroll
    for (int r = 0; r < Pairs::kRows; ++r) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) any |= word[r][w];
    }
    return any != 0;
  }

  __device__ __forceinline__ bool operator()(int r, int c) const {
    return (word[Pairs::kRows > 1 ? r : 0][c / 4] >> 8 * (c % 4) & 0xffu) != 0;
  }
};
