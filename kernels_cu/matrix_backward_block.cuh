// What a block of simt is in the backward pass where warps multiply on the tensor cores.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "matrix_threads.cuh"
#include "simt_backward_block.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class Config>
struct MatrixGradientBlock : ThreadsOf<Config> {
  using A = typename Config::Accumulate;
  using Threads = ThreadsOf<Config>;
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kThreads = Config::kThreadsM * Config::kThreadsN;
  static constexpr int kThreadsN = Config::kThreadsN;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr int kRows = kBlockM / Config::kThreadsM;
  static constexpr int kOthers = kBlockN / kThreadsN;
  static constexpr bool kScores = Wanted<Config>::kScores;
  // Whether the others that count may begin within a tile.
  static constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;
  using Sums = PairSums<Config>;
  static constexpr bool kSums = Wanted<Config>::kSums > 0;
  static constexpr bool kTurns = takes_turns<Config>;

  using Pairs = RegisterTile<A, kRows, kOthers>;
  using First = RegisterTile<A, kRows, kHeadDim / kThreadsN>;
  using Second = RegisterTile<A, kRows, kHeadDimV / kThreadsN>;
  using PairTile = SharedTile<A, kBlockN, kMatrixPad>;
  // Of own and others' operands of number 1 and 2.
  template <int kNumber>
  using Operand = SharedTile<A, kNumber == 1 ? kHeadDim : kHeadDimV, kMatrixPad>;

  static constexpr int kOwn2 = kBlockM * Operand<1>::kPitch;
  static constexpr int kOthers1 = kOwn2 + (kScores ? kBlockM * Operand<2>::kPitch : 0);
  static constexpr int kOthers2 = kOthers1 + kBlockN * Operand<1>::kPitch;
  static constexpr int kPairs = kOthers2 + kBlockN * Operand<2>::kPitch;
  static constexpr int kWorkOffset = (kPairs + kBlockM * PairTile::kPitch) * static_cast<int>(sizeof(A));
  static_assert(kWorkOffset + kWorkBytes + (kSums ? kBlockM * static_cast<int>(sizeof(Sums)) : 0) ==
                    Config::kSharedMemory,
                "backward/variant.py: BackwardVariant.shared_memory");
  static_assert(sizeof(EntryWork<Config>) <= kWorkBytes, "an entry has its place");
  static_assert(kThreadsN == 4 || !kSums, "sums of a row are made in one warp");

  A* shared;

  __device__ __forceinline__ MatrixGradientBlock() : shared(reinterpret_cast<A*>(shared_memory())) {}

  template <int kNumber>
  __device__ __forceinline__ Operand<kNumber> own() const {
    return {shared + (kNumber == 1 ? 0 : kOwn2)};
  }
  template <int kNumber>
  __device__ __forceinline__ Operand<kNumber> others() const {
    return {shared + (kNumber == 1 ? kOthers1 : kOthers2)};
  }
  __device__ __forceinline__ PairTile pairs() const { return {shared + kPairs}; }
  __device__ __forceinline__ EntryWork<Config>& work() const {
    return *reinterpret_cast<EntryWork<Config>*>(shared_memory() + kWorkOffset);
  }
  // The sums of an own row; only its first lane touches them.
  __device__ __forceinline__ Sums* sums_of(int row) const {
    return reinterpret_cast<Sums*>(shared_memory() + kWorkOffset + kWorkBytes) + row;
  }
  static __device__ __forceinline__ long long tile_of(long long other) { return tile_of_others<kBlockN>(other); }

  // The warps that share rows wait for each other.
  __device__ __forceinline__ void meet_rows() const {
    if constexpr (kThreadsN == 4) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};
