// What a block of simt is in the backward pass: where its threads' parts of tiles lie, and its shared memory.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "schedule.cuh"
#include "score.cuh"
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

template <class Config>
struct GradientBlock {
  using A = typename Config::Accumulate;
  static constexpr int kBlockM = Config::kBlockM;
  static constexpr int kBlockN = Config::kBlockN;
  static constexpr int kThreadsM = Config::kThreadsM;
  static constexpr int kThreadsN = Config::kThreadsN;
  static constexpr int kThreads = kThreadsM * kThreadsN;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kHeadDimV = Config::kHeadDimV;
  static constexpr int kChunkD = Config::kChunkD;
  static constexpr int kChunkN = Config::kChunkN;
  static constexpr int kVector = Vector<A>::kSize;
  static constexpr int kRows = kBlockM / kThreadsM;
  static constexpr int kOthers = kBlockN / kThreadsN;
  static constexpr int kWidest = kHeadDim > kHeadDimV ? kHeadDim : kHeadDimV;
  static constexpr bool kResident = kWidest <= kResidentColumns;
  static constexpr bool kScores = Wanted<Config>::kScores;
  // Whether the others that count may begin within a tile.
  static constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;
  using Sums = PairSums<Config>;
  static constexpr bool kSums = Wanted<Config>::kSums > 0;

  using Pairs = RegisterTile<A, kRows, kOthers>;
  using First = RegisterTile<A, kRows, kHeadDim / kThreadsN>;
  using Second = RegisterTile<A, kRows, kHeadDimV / kThreadsN>;
  using PairTile = SharedTile<A, kBlockN>;
  using ColumnTile = SharedTile<A, kChunkD>;  // all rows of a chunk of columns
  template <int kColumns>
  using OwnShared = SharedTile<A, kResident ? kColumns : kChunkD>;

  static constexpr int kOwn1 = kBlockM * OwnShared<kHeadDim>::kPitch;
  static constexpr int kOwn2 = kResident ? kBlockM * OwnShared<kHeadDimV>::kPitch : 0;
  static constexpr int kStageColumns = kBlockN * ColumnTile::kPitch;
  static constexpr int kStageRows = kChunkN * SharedTile<A, kWidest>::kPitch;
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
  int thread_m;
  int thread_n;

  __device__ __forceinline__ GradientBlock()
      : shared(reinterpret_cast<A*>(shared_memory())),
        thread_m(threadIdx.x / kThreadsN),
        thread_n(threadIdx.x % kThreadsN) {}

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

  // Where the tile of others begins that one lies in: which form a tile depends on nothing else.
  static __device__ __forceinline__ long long tile_of(long long other) {
    static_assert((kBlockN & (kBlockN - 1)) == 0, "a power of two");
    return other & -static_cast<long long>(kBlockN);
  }

  __device__ __forceinline__ int row_of(int r) const { return thread_m + r * kThreadsM; }
  __device__ __forceinline__ int other_of(int j) const { return thread_n + j * kThreadsN; }

  // The columns that a thread has of kColumns x kThreadsN: pieces that it reads at once, kThreadsN apart.
  template <int kColumns>
  static constexpr int kPack = kColumns < kVector ? kColumns : kVector;
  template <int kColumns>
  __device__ __forceinline__ int column_of(int c) const {
    constexpr int pack = kPack<kColumns>;
    return (c / pack * kThreadsN + thread_n) * pack + c % pack;
  }

  // The thread's elements of the tile of pairs.
  __device__ __forceinline__ void write_pairs(Pairs& X) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kOthers; ++j) *pairs().at(row_of(r), other_of(j)) = X(r, j);
    }
  }

  // X += own[:, column : column + kChunkD] others^T for the chunk of others in the stage.
  template <class Own>
  __device__ __forceinline__ void product_of_columns(const Own& own, int column, Pairs& X) const {
    const ColumnTile others = {stage()};
#pragma unroll 1
    for (int x = 0; x < kChunkD; x += kVector) {
      Pack<A, kVector> y[kOthers];
#pragma unroll
      for (int j = 0; j < kOthers; ++j) y[j] = others.template read<kVector>(other_of(j), x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Pack<A, kVector> o = own.template read<kVector>(row_of(r), column + x);
#pragma unroll
        for (int j = 0; j < kOthers; ++j) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            X(r, j) = multiply_add(o.value[e], y[j].value[e], X(r, j));
          }
        }
      }
    }
  }

  // G += pairs[:, other : other + kChunkN] others for the chunk of others in the stage.
  template <class Gradient>
  __device__ __forceinline__ void product_of_rows(int other, Gradient& G) const {
    constexpr int kColumns = Gradient::kColumns;
    constexpr int pack = kPack<kColumns>;
    const SharedTile<A, kColumns * kThreadsN> others = {stage()};
#pragma unroll 1
    for (int j = 0; j < kChunkN; j += kVector) {
      Pack<A, kVector> weight[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        weight[r] = pairs().template read<kVector>(row_of(r), other + j);
      }
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int c = 0; c < kColumns; c += pack) {
          const Pack<A, pack> y = others.template read<pack>(j + e, column_of<kColumns>(c));
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int x = 0; x < pack; ++x) {
              G(r, c + x) = multiply_add(weight[r].value[e], y.value[x], G(r, c + x));
            }
          }
        }
      }
    }
  }
};
