// Attention with tiled FMA, every element type, d and p to 256; and in float64, to 128, with the tensor cores.
//
// A block of kThreadsM x kThreadsN threads computes kBlockM rows. Q stays in shared memory; K and V pass
// through one stage, K in chunks of kChunkD columns and V in chunks of kChunkN rows. While a chunk is
// multiplied the next one is loaded into registers: with loads in the open, warps waited for them 64 % of
// the time (float32, d = 64, H200). A thread owns rows thread_m + r kThreadsM, so the lanes of a warp own
// whole rows: the softmax is warp shuffles. P goes through shared memory between the lanes of a warp.
#pragma once

#include "mask.cuh"
#include "matrix_threads.cuh"
#include "params.cuh"
#include "schedule.cuh"
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
  using Threads::row_of;
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

  // The thread's elements of P.
  __device__ __forceinline__ void write_p(Scores& S) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) *P.at(row_of(r), key_of(j)) = S(r, j);
    }
  }
  __device__ __forceinline__ void read_p(Scores& S) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kKeys; ++j) S(r, j) = *P.at(row_of(r), key_of(j));
    }
  }
};

// The scores of a tile's products that only a factor is between, and where the row is out of sight -inf.
template <class Config, class Block>
__device__ __forceinline__ void scale_and_hide(const Block& block, const TileMask<Config>& sees,
                                               const Score<Config>& score,
                                               typename Block::Scores& S) {
  const bool all_visible = sees.template all_visible<Block::kBlockM, Block::kBlockN>();
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) {
#pragma unroll
    for (int j = 0; j < Block::kKeys; ++j) {
      const bool visible = all_visible || sees.visible(block.row_of(r), block.key_of(j));
      S(r, j) = Score<Config>::masked(score(S(r, j)), visible);
    }
  }
}

// The same with all options. `arrays` begin at the block's first row and the tile's first key, `place` is
// where the first row stands from that key. A thread's products wait in its elements of P, so that the
// rows take turns: unrolled, their loads from the arrays take more registers than there are.
template <class Config, class Block>
__device__ __forceinline__ void score_and_hide(const Block& block, const TileMask<Config>& sees,
                                               const Score<Config>& score,
                                               const ScoreArrays<Config>& arrays,
                                               typename Block::A place,
                                               typename Block::Scores& S) {
  using A = typename Block::A;
  block.write_p(S);
  ScoreElements<A> of_key[Block::kKeys];
#pragma unroll
  for (int j = 0; j < Block::kKeys; ++j) {
    const int key = block.key_of(j);
    if (key < sees.keys) of_key[j] = arrays.template elements<false>(0, key, {});
  }
#pragma unroll 1
  for (int r = 0; r < Block::kRows; ++r) {
    const int row = block.row_of(r);
    const A row_place = place + static_cast<A>(row);
#pragma unroll
    for (int j = 0; j < Block::kKeys; ++j) {
      const int key = block.key_of(j);
      ScoreElements<A> found = of_key[j];
      const bool inside = sees.visible(row, key);
      if (inside) found = arrays.template elements<true>(row, key, found);
      A* element = block.P.at(row, key);
      *element = Score<Config>::masked(
          score(*element, found.bias, row_place - static_cast<A>(key)), inside && found.visible);
    }
  }
  block.read_p(S);
}

// Zeroes the values in the stage, those from key `key` on, of keys that no row of the block sees. Where
// they lie is worked out again, lest it takes registers from the products.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_values(const Params& params, const Tile& tile,
                                                    const Block& block, long long key) {
  const int j = threadIdx.x;
  const TileMask<Config> sees = Mask<Config>{params, tile.extent}.tile(tile.row_begin, key);
  const auto arrays = ScoreArrays<Config>::of(params, tile).from(tile.row_begin, key);
  if (j < Block::kChunkN && !arrays.any_row_sees(sees, j)) {
#pragma unroll 1
    for (int c = 0; c < Block::kHeadDimV; ++c) *block.V.at(j, c) = typename Block::A(0);
  }
}

// Computes m, l and O of the block's rows over all keys; `careful` if values of hidden keys may be NaN.
template <class Config, class Block>
__device__ __forceinline__ void attend(const Params& params, const Schedule<Config>& schedule,
                                       const Block& block, const Tile& tile, bool careful,
                                       typename Block::Softmax& softmax,
                                       typename Block::Output& O) {
  using A = typename Block::A;
  using Arrays = ScoreArrays<Config>;
  constexpr int kRows = Block::kRows;
  constexpr bool kChunks = Block::kChunkD < Block::kHeadDim;  // K comes in more than one chunk
  constexpr bool kLeft = Config::kLeft;
  const long long kv_head = tile.head / params.group;
  const Matrix<typename Config::KType> k = {
      entry_of<const typename Config::KType>(params.k, tile, kv_head), params.k.row,
      params.k.column};
  const Matrix<typename Config::VType> v = {
      entry_of<const typename Config::VType>(params.v, tile, kv_head), params.v.row,
      params.v.column};
  const Score<Config> score(
      params, number_of_head<A, typename Config::Slopes>(params.alibi_slopes, tile));
  const Arrays arrays = Arrays::of(params, tile);
  const Mask<Config> mask = {params, tile.extent};
  const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);
  const KeyRange tiles = Mask<Config>::template tiles_of<Block::kBlockN>(keys);

  typename Block::TransferK next_k(block.K);
  typename Block::TransferV next_v(block.V);
  next_k.template fetch<kLeft>(k, tiles.begin, keys.end, 0, params.d, keys.begin);
  softmax.clear();
  O.clear();
  for (long long key = tiles.begin; key < tiles.end; key += Block::kBlockN) {
    typename Block::Scores S;
    int x = 0;
    do {
      next_k.store(block.K, A(1));
      __syncthreads();
      if (kChunks && x + Block::kChunkD < params.d) {
        next_k.template fetch<kLeft>(k, key, keys.end, x + Block::kChunkD, params.d, keys.begin);
      } else {
        next_v.template fetch<kLeft>(v, key, keys.end, 0, params.p, keys.begin);
      }
      block.product_of_columns(block.Q, x, block.K, S);
      __syncthreads();
      x += Block::kChunkD;
    } while (kChunks && x < params.d);
    const TileMask<Config> sees = mask.tile(tile.row_begin, key);
    const Arrays of_tile = arrays.from(tile.row_begin, key);
    if constexpr (Arrays::kHide || Score<Config>::kMore) {
      const A place = static_cast<A>(tile.row_begin + tile.extent.offset - key);
      score_and_hide(block, sees, score, of_tile, place, S);
    } else {
      scale_and_hide(block, sees, score, S);
    }
    A alpha[kRows];
    softmax.update(S, alpha);
    scale_rows(O, alpha);
    // Read by other lanes after the barrier that V's first chunk needs.
    if (!Block::kMatrix) block.write_p(S);
    const int count = static_cast<int>(
        minimum(keys.end - key, static_cast<long long>(Block::kBlockN)));
    for (int j = 0; j < count; j += Block::kChunkN) {
      next_v.store(block.V, A(1));
      __syncthreads();
      if (Arrays::kHide && careful) {
        clear_hidden_values<Config>(params, schedule.current(), block, key + j);
        __syncthreads();
      }
      if (j + Block::kChunkN < count) {
        next_v.template fetch<kLeft>(v, key + j + Block::kChunkN, keys.end, 0, params.p,
                                     keys.begin);
      } else {
        next_k.template fetch<kLeft>(k, key + Block::kBlockN, keys.end, 0, params.d, keys.begin);
      }
      if constexpr (Block::kMatrix) {
        block.product_of_fragments(S, block.V, O);
      } else {
        block.template product_of_rows<Block::kChunkN>(block.P, j, block.V, O);
      }
      __syncthreads();
    }
  }
  next_k.finish();
}

// Writes the rows of O and lse that a thread holds.
template <class Config, class Block>
__device__ __forceinline__ void store_rows(const Params& params, const Block& block,
                                           const Tile& tile, const typename Block::Softmax& softmax,
                                           typename Block::Output& O) {
  using A = typename Block::A;
  using OType = typename Config::OType;
  OType* o = entry_of<OType>(params.o, tile, tile.head);
  A* lse = entry_of<A>(params.lse, tile, tile.head);
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) {
    const long long row = tile.row_begin + block.row_of(r);
    if (row >= tile.row_end) continue;
#pragma unroll
    for (int c = 0; c < Block::kColumns; ++c) {
      const int column = block.template column_of<Block::kColumns>(c);
      if (column < params.p) {
        store_global(o + row * params.o.row + column * params.o.column,
                     Round<OType>::from(softmax.template output<OType>(r, O(r, c))));
      }
    }
    if (block.thread_n == 0 && params.lse.data != nullptr) {
      store_global(lse + row * params.lse.row, softmax.lse(r));
    }
  }
}

template <class Config>
__device__ __forceinline__ void forward_simt(const Params& params) {
  using A = typename Config::Accumulate;
  using Block = SimtBlock<Config>;
  const Block block;
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    const Matrix<typename Config::QType> q = {
        entry_of<const typename Config::QType>(params.q, tile, tile.head), params.q.row,
        params.q.column};
    // The barrier after the last stage has passed, so nobody reads the previous tile's Q any more.
    Transfer<typename Config::QType, Block::kThreads, Block::kBlockM, Block::kHeadDim> next_q;
    next_q.fetch(q, tile.row_begin, minimum(tile.row_end, tile.extent.rows), 0, params.d);
    next_q.store(block.Q, static_cast<A>(params.scale_q));
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    bool careful = false;
    for (;;) {
      attend(params, schedule, block, tile, careful, softmax, O);
      if (careful) break;
      careful = needs_care<Config>(softmax, O);
      if (!careful) break;
    }
    const Tile done = schedule.current();
    if constexpr (Block::kSink) {
      A alpha[Block::kRows];
      softmax.finish(number_of_head<A, typename Config::Sinks>(params.sinks, done), alpha);
      scale_rows(O, alpha);
    } else {
      softmax.finish();
    }
    store_rows<Config>(params, block, done, softmax, O);
  }
}
