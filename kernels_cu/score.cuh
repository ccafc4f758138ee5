// What happens to a score on its way from q k^T to the softmax: scale, softcap, bias and ALiBi. Which
// pairs are hidden is apart from it.
#pragma once

#include "params.cuh"
#include "schedule.cuh"
#include "types.cuh"

// The type arguments of calls without these arrays.
struct NoBias {};
struct NoSlopes {};
struct NoSinks {};

template <class T>
constexpr bool is_given = true;
template <>
constexpr bool is_given<NoBias> = false;
template <>
constexpr bool is_given<NoSlopes> = false;
template <>
constexpr bool is_given<NoSinks> = false;

// The one number that an array has for a head: its slope or its sink. 0 if there is no such array.
template <class A, class T>
__device__ __forceinline__ A number_of_head(const Operand& operand, const Tile& tile) {
  if constexpr (is_given<T>) {
    return Convert<A>::from(load_global(entry_of<const T>(operand, tile, tile.head)));
  } else {
    return A(0);
  }
}

// A score, and its derivative with respect to what it would be without a cap.
template <class A>
struct DerivedScore {
  A score;
  A derivative;
};

template <class Config>
struct Score {
  using A = typename Config::Accumulate;
  static constexpr bool kBias = is_given<typename Config::Bias>;
  static constexpr bool kAlibi = is_given<typename Config::Slopes>;
  // Whether more than a factor makes the score of the product, so that it is to be made at once.
  static constexpr bool kTerms = kBias || kAlibi;
  static constexpr bool kMore = Config::kSoftcap || kTerms;

  A factor;  // of the product; with a cap, of the argument of tanh
  A cap;
  A slope;

  Score() = default;
  __device__ __forceinline__ Score(const Params& params, A slope)
      : factor(static_cast<A>(Config::kSoftcap ? params.scale_softcap : params.scale_s)),
        cap(static_cast<A>(params.softcap)),
        slope(slope) {}

  // The score of a pair whose scaled q times k is `dot`, if there is no more to it.
  __device__ __forceinline__ A operator()(A dot) const {
    static_assert(!kMore, "the score has other terms");
    return dot * factor;
  }

  // The same with all options, of a pair with its element of the bias and its i + offset - j.
  __device__ __forceinline__ A operator()(A dot, A bias, A distance) const {
    return with_terms(Config::kSoftcap ? hyperbolic_tangent(dot * factor) : dot, bias, distance);
  }

  // The same with a cap of what tanh gave.
  __device__ __forceinline__ A with_terms(A x, A bias, A distance) const {
    const A scale = Config::kSoftcap ? cap : factor;
    if (kBias) {
      const A score = multiply_add(x, scale, bias);
      return kAlibi ? multiply_add(-slope, magnitude(distance), score) : score;
    }
    return kAlibi ? multiply_add(x, scale, -slope * magnitude(distance)) : x * scale;
  }

  // The derivative of tanh where it is t.
  static __device__ __forceinline__ A cap_slope(A t) { return multiply_add(-t, t, A(1)); }

  // The score of such a pair with its derivative.
  __device__ __forceinline__ DerivedScore<A> derived(A dot, A bias, A distance) const {
    const A x = Config::kSoftcap ? hyperbolic_tangent(dot * factor) : dot;
    return {with_terms(x, bias, distance), Config::kSoftcap ? cap_slope(x) : A(1)};
  }

  // Chosen, not multiplied, so that a NaN of a hidden pair goes.
  static __device__ __forceinline__ A masked(A score, bool visible) {
    return visible ? score : -Limits<A>::infinity();
  }
};
