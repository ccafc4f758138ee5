// The online softmax (Milakov and Gimelshein, arXiv:1805.02867): running maximum m and running sum l of
// rows whose scores arrive in tiles. A thread holds kRows rows; the columns of a row are spread over
// kLanes neighbouring lanes of a warp.
#pragma once

#include "params.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class A, int kLanes>
__device__ __forceinline__ A lanes_maximum(A value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value = maximum(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  return value;
}

template <class A, int kLanes>
__device__ __forceinline__ A lanes_sum(A value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  return value;
}

// What scores are taken relative to. A row that has seen no key keeps m = -inf, and -inf - -inf would be
// NaN.
template <class A>
__device__ __forceinline__ A reference_of(A m) {
  return m == -Limits<A>::infinity() ? A(0) : m;
}

// How a score below the maximum becomes a weight: scores in natural units, every step rounded once.
template <class A>
struct NaturalWeight {
  A scale;  // of P, a power of two

  __device__ __forceinline__ explicit NaturalWeight(const Params& params)
      : scale(static_cast<A>(params.p_scale)) {}

  __device__ __forceinline__ A operator()(A below) const { return exponential(below) * scale; }
  __device__ __forceinline__ A rescale(A below) const { return exponential(below); }
  __device__ __forceinline__ A natural(A score) const { return score; }
  __device__ __forceinline__ A p_scale() const { return scale; }
};

// The same in one multiply-add and one ex2, for scores in the unit Params::unit. The maximum is subtracted
// first, so that the largest weight is exact however large the scores are.
struct ScaledWeight {
  const Params& params;  // what is needed once isn't held in registers
  float unit_log2;
  float p_exponent;

  __device__ __forceinline__ explicit ScaledWeight(const Params& params)
      : params(params),
        unit_log2(static_cast<float>(params.unit) * 1.4426950408889634f),
        p_exponent(static_cast<float>(exponent_of(static_cast<float>(params.p_scale)))) {}

  __device__ __forceinline__ float operator()(float below) const {
    return exp2_approx(multiply_add(below, unit_log2, p_exponent));
  }
  __device__ __forceinline__ float rescale(float below) const {
    return exp2_approx(below * unit_log2);
  }
  __device__ __forceinline__ float natural(float score) const {
    return score * static_cast<float>(params.unit);
  }
  __device__ __forceinline__ float p_scale() const { return static_cast<float>(params.p_scale); }

 private:
  static __device__ __forceinline__ int exponent_of(float power_of_two) {
    return static_cast<int>(__float_as_uint(power_of_two) >> 23) - 127;
  }
};

template <class A, int kRows, int kLanes, class Weight, bool kSink = false>
struct OnlineSoftmax {
  A m[kRows];  // maximum of the scores so far, -inf before the first visible one
  A l[kRows];  // this lane's share of the sum of p_scale exp(S - m)
  bool keyless[kSink ? kRows : 1];
  Weight weight;

  template <class Source>
  __device__ __forceinline__ explicit OnlineSoftmax(const Source& source) : weight(source) {
    clear();
  }

  // Forgets the tiles so far.
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      m[r] = -Limits<A>::infinity();
      l[r] = A(0);
    }
  }

  // Replaces a tile's scores S(r, c) by P = p_scale exp(S - m) and returns in alpha what the sums so
  // far, O among them, must be multiplied by.
  template <class Tile>
  __device__ __forceinline__ void update(Tile& S, A (&alpha)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      A tile_m = S(r, 0);
#pragma unroll
      for (int c = 1; c < Tile::kColumns; ++c) tile_m = maximum(tile_m, S(r, c));
      const A m_new = maximum(m[r], lanes_maximum<A, kLanes>(tile_m));
      const A reference = reference_of(m_new);
      alpha[r] = weight.rescale(m[r] - reference);
      l[r] *= alpha[r];
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) {
        S(r, c) = weight(S(r, c) - reference);
        l[r] += S(r, c);
      }
      m[r] = m_new;
    }
  }

  // Sums l over the lanes; after the last tile.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) l[r] = lanes_sum<A, kLanes>(l[r]);
  }

  // The same, and then one more logit takes part in every row's sum, an attention sink: it has no value.
  // Returns in alpha what O must be multiplied by. From here on m is in natural units.
  __device__ __forceinline__ void finish(A sink, A (&alpha)[kRows]) {
    static_assert(kSink, "rows remember whether they have seen a key");
    finish();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      keyless[r] = l[r] == A(0);
      const A natural = weight.natural(m[r]);
      m[r] = maximum(natural, sink);
      const A reference = reference_of(m[r]);
      alpha[r] = exponential(natural - reference);
      l[r] = multiply_add(l[r], alpha[r], exponential(sink - reference) * weight.p_scale());
    }
  }

  // Whether a thread's share of the sums is finite: 0 times anything else isn't 0.
  template <class Tile>
  __device__ __forceinline__ bool finite(Tile& O) const {
    A zero = A(0);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      zero = multiply_add(l[r], A(0), zero);
#pragma unroll
      for (int c = 0; c < Tile::kColumns; ++c) zero = multiply_add(O(r, c), A(0), zero);
    }
    return zero == A(0);
  }

  // The same of a row's.
  template <class Tile>
  __device__ __forceinline__ bool finite(int r, Tile& O) const {
    return l[r] * A(0) == A(0) && ::finite(r, O);
  }

  // Whether the row has seen no key: the largest weight is p_scale, and so is l at least, or NaN.
  __device__ __forceinline__ bool empty(int r) const { return kSink ? keyless[r] : l[r] == A(0); }

  // log of the sum of exp(S), -inf of none; p_scale is a power of two, so dividing by it is exact.
  __device__ __forceinline__ A lse(int r) const {
    return (kSink ? m[r] : weight.natural(m[r])) + logarithm(l[r] / weight.p_scale());
  }

  // O of a row from its running sum. The sums can't overflow (p_scale), the quotient and its rounding to
  // OType can where v is the largest number: a mean is never beyond the values that it is of.
  template <class OType>
  __device__ __forceinline__ A output(int r, A sum) const {
    return within<OType>(empty(r) ? A(0) : sum / l[r], sum);
  }

  // The same with 1 / l[r] at hand, for results whose rounding hides the product's.
  template <class OType>
  __device__ __forceinline__ A output(int r, A sum, A inverse) const {
    return within<OType>(empty(r) ? A(0) : sum * inverse, sum);
  }

 private:
  template <class OType>
  static __device__ __forceinline__ A within(A mean, A sum) {
    const A largest = Limits<OType>::largest();
    const bool beyond = magnitude(mean) > largest && magnitude(sum) <= Limits<A>::largest();
    return beyond ? (mean > A(0) ? largest : -largest) : mean;
  }
};
