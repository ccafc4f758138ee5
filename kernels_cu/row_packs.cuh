// Rows in packs of 16 bytes, and their way between global memory and registers. Pack i of a tile belongs
// to thread i of those that share the row, however the row lies in memory: so no bit of a result depends
// on strides or alignment.
#pragma once

#include "ptx/memory.cuh"
#include "ptx/opaque.cuh"
#include "ptx/pack.cuh"
#include "ptx/shared.cuh"
#include "row_pieces.cuh"
#include "softmax_params.cuh"
#include "tile.cuh"
#include "types.cuh"

constexpr int kWarpLanes = 32;
// What the threads of a row exchange in reductions comes first in shared memory: two numbers a warp.
constexpr int kScratchBytes = 256;

// The elements of a pack in four registers; 16-bit elements of their own would take eight.
template <class T>
struct Elements {
  static constexpr int kSize = Vector<T>::kSize;
  static constexpr int kWordBits = 32;
  static constexpr int kBits = 8 * sizeof(T);
  Words4 words;

  __device__ __forceinline__ T get(int e) const { return of_bits(T(), e); }
  __device__ __forceinline__ void set(int e, T value) { put_bits(value, e); }

  // Rounds an element of `of(e)` to each place.
  template <class Of>
  __device__ __forceinline__ void round(const Of& of) {
    if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words.word[i] = pack_pair<T>(of(2 * i), of(2 * i + 1));
    } else {
#pragma unroll
      for (int e = 0; e < kSize; ++e) set(e, of(e));
    }
  }

  // The same elements, which the compiler can't know to have been converted before: it would keep them
  // in registers of their own.
  __device__ __forceinline__ Elements anew() const {
    Elements same;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      same.words.word[i] = static_cast<unsigned>(opaque(static_cast<int>(words.word[i])));
    }
    return same;
  }

 private:
  __device__ __forceinline__ float of_bits(float, int e) const {
    return __uint_as_float(words.word[e]);
  }
  __device__ __forceinline__ double of_bits(double, int e) const {
    const unsigned long long high = words.word[2 * e + 1];
    return __longlong_as_double(static_cast<long long>(high << kWordBits | words.word[2 * e]));
  }
  template <class Half>
  __device__ __forceinline__ Half of_bits(Half, int e) const {
    return {static_cast<unsigned short>(words.word[e / 2] >> (kBits * (e % 2)))};
  }

  __device__ __forceinline__ void put_bits(float value, int e) {
    words.word[e] = __float_as_uint(value);
  }
  __device__ __forceinline__ void put_bits(double value, int e) {
    const unsigned long long bits = static_cast<unsigned long long>(__double_as_longlong(value));
    words.word[2 * e] = static_cast<unsigned>(bits);
    words.word[2 * e + 1] = static_cast<unsigned>(bits >> kWordBits);
  }
  // In the order of the elements: the lower one clears the word.
  template <class Half>
  __device__ __forceinline__ void put_bits(Half value, int e) {
    words.word[e / 2] = e % 2 == 0 ? value.bits : words.word[e / 2] | value.bits << kBits;
  }
};

// The packs of the thread that owns it. Lanes of a group are neighbours in a warp and in a row.
template <class Config>
struct Packs {
  using T = typename Config::Element;
  using A = typename Config::Accumulate;
  static constexpr int kSize = Elements<T>::kSize;
  static constexpr int kCount = Config::kPacks;
  static constexpr int kGroup = Config::kLanes < kWarpLanes ? Config::kLanes : kWarpLanes;
  // Packs that a thread passes through shared memory at a time.
  static constexpr int kExchange = Config::kExchange;
  // Columns of a pack of each thread, and of the packs of each thread.
  static constexpr int kPackColumns = Config::kLanes * kSize;
  static constexpr int kTileColumns = kCount * kPackColumns;
  static_assert(kCount % kExchange == 0, "whole exchanges");

  // Whether a row's elements in registers become its weights, so that each has one exponential: two of
  // them in float64 took longer than the memory does. Of 16 bits the weights would need more registers.
  static constexpr bool kKeepsWeights = sizeof(T) == 8;

  Elements<T> held[kCount];

  // The columns of a piece from `begin` on; -inf, which changes neither maximum nor sum, beyond it.
  __device__ __forceinline__ void load(const Piece<T>& piece, long long step, int begin) {
    if constexpr (Config::kAligned) {
      load_aligned(piece, begin + static_cast<int>(threadIdx.x) % Config::kLanes * kSize);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += kExchange) {
        load_strided(piece, opaque(step), begin + i * kPackColumns + first_column(), i);
      }
    }
  }

  // Stores what `of` makes of each pack.
  template <class Of>
  __device__ __forceinline__ void store(const Piece<T>& piece, long long step, int begin,
                                        const Of& of) const {
    if constexpr (Config::kAligned) {
      store_aligned(piece, begin + static_cast<int>(threadIdx.x) % Config::kLanes * kSize, of);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += kExchange) {
        store_strided(piece, opaque(step), begin + i * kPackColumns + first_column(), i, of);
      }
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % kGroup; }

  // Of the lane's group in a tile.
  static __device__ __forceinline__ int first_column() {
    return (threadIdx.x % Config::kLanes - lane()) * kSize;
  }

  // kGroup packs of the lane's group, kExchange times.
  static __device__ __forceinline__ unsigned char* exchange() {
    return shared_memory() + kScratchBytes +
           (threadIdx.x - lane()) * kExchange * static_cast<int>(sizeof(Words4));
  }

  static __device__ __forceinline__ T minus_infinity() {
    return Round<T>::from(-Limits<A>::infinity());
  }

  __device__ __forceinline__ void load_aligned(const Piece<T>& piece, int column) {
    const T* source = piece.x + column;
    const int left = piece.columns - column;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i * kPackColumns + kSize <= left) {
        held[i].words = load_global(reinterpret_cast<const Words4*>(source + i * kPackColumns));
      } else {
#pragma unroll
        for (int e = 0; e < kSize; ++e) {
          T value = minus_infinity();
          if (i * kPackColumns + e < left) value = load_global(source + i * kPackColumns + e);
          held[i].set(e, value);
        }
      }
    }
  }

  template <class Of>
  __device__ __forceinline__ void store_aligned(const Piece<T>& piece, int column,
                                                const Of& of) const {
    T* target = piece.o + column;
    const int left = piece.columns - column;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Elements<T> result = of(held[i].anew());
      if (i * kPackColumns + kSize <= left) {
        store_global(reinterpret_cast<Words4*>(target + i * kPackColumns), result.words);
      } else {
#pragma unroll
        for (int e = 0; e < kSize; ++e) {
          if (i * kPackColumns + e < left) {
            store_global(target + i * kPackColumns + e, result.get(e));
          }
        }
      }
    }
  }

  // Neighbouring lanes read neighbouring elements, and then exchange them.
  __device__ __forceinline__ void load_strided(const Piece<T>& piece, long long step, int column,
                                               int begin) {
    T* values = reinterpret_cast<T*>(exchange());
    const T* source = piece.x + (column + lane()) * step;
    const int left = piece.columns - column - lane();
    T value[kExchange * kSize];
#pragma unroll
    for (int i = 0; i < kExchange; ++i) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        const bool inside = i * kPackColumns + e * kGroup < left;
        value[i * kSize + e] = inside ? load_global(source) : minus_infinity();
        source += kGroup * step;
      }
      source += (kPackColumns - kGroup * kSize) * step;
    }
#pragma unroll
    for (int j = 0; j < kExchange * kSize; ++j) values[lane() + j * kGroup] = value[j];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kExchange; ++i) {
      held[begin + i].words = reinterpret_cast<const Words4*>(values)[lane() + i * kGroup];
    }
    __syncwarp();
  }

  template <class Of>
  __device__ __forceinline__ void store_strided(const Piece<T>& piece, long long step, int column,
                                                int begin, const Of& of) const {
    T* values = reinterpret_cast<T*>(exchange());
    T* target = piece.o + (column + lane()) * step;
    const int left = piece.columns - column - lane();
#pragma unroll
    for (int i = 0; i < kExchange; ++i) {
      reinterpret_cast<Words4*>(values)[lane() + i * kGroup] = of(held[begin + i].anew()).words;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kExchange; ++i) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        if (i * kPackColumns + e * kGroup < left) {
          store_global(target, values[lane() + (i * kSize + e) * kGroup]);
        }
        target += kGroup * step;
      }
      target += (kPackColumns - kGroup * kSize) * step;
    }
    __syncwarp();
  }
};
