// What a pair of a row and a key gives to the gradients, and which of the two is the block's own. Every
// kernel of the backward pass is written once for both sides:
//
//                own          others
//   of rows      q, dO        k, v       dq = sum over keys of dx k
//   of keys      k, v         q, dO      dk = sum over rows of dx q, dv = sum over rows of P dO
//
// The product of the first two of a side makes the score, that of the second two dP.
#pragma once

#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "mask.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

// Others that are summed one after the other, before their sum is added to that of all: one sum of thousands
// of terms loses as many roundings. A multiple of every tile's kBlockN.
constexpr int kSpan = 256;

// What is wanted of a launch.
template <class Config>
struct Wanted {
  static constexpr int kSums = Config::kBiasSums + Config::kSlopeSums + Config::kScaleSums;
  // Whether more than P, for which dP is needed.
  static constexpr bool kScores = Config::kFirst || Config::kPairs || kSums > 0;
  static_assert(!Config::kSecond || Config::kOfKeys, "rows have one gradient");
};

// The rows or keys from begin up to end.
struct Range {
  long long begin;
  long long end;
};

// The operands of an entry, by the side that they are on; the first of a side have number 1. They are seen
// from row 0 and column 0 on.
template <class Config>
struct Sides {
  static constexpr bool kOfKeys = Config::kOfKeys;
  template <int kNumber>
  using OfRows = typename Either<kNumber == 1, typename Config::QType, typename Config::OType>::Type;
  template <int kNumber>
  using OfKeys = typename Either<kNumber == 1, typename Config::KType, typename Config::VType>::Type;
  template <int kNumber>
  using Own = typename Either<kOfKeys, OfKeys<kNumber>, OfRows<kNumber>>::Type;
  template <int kNumber>
  using Others = typename Either<kOfKeys, OfRows<kNumber>, OfKeys<kNumber>>::Type;

  const OfRows<1>* q;
  const OfKeys<1>* k;
  const OfKeys<2>* v;
  const OfRows<2>* d_o;

  static __device__ __forceinline__ Sides of(const BackwardParams& params, const Tile& entry) {
    const Params& forward = params.forward;
    const long long kv_head = entry.head / forward.group;
    return {entry_of<const OfRows<1>>(forward.q, entry, entry.head),
            entry_of<const OfKeys<1>>(forward.k, entry, kv_head),
            entry_of<const OfKeys<2>>(forward.v, entry, kv_head),
            entry_of<const OfRows<2>>(params.d_o, entry, entry.head)};
  }

  template <int kNumber>
  __device__ __forceinline__ Matrix<Own<kNumber>> own(const BackwardParams& params) const {
    return side<kNumber, kOfKeys>(params);
  }
  template <int kNumber>
  __device__ __forceinline__ Matrix<Others<kNumber>> others(const BackwardParams& params) const {
    return side<kNumber, !kOfKeys>(params);
  }

  template <int kNumber>
  static __device__ __forceinline__ long long columns(const BackwardParams& params) {
    return kNumber == 1 ? params.forward.d : params.forward.p;
  }

 private:
  template <int kNumber, bool kKeys>
  __device__ __forceinline__ auto side(const BackwardParams& params) const {
    if constexpr (kKeys && kNumber == 1) {
      return matrix(k, params.forward.k);
    } else if constexpr (kKeys) {
      return matrix(v, params.forward.v);
    } else if constexpr (kNumber == 1) {
      return matrix(q, params.forward.q);
    } else {
      return matrix(d_o, params.d_o);
    }
  }

  template <class T>
  static __device__ __forceinline__ Matrix<T> matrix(const T* data, const Operand& operand) {
    return {data, operand.row, operand.column};
  }
};

// Of a tile's own those that exist in an entry; nothing may be read of the rest.
template <class Config>
__device__ __forceinline__ Range own_of(const OwnTile& tile, const Tile& entry) {
  return {tile.begin,
          minimum(tile.end, Config::kOfKeys ? entry.extent.keys : entry.extent.rows)};
}

// The others that see one of a tile's own, or are seen; of keys those of the tile's chunk. A range without
// any ends where it begins.
template <class Config>
__device__ __forceinline__ Range others_of(const BackwardParams& params, const OwnTile& tile,
                                           const Tile& entry) {
  const Mask<Config> mask = {params.forward, entry.extent};
  if constexpr (Config::kOfKeys) {
    const RowRange rows = mask.rows_of(tile.begin, tile.end);
    return {minimum(rows.begin, rows.end), rows.end};
  } else {
    const KeyRange keys = mask.keys_of(tile.begin, tile.end);
    const long long begin = maximum(keys.begin, tile.chunk.begin);
    return {begin, maximum(minimum(keys.end, tile.chunk.end), begin)};
  }
}

// dy is the gradient of a pair's score, dx that of the score without its cap.
template <class A>
struct PairGradient {
  A P = A(0);
  A dy = A(0);
  A dx = A(0);
};

// Of the product `dot` of scaled q and k. Zeros where the pair is hidden, or P is 0, are chosen: dot and dP may
// be anything there.
template <class Config, class A>
__device__ __forceinline__ PairGradient<A> pair_gradient(const Score<Config>& score, A dot, A dP,
                                                         A bias, A distance,
                                                         const Statistics<A>& of_row,
                                                         bool visible) {
  PairGradient<A> pair;
  const DerivedScore<A> y = score.derived(dot, bias, distance);
  // By rounding a score may be above lse; of large ones so far that its exponential overflows.
  const A below = y.score - of_row.lse;
  pair.P = visible ? exponential(below > A(0) ? A(0) : below) : A(0);
  if (Wanted<Config>::kScores && pair.P != A(0)) {
    pair.dy = pair.P * (dP - of_row.delta);
    pair.dx = pair.dy * y.derivative;
  }
  return pair;
}

// A thread's share of an own row's or key's sums.
template <class Config>
struct PairSums {
  using A = typename Config::Accumulate;
  A bias = A(0);
  A slope = A(0);
  A scale = A(0);

  __device__ __forceinline__ void add(const PairGradient<A>& pair, A dot, A distance) {
    if (Config::kBiasSums) bias += pair.dy;
    if (Config::kSlopeSums) slope = multiply_add(-pair.dy, magnitude(distance), slope);
    if (Config::kScaleSums && pair.P != A(0)) scale = multiply_add(pair.dx, dot, scale);
  }

  __device__ __forceinline__ PairSums& operator+=(const PairSums& other) {
    bias += other.bias;
    slope += other.slope;
    scale += other.scale;
    return *this;
  }

  // Of neighbouring lanes that share an own row or key.
  template <int kLanes>
  __device__ __forceinline__ PairSums over_lanes() const {
    PairSums sums;
    if (Config::kBiasSums) sums.bias = lanes_sum<A, kLanes>(bias);
    if (Config::kSlopeSums) sums.slope = lanes_sum<A, kLanes>(slope);
    if (Config::kScaleSums) sums.scale = lanes_sum<A, kLanes>(scale);
    return sums;
  }

  // Writes the sums of the own row or key of this index.
  __device__ __forceinline__ void store(const BackwardParams& params, const Tile& entry,
                                        long long index) const {
    if (Config::kBiasSums) store_to(params.bias_sums, entry, index, bias);
    if (Config::kSlopeSums) store_to(params.slope_sums, entry, index, slope);
    // The scale's factor in q is a power of two.
    if (Config::kScaleSums) {
      store_to(params.scale_sums, entry, index, scale / static_cast<A>(params.forward.scale_q));
    }
  }

 private:
  static __device__ __forceinline__ void store_to(const Operand& sums, const Tile& entry,
                                                  long long index, A sum) {
    store_global(entry_of<A>(sums, entry, entry.head) + index * sums.row, sum);
  }
};

// Adds the gradient of a pair to those of the entries before.
template <class Config, class A>
__device__ __forceinline__ void add_pair(typename Config::DBias* target, A dy) {
  using DBias = typename Config::DBias;
  store_global(target, Round<DBias>::from(Convert<A>::from(load_global(target)) + dy));
}
