// What a block of simt is in the backward pass where warpgroups multiply float32.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "fragments.cuh"
#include "simt_backward_block.cuh"
#include "split_roles.cuh"
#include "split_tile.cuh"
#include "tile.cuh"
#include "types.cuh"

// Of the provider: with 56 some kernels of one gradient with options spill there, and two gradients need the others.
template <class Config>
constexpr int kGradientProviderRegisters = takes_turns<Config> ? 72 : 56;

template <class Config>
struct SplitGradientBlock : SplitRoles<Config, kGradientProviderRegisters<Config>> {
  using Roles = SplitRoles<Config, kGradientProviderRegisters<Config>>;
  using A = float;
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr int kTerms = Roles::kTerms;
  static constexpr int kRows = Roles::kRows;
  static constexpr int kOthers = kBlockN / 4;
  static constexpr bool kScores = Wanted<Config>::kScores;
  // Whether the others that count may begin within a tile.
  static constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;
  using Sums = PairSums<Config>;
  static constexpr bool kSums = Wanted<Config>::kSums > 0;
  static constexpr bool kTurns = takes_turns<Config>;

  using Pairs = Accumulators<1, kBlockN>;
  using First = Accumulators<1, kHeadDim>;
  using Second = Accumulators<1, kHeadDimV>;
  using PairTile = SharedTile<float, kBlockN>;
  template <int kNumber>
  using OwnTileOf = SplitTile<kTerms, kBlockM, kNumber == 1 ? kHeadDim : kHeadDimV>;
  template <int kNumber>
  using OthersTileOf = SplitTile<kTerms, kBlockN, kNumber == 1 ? kHeadDim : kHeadDimV>;

  static constexpr int kOwn2 = OwnTileOf<1>::kBytes;
  static constexpr int kOthers1 = kOwn2 + (kScores ? OwnTileOf<2>::kBytes : 0);
  static constexpr int kOthers2 = kOthers1 + OthersTileOf<1>::kBytes;
  static constexpr int kPairsOffset = kOthers2 + OthersTileOf<2>::kBytes;
  static constexpr int kWorkOffset = kPairsOffset + (kTurns ? kBlockM * PairTile::kPitch * 4 : 0);
  static constexpr int kSumsOffset = kWorkOffset + kWorkBytes;
  static_assert(kSumsOffset + (kSums ? kBlockM * static_cast<int>(sizeof(Sums)) : 0) == Config::kSharedMemory,
                "backward/variant.py: BackwardVariant.shared_memory");
  static_assert(sizeof(EntryWork<Config>) <= kWorkBytes, "an entry has its place");

  unsigned shared = shared_address(shared_memory());

  template <int kNumber>
  __device__ __forceinline__ OwnTileOf<kNumber> own() const {
    return {shared + (kNumber == 1 ? 0 : kOwn2)};
  }
  template <int kNumber>
  __device__ __forceinline__ OthersTileOf<kNumber> others() const {
    return {shared + (kNumber == 1 ? kOthers1 : kOthers2)};
  }
  __device__ __forceinline__ PairTile pairs() const {
    return {reinterpret_cast<float*>(shared_memory() + kPairsOffset)};
  }
  __device__ __forceinline__ EntryWork<Config>& work() const {
    return *reinterpret_cast<EntryWork<Config>*>(shared_memory() + kWorkOffset);
  }
  // The sums of an own row; only its first lane touches them.
  __device__ __forceinline__ Sums* sums_of(int row) const {
    return reinterpret_cast<Sums*>(shared_memory() + kSumsOffset) + row;
  }
  static __device__ __forceinline__ long long tile_of(long long other) { return tile_of_others<kBlockN>(other); }
};
