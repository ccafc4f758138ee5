// Maximum m and sum l of a row whose columns are spread over threads, and of a row in parts.
#pragma once

#include "ptx/memory.cuh"
#include "row_packs.cuh"
#include "softmax.cuh"
#include "types.cuh"

// l is the sum of exp(x - m); -inf and 0 before the first column.
template <class A>
struct Statistics {
  A m = -Limits<A>::infinity();
  A l = A(0);

  // Joins disjoint columns: each sum is made relative to the new maximum, once.
  __device__ __forceinline__ void join(const Statistics& other) {
    const A m_new = maximum(m, other.m);
    const A reference = reference_of(m_new);
    l = l * exponential(m - reference) + other.l * exponential(other.m - reference);
    m = m_new;
  }
};

// Over the kLanes threads that share a row: lanes of one warp, or all threads of the block. All of them
// get the result, and its bits depend on what each brought alone.
template <class A, int kLanes>
struct RowReduction {
  static constexpr bool kInWarp = kLanes <= kWarpLanes;
  static constexpr int kInner = kInWarp ? kLanes : kWarpLanes;
  static constexpr int kWarps = kInWarp ? 1 : kLanes / kWarpLanes;
  static_assert(2 * kWarps * sizeof(A) <= kScratchBytes, "the scratch memory holds all warps");

  static __device__ __forceinline__ A row_maximum(A value) {
    value = lanes_maximum<A, kInner>(value);
    if constexpr (!kInWarp) value = lanes_maximum<A, kWarps>(of_warps(value, 0));
    return value;
  }

  static __device__ __forceinline__ A row_sum(A value) {
    value = lanes_sum<A, kInner>(value);
    if constexpr (!kInWarp) value = lanes_sum<A, kWarps>(of_warps(value, 1));
    return value;
  }

  static __device__ __forceinline__ Statistics<A> join(Statistics<A> mine) {
    mine = join_lanes<kInner>(mine);
    if constexpr (!kInWarp) {
      A* numbers = scratch();
      if (threadIdx.x % kWarpLanes == 0) {
        numbers[threadIdx.x / kWarpLanes] = mine.m;
        numbers[kWarps + threadIdx.x / kWarpLanes] = mine.l;
      }
      __syncthreads();
      const int warp = threadIdx.x % kWarps;
      mine.m = numbers[warp];
      mine.l = numbers[kWarps + warp];
      mine = join_lanes<kWarps>(mine);
    }
    return mine;
  }

  // Before the scratch memory is used again.
  static __device__ __forceinline__ void release() {
    if constexpr (!kInWarp) __syncthreads();
  }

 private:
  static __device__ __forceinline__ A* scratch() {
    return reinterpret_cast<A*>(shared_memory());
  }

  // Gives lane i of every warp the number of warp i, modulo kWarps.
  static __device__ __forceinline__ A of_warps(A value, int slot) {
    A* numbers = scratch() + slot * kWarps;
    if (threadIdx.x % kWarpLanes == 0) numbers[threadIdx.x / kWarpLanes] = value;
    __syncthreads();
    return numbers[threadIdx.x % kWarps];
  }

  template <int kCount>
  static __device__ __forceinline__ Statistics<A> join_lanes(Statistics<A> mine) {
    const A m = lanes_maximum<A, kCount>(mine.m);
    mine.l = lanes_sum<A, kCount>(mine.l * exponential(mine.m - reference_of(m)));
    mine.m = m;
    return mine;
  }
};

// Where a row's parts leave their maxima and sums for the next launch.
template <class A>
struct PartStatistics {
  A* m;  // of the row's first part
  A* l;
  int parts;

  template <class T>
  __device__ __forceinline__ PartStatistics(const SoftmaxParams& params, const Piece<T>& piece)
      : m(static_cast<A*>(params.m.data) + piece.row * params.parts),
        l(static_cast<A*>(params.l.data) + piece.row * params.parts),
        parts(static_cast<int>(params.parts)) {}
};

// What the last pass does with a row's statistics: exp(x - m) / l, and 0 for a row of nothing but -inf.
template <class A>
struct Normaliser {
  A reference;
  A inverse;

  // l is at least 1, or NaN, in any other row.
  __device__ __forceinline__ explicit Normaliser(const Statistics<A>& row)
      : reference(reference_of(row.m)), inverse(row.l == A(0) ? A(0) : A(1) / row.l) {}

  template <class T>
  __device__ __forceinline__ Elements<T> operator()(const Elements<T>& x) const {
    Elements<T> P;
    P.round([&](int e) {
      return exponential(Convert<A>::from(x.get(e)) - reference) * inverse;
    });
    return P;
  }
};

// The same where the elements have become weights exp(x - m) already.
template <class Config>
__device__ __forceinline__ void normalise_weights(
    Packs<Config>& packs, typename Config::Accumulate m,
    const Normaliser<typename Config::Accumulate>& row) {
  const auto factor = exponential(m - row.reference) * row.inverse;
#pragma unroll
  for (int i = 0; i < Config::kPacks; ++i) {
    packs.held[i].round([&](int e) { return packs.held[i].get(e) * factor; });
  }
}

// What is stored of packs that hold the result.
struct AsItIs {
  template <class T>
  __device__ __forceinline__ const Elements<T>& operator()(const Elements<T>& P) const {
    return P;
  }
};

// Calls use(packs, begin) for each tile of a piece, whose first one is loaded already. The next one is on
// its way meanwhile.
template <class Config, class Use>
__device__ __forceinline__ void for_each_tile(const SoftmaxParams& params,
                                              const Piece<typename Config::Element>& piece,
                                              Packs<Config>& packs, const Use& use) {
  for (int begin = 0; begin < piece.columns; begin += Packs<Config>::kTileColumns) {
    Packs<Config> next = packs;
    if (begin + Packs<Config>::kTileColumns < piece.columns) {
      next.load(piece, params.x.column, begin + Packs<Config>::kTileColumns);
    }
    use(packs, begin);
    packs = next;
  }
}

// The last pass over a piece, from memory to memory. `row` finds the row's statistics, while the first
// tile is on its way.
template <class Config, class Row>
__device__ __forceinline__ void write_piece(const SoftmaxParams& params,
                                            const Piece<typename Config::Element>& piece,
                                            const Row& row) {
  Packs<Config> first;
  first.load(piece, params.x.column, 0);
  const Normaliser<typename Config::Accumulate> normalise(row());
  for_each_tile<Config>(params, piece, first, [&](const Packs<Config>& packs, int begin) {
    packs.store(piece, params.o.column, begin, normalise);
  });
}
