// What a block of simt is in the forward pass: its threads' parts of tiles, and the tiles in shared memory.
#pragma once

#include "matrix_threads.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "simt_threads.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class Config>
struct SimtBlock : ThreadsOf<Config> {
  using A = typename Config::Accumulate;
  using Threads = ThreadsOf<Config>;
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
  static constexpr int kKeys = kBlockN / kThreadsN;
  static constexpr int kColumns = kHeadDimV / kThreadsN;

  using Scores = RegisterTile<A, kRows, kKeys>;
  using Output = RegisterTile<A, kRows, kColumns>;
  static constexpr bool kSink = is_given<typename Config::Sinks>;
  using Softmax = OnlineSoftmax<A, kRows, kThreadsN, NaturalWeight<A>, kSink>;
  // Whether a warp multiplies on the tensor cores: its threads' rows and columns are then those of fragments.
  static constexpr bool kMatrix = Config::kMatrix;
  static constexpr int kPad = kMatrix ? kMatrixPad : kVector;
  using QTile = SharedTile<A, kHeadDim, kPad>;
  using PTile = SharedTile<A, kBlockN, kPad>;
  using KTile = SharedTile<A, kChunkD, kPad>;
  using VTile = SharedTile<A, kHeadDimV, kMatrix ? kAlternatePad : kPad>;
  using TransferK =
      typename Either<kMatrix, AsyncTransfer<kThreads, kBlockN, KTile>,
                      Transfer<typename Config::KType, kThreads, kBlockN, kChunkD>>::Type;
  using TransferV =
      typename Either<kMatrix, AsyncTransfer<kThreads, kChunkN, VTile>,
                      Transfer<typename Config::VType, kThreads, kChunkN, kHeadDimV>>::Type;
  // Whether P, or products that wait for their rows' turn, go through shared memory.
  static constexpr bool kPairs = !kMatrix || ScoreArrays<Config>::kHide || Score<Config>::kMore;

  static constexpr int kStageK = kBlockN * KTile::kPitch;
  static constexpr int kStageV = kChunkN * VTile::kPitch;
  // On the tensor cores each has its own place, to which copies go while the other one is multiplied.
  static constexpr int kStage = kMatrix ? kStageK + kStageV : kStageK > kStageV ? kStageK : kStageV;
  static constexpr int kPairElements = kPairs ? kBlockM * PTile::kPitch : 0;
  static_assert((kBlockM * QTile::kPitch + kPairElements + kStage) * sizeof(A) == Config::kSharedMemory,
                "select.py: Variant.shared_memory");
  static_assert(32 % kThreadsN == 0, "a row lies in one warp");
  static_assert(kHeadDim % kChunkD == 0 && kBlockN % kChunkN == 0, "chunks tile the tile");
  static_assert(!kMatrix || (kHeadDim == kChunkD && kBlockN == kChunkN), "one chunk each");
  static_assert(kChunkD % kVector == 0 && kChunkN % kVector == 0, "chunks are read in vectors");

  QTile Q;
  PTile P;
  KTile K;
  VTile V;

  __device__ __forceinline__ SimtBlock() {
    A* shared = reinterpret_cast<A*>(shared_memory());
    Q.data = shared;
    P.data = Q.data + kBlockM * QTile::kPitch;
    K.data = P.data + kPairElements;
    V.data = K.data + (kMatrix ? kStageK : 0);
  }

  __device__ __forceinline__ int key_of(int j) const { return this->other_of(j); }

  // Of the j-th key of the stage.
  __device__ __forceinline__ void clear_value(int j) const { clear_row(V, j); }
};
