// What a block of simt is in the backward pass: where its threads' parts of tiles lie, and its shared memory.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "simt_threads.cuh"
#include "tile.cuh"
#include "types.cuh"

// Widest own operands that stay in shared memory.
constexpr int kResidentColumns = 64;

// An entry that shares the gradients of a tile, in shared memory.
template <class Config>
struct EntryWork {
  OwnTile tile;
  Tile entry;
  Sides<Config> sides;
  Range own;
  Range others;
  Score<Config> score;
  const Statistics<typename Config::Accumulate>* statistics;
  bool first;  // of those that share the gradients
};
constexpr int kWorkBytes = 320;

// Whether own rows or keys take turns where their pairs need more than products: unrolled, their loads take more
// registers than there are.
template <class Config>
constexpr bool takes_turns =
    ScoreArrays<Config>::kHide || Score<Config>::kMore || Config::kPairs || Wanted<Config>::kSums > 0;

// Where the tile of kOthers others begins that one lies in: which form a tile depends on nothing else.
template <int kOthers>
__device__ __forceinline__ long long tile_of_others(long long other) {
  static_assert((kOthers & (kOthers - 1)) == 0, "a power of two");
  return other & -static_cast<long long>(kOthers);
}

template <class Config>
struct GradientBlock : SimtThreads<typename Config::Accumulate, Config::kThreadsM, Config::kThreadsN> {
  using A = typename Config::Accumulate;
  using Threads = SimtThreads<A, Config::kThreadsM, Config::kThreadsN>;
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kThreadsM = Config::kThreadsM;
  static constexpr int kThreadsN = Config::kThreadsN;
  static constexpr int kThreads = kThreadsM * kThreadsN;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr int kChunkD = Config::kChunkD;
  static constexpr int kChunkN = Config::kChunkN;
  static constexpr int kVector = Threads::kVector;
  static constexpr int kRows = kBlockM / kThreadsM;
  static constexpr int kOthers = kBlockN / kThreadsN;
  static constexpr int kWidest = kHeadDim > kHeadDimV ? kHeadDim : kHeadDimV;
  static constexpr bool kResident = kWidest <= kResidentColumns;
  static constexpr bool kScores = Wanted<Config>::kScores;
  // Whether the others that count may begin within a tile.
  static constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;
  using Sums = PairSums<Config>;
  static constexpr bool kSums = Wanted<Config>::kSums > 0;
  static constexpr bool kTurns = takes_turns<Config>;

  using Pairs = RegisterTile<A, kRows, kOthers>;
  using First = RegisterTile<A, kRows, kHeadDim / kThreadsN>;
  using Second = RegisterTile<A, kRows, kHeadDimV / kThreadsN>;
  using PairTile = SharedTile<A, kBlockN>;
  using ColumnTile = SharedTile<A, kChunkD>;  // all rows of a chunk of columns
  template <int kColumns>
  using RowTile = SharedTile<A, kColumns>;  // all columns of a chunk of rows
  template <int kColumns>
  using OwnShared = SharedTile<A, kResident ? kColumns : kChunkD>;

  static constexpr int kOwn1 = kBlockM * OwnShared<kHeadDim>::kPitch;
  static constexpr int kOwn2 = kResident ? kBlockM * OwnShared<kHeadDimV>::kPitch : 0;
  static constexpr int kStageColumns = kBlockN * ColumnTile::kPitch;
  static constexpr int kStageRows = kChunkN * RowTile<kWidest>::kPitch;
  static constexpr int kStage = kStageColumns > kStageRows ? kStageColumns : kStageRows;
  static_assert((kOwn1 + kOwn2 + kBlockM * PairTile::kPitch + kStage) * sizeof(A) +
                        (kSums ? kBlockM * sizeof(Sums) : 0) + kWorkBytes ==
                    Config::kSharedMemory,
                "backward/variant.py: BackwardVariant.shared_memory");
  static_assert(sizeof(EntryWork<Config>) <= kWorkBytes, "an entry has its place");
  static_assert(32 % kThreadsN == 0, "an own row lies in one warp");
  static_assert(kHeadDim % kChunkD == 0 && kHeadDimV % kChunkD == 0 && kBlockN % kChunkN == 0,
                "chunks tile the tile");
  static_assert(kChunkD % kVector == 0 && kChunkN % kVector == 0, "chunks are read in vectors");

  A* shared;

  __device__ __forceinline__ GradientBlock() : shared(reinterpret_cast<A*>(shared_memory())) {}

  __device__ __forceinline__ OwnShared<kHeadDim> own1() const { return {shared}; }
  __device__ __forceinline__ OwnShared<kHeadDimV> own2() const {
    return {shared + (kResident ? kOwn1 : 0)};
  }
  __device__ __forceinline__ PairTile pairs() const { return {shared + kOwn1 + kOwn2}; }
  __device__ __forceinline__ A* stage() const { return pairs().data + kBlockM * PairTile::kPitch; }
  // What the block is at; it would take two dozen registers.
  __device__ __forceinline__ EntryWork<Config>& work() const {
    return *reinterpret_cast<EntryWork<Config>*>(stage() + kStage);
  }
  // The sums of an own row; only its first lane touches them.
  __device__ __forceinline__ Sums* sums_of(int row) const {
    return reinterpret_cast<Sums*>(shared_memory() + kWorkBytes +
                                   sizeof(A) * (stage() + kStage - shared)) +
           row;
  }

  static __device__ __forceinline__ long long tile_of(long long other) { return tile_of_others<kBlockN>(other); }
};
