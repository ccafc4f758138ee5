// Attention with tiled FMA, every element type, d and p to 256.
//
// A block of kThreadsM x kThreadsN threads computes kBlockM rows. Q stays in shared memory; K and V pass
// through one stage, K in chunks of kChunkD columns and V in chunks of kChunkN rows. While a chunk is
// multiplied the next one is loaded into registers: with loads in the open, warps waited for them 64 % of
// the time (float32, d = 64, H200). A thread owns rows thread_m + r kThreadsM, so the lanes of a warp own
// whole rows: the softmax is warp shuffles. P goes through shared memory between the lanes of a warp.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class Config>
struct SimtBlock {
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
  static constexpr int kKeys = kBlockN / kThreadsN;
  static constexpr int kColumns = kHeadDimV / kThreadsN;
  // Columns of V that a thread reads at once; its columns are kPack wide pieces, kThreadsN apart.
  static constexpr int kPack = kColumns < kVector ? kColumns : kVector;

  using Scores = RegisterTile<A, kRows, kKeys>;
  using QTile = SharedTile<A, kHeadDim>;
  using PTile = SharedTile<A, kBlockN>;
  using KTile = SharedTile<A, kChunkD>;
  using VTile = SharedTile<A, kHeadDimV>;

  static constexpr int kStageK = kBlockN * KTile::kPitch;
  static constexpr int kStageV = kChunkN * VTile::kPitch;
  static constexpr int kStage = kStageK > kStageV ? kStageK : kStageV;
  static_assert((kBlockM * (QTile::kPitch + PTile::kPitch) + kStage) * sizeof(A) ==
                    Config::kSharedMemory,
                "select.py: Variant.shared_memory");
  static_assert(32 % kThreadsN == 0, "a row lies in one warp");
  static_assert(kHeadDim % kChunkD == 0 && kBlockN % kChunkN == 0, "chunks tile the tile");
  static_assert(kChunkD % kVector == 0 && kChunkN % kVector == 0, "chunks are read in vectors");

  QTile Q;
  PTile P;
  KTile K;
  VTile V;
  int thread_m;
  int thread_n;

  __device__ __forceinline__ SimtBlock()
      : thread_m(threadIdx.x / kThreadsN), thread_n(threadIdx.x % kThreadsN) {
    A* shared = reinterpret_cast<A*>(shared_memory());
    Q.data = shared;
    P.data = Q.data + kBlockM * QTile::kPitch;
    K.data = P.data + kBlockM * PTile::kPitch;
    V.data = K.data;
  }

  __device__ __forceinline__ int row_of(int r) const { return thread_m + r * kThreadsM; }
  __device__ __forceinline__ int key_of(int j) const { return thread_n + j * kThreadsN; }
  __device__ __forceinline__ int column_of(int c) const {
    return (c / kPack * kThreadsN + thread_n) * kPack + c % kPack;
  }

  // S += Q[:, column : column + kChunkD] K^T for the chunk of K in the stage.
  __device__ __forceinline__ void product_qk(int column, Scores& S) const {
#pragma unroll 1
    for (int x = 0; x < kChunkD; x += kVector) {
      Pack<A, kVector> k[kKeys];
#pragma unroll
      for (int j = 0; j < kKeys; ++j) k[j] = K.template read<kVector>(key_of(j), x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Pack<A, kVector> q = Q.template read<kVector>(row_of(r), column + x);
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            S(r, j) = multiply_add(q.value[e], k[j].value[e], S(r, j));
          }
        }
      }
    }
  }

  // O += P[:, key : key + kChunkN] V for the chunk of V in the stage.
  __device__ __forceinline__ void product_pv(int key, A (&O)[kRows][kColumns]) const {
#pragma unroll 1
    for (int j = 0; j < kChunkN; j += kVector) {
      Pack<A, kVector> p[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) p[r] = P.template read<kVector>(row_of(r), key + j);
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
#pragma unroll
        for (int c = 0; c < kColumns; c += kPack) {
          const Pack<A, kPack> v = V.template read<kPack>(j + e, column_of(c));
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
#pragma unroll
            for (int x = 0; x < kPack; ++x) {
              O[r][c + x] = multiply_add(p[r].value[e], v.value[x], O[r][c + x]);
            }
          }
        }
      }
    }
  }
};

template <class Config>
__device__ __forceinline__ void forward_simt(const Params& params) {
  using A = typename Config::Accumulate;
  using Block = SimtBlock<Config>;
  using OType = typename Config::OType;
  constexpr int kRows = Block::kRows;
  constexpr int kKeys = Block::kKeys;
  constexpr int kColumns = Block::kColumns;
  constexpr int kThreads = Block::kThreads;
  constexpr bool kChunks = Block::kChunkD < Block::kHeadDim;  // K comes in more than one chunk
  const Block block;
  const Score<Config> score(params);
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    const long long kv_head = tile.head / params.group;
    const Matrix<typename Config::QType> q = {
        entry_of<const typename Config::QType>(params.q, tile, tile.head), params.q.row,
        params.q.column};
    const Matrix<typename Config::KType> k = {
        entry_of<const typename Config::KType>(params.k, tile, kv_head), params.k.row,
        params.k.column};
    const Matrix<typename Config::VType> v = {
        entry_of<const typename Config::VType>(params.v, tile, kv_head), params.v.row,
        params.v.column};
    const Mask<Config> mask = {tile.extent};
    const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);

    // The barrier after the last stage has passed, so nobody reads the previous tile's Q any more.
    Transfer<typename Config::QType, kThreads, Block::kBlockM, Block::kHeadDim> next_q;
    next_q.fetch(q, tile.row_begin, minimum(tile.row_end, tile.extent.rows), 0, params.d);
    next_q.store(block.Q, static_cast<A>(params.scale_q));
    Transfer<typename Config::KType, kThreads, Block::kBlockN, Block::kChunkD> next_k;
    Transfer<typename Config::VType, kThreads, Block::kChunkN, Block::kHeadDimV> next_v;
    next_k.fetch(k, keys.begin, keys.end, 0, params.d);
    OnlineSoftmax<A, kRows, Block::kThreadsN, NaturalWeight<A>> softmax(params);
    A O[kRows][kColumns] = {};
    for (long long key = keys.begin; key < keys.end; key += Block::kBlockN) {
      typename Block::Scores S;
      int x = 0;
      do {
        next_k.store(block.K, A(1));
        __syncthreads();
        if (kChunks && x + Block::kChunkD < params.d) {
          next_k.fetch(k, key, keys.end, x + Block::kChunkD, params.d);
        } else {
          next_v.fetch(v, key, keys.end, 0, params.p);
        }
        block.product_qk(x, S);
        __syncthreads();
        x += Block::kChunkD;
      } while (kChunks && x < params.d);
      const TileMask<Config> sees = mask.tile(tile.row_begin, key);
      const bool all_visible = sees.template all_visible<Block::kBlockM, Block::kBlockN>();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          const bool visible = all_visible || sees.visible(block.row_of(r), block.key_of(j));
          S(r, j) = score(S(r, j), visible);
        }
      }
      A alpha[kRows];
      softmax.update(S, alpha);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int c = 0; c < kColumns; ++c) O[r][c] *= alpha[r];
#pragma unroll
        for (int j = 0; j < kKeys; ++j) {
          // Read by other lanes after the barrier that V's first chunk needs.
          *block.P.at(block.row_of(r), block.key_of(j)) = S(r, j);
        }
      }
      const int count = static_cast<int>(
          minimum(keys.end - key, static_cast<long long>(Block::kBlockN)));
      for (int j = 0; j < count; j += Block::kChunkN) {
        next_v.store(block.V, A(1));
        __syncthreads();
        if (j + Block::kChunkN < count) {
          next_v.fetch(v, key + j + Block::kChunkN, keys.end, 0, params.p);
        } else {
          next_k.fetch(k, key + Block::kBlockN, keys.end, 0, params.d);
        }
        block.product_pv(j, O);
        __syncthreads();
      }
    }
    softmax.finish();

    const Tile done = schedule.current();
    OType* o = entry_of<OType>(params.o, done, done.head);
    A* lse = entry_of<A>(params.lse, done, done.head);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const long long row = done.row_begin + block.row_of(r);
      if (row >= done.row_end) continue;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = block.column_of(c);
        if (column < params.p) {
          store_global(o + row * params.o.row + column * params.o.column,
                       Round<OType>::from(softmax.template output<OType>(r, O[r][c])));
        }
      }
      if (block.thread_n == 0 && params.lse.data != nullptr) {
        store_global(lse + row * params.lse.row, softmax.lse(r));
      }
    }
  }
}
