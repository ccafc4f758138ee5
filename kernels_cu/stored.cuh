// What an element of global memory is in shared memory: 16-bit and 32-bit floats and bytes stay as they
// are, so that cp.async can bring them; float64 and integers become float32 on their way.
#pragma once

#include "ptx/shared.cuh"
#include "types.cuh"

template <class T>
struct Stored {
  using Type = unsigned;
  static constexpr bool kSame = false;
  static __device__ __forceinline__ Type of(T value) { return __float_as_uint(to_float(value)); }
};

template <>
struct Stored<float> {
  using Type = unsigned;
  static constexpr bool kSame = true;
  static __device__ __forceinline__ Type of(float value) { return __float_as_uint(value); }
};

template <>
struct Stored<Float16> {
  using Type = unsigned short;
  static constexpr bool kSame = true;
  static __device__ __forceinline__ Type of(Float16 value) { return value.bits; }
};

template <>
struct Stored<BFloat16> {
  using Type = unsigned short;
  static constexpr bool kSame = true;
  static __device__ __forceinline__ Type of(BFloat16 value) { return value.bits; }
};

template <>
struct Stored<unsigned char> {
  using Type = unsigned char;
  static constexpr bool kSame = true;
  static __device__ __forceinline__ Type of(unsigned char value) { return value; }
};

// Two neighbours, read from a multiple of their size, or two elements from anywhere.
template <class T>
struct StoredPair {
  Words2 words;

  __device__ __forceinline__ void load(unsigned address) { words = load_shared<Words2>(address); }
  __device__ __forceinline__ void load(unsigned first, unsigned second) {
    words = {{load_shared<unsigned>(first), load_shared<unsigned>(second)}};
  }
  __device__ __forceinline__ float value(int i) const { return __uint_as_float(words.word[i]); }
};

template <class T>
struct StoredPairOf16Bits {
  unsigned bits;

  __device__ __forceinline__ void load(unsigned address) { bits = load_shared<unsigned>(address); }
  __device__ __forceinline__ void load(unsigned first, unsigned second) {
    bits = load_shared<unsigned short>(first) |
           static_cast<unsigned>(load_shared<unsigned short>(second)) << 16;
  }
  __device__ __forceinline__ float value(int i) const {
    return to_float(T{static_cast<unsigned short>(bits >> 16 * i)});
  }
};

template <>
struct StoredPair<Float16> : StoredPairOf16Bits<Float16> {};
template <>
struct StoredPair<BFloat16> : StoredPairOf16Bits<BFloat16> {};

template <>
struct StoredPair<unsigned char> {
  unsigned bits;

  __device__ __forceinline__ void load(unsigned address) {
    bits = load_shared<unsigned short>(address);
  }
  __device__ __forceinline__ void load(unsigned first, unsigned second) {
    bits = load_shared<unsigned char>(first) |
           static_cast<unsigned>(load_shared<unsigned char>(second)) << 8;
  }
  __device__ __forceinline__ bool given(int i) const { return (bits >> 8 * i & 0xffu) != 0; }
  __device__ __forceinline__ float value(int i) const {
    return static_cast<float>(bits >> 8 * i & 0xffu);
  }
};
