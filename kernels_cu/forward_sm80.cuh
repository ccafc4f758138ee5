// Attention of 16-bit elements on the tensor cores (mma.sync), d and p to 256, Ampere and newer.
//
// A block of kWarps warps computes kBlockM rows, each warp 16 or 32 of them through all keys. Q stays in
// shared memory, beside one tile of K and one of V: while one is used, cp.async brings the other. P never
// leaves the registers: the accumulators of S = Q K^T are, rounded to 16 bits, the left factor of P V.
#pragma once

#include "fragments.cuh"
#include "mask.cuh"
#include "matrix_tile.cuh"
#include "params.cuh"
#include "ptx/opaque.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "softmax.cuh"
#include "types.cuh"

template <class Config>
struct Sm80Block {
  using T = typename Config::QType;
  static constexpr int kWarps = Config::kWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kWarpRows = Config::kBlockM / kWarps;
  static constexpr int kTiles = kWarpRows / 16;

  using QTile = MatrixTile<Config::kBlockM, Config::kHeadDim>;
  using KTile = MatrixTile<Config::kBlockN, Config::kHeadDim>;
  using VTile = MatrixTile<Config::kBlockN, Config::kHeadDimV>;
  using CopyQ = TileCopy<T, QTile, kThreads, Config::kUnit>;
  using CopyK = TileCopy<T, KTile, kThreads, Config::kUnit>;
  using CopyV = TileCopy<T, VTile, kThreads, Config::kUnit>;
  using Scores = Accumulators<kTiles, Config::kBlockN>;
  using Output = Accumulators<kTiles, Config::kHeadDimV>;
  using Softmax = OnlineSoftmax<float, Scores::kRows, Scores::kLanes, ScaledWeight>;

  // What the block is at. In shared memory, for every register counts in the loop.
  struct Work {
    Tile tile;
    const T* k;  // row of the first visible key
    const T* v;
    TileMask<Config> sees;  // of the block's rows
  };

  static constexpr int kKOffset = QTile::kBytes;
  static constexpr int kVOffset = kKOffset + KTile::kBytes;
  static constexpr int kWorkOffset = kVOffset + VTile::kBytes;
  static constexpr int kWorkBytes = 128;
  static_assert(kWorkOffset + kWorkBytes == Config::kSharedMemory,
                "select.py: Variant.shared_memory");
  static_assert(sizeof(Work) <= kWorkBytes, "the rest of shared memory");
  static_assert(kWarpRows == 16 || kWarpRows == 32, "a warp holds one or two fragments of rows");

  unsigned shared = shared_address(shared_memory());

  __device__ __forceinline__ Work& work() const {
    return *reinterpret_cast<Work*>(shared_memory() + kWorkOffset);
  }

  __device__ __forceinline__ int lane() const {
    return threadIdx.x % 32;
  }
  // The warp's first row of the tile.
  __device__ __forceinline__ int warp_row() const {
    return threadIdx.x / 32 * kWarpRows;
  }

  __device__ __forceinline__ QTile Q() const { return {shared}; }
  __device__ __forceinline__ KTile K() const { return {shared + kKOffset}; }
  __device__ __forceinline__ VTile V() const { return {shared + kVOffset}; }
};

template <class Config, class Work>
__device__ __forceinline__ void begin(const Params& params, const Tile& tile, Work& work) {
  using T = typename Config::QType;
  const Mask<Config> mask = {tile.extent};
  const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);
  const long long kv_head = tile.head / params.group;
  work.tile = tile;
  work.k = entry_of<const T>(params.k, tile, kv_head) + keys.begin * params.k.row;
  work.v = entry_of<const T>(params.v, tile, kv_head) + keys.begin * params.v.row;
  work.sees = mask.tile(tile.row_begin, keys);
}

// Start the copies of the keys from `key` on, and of their values; beyond the last key there are none.
template <class Block>
__device__ __forceinline__ void copy_k(const Params& params, const Block& block, int key) {
  const int keys = block.work().sees.keys - key;
  if (keys > 0) {
    Block::CopyK::run(block.K(), {block.work().k, params.k.row, params.k.column}, key, keys,
                      static_cast<int>(params.d));
  }
  commit_async();
}

template <class Block>
__device__ __forceinline__ void copy_v(const Params& params, const Block& block, int key) {
  const int keys = block.work().sees.keys - key;
  if (keys > 0) {
    Block::CopyV::run(block.V(), {block.work().v, params.v.row, params.v.column}, key, keys,
                      static_cast<int>(params.p));
  }
  commit_async();
}

// Waits until what was copied last has landed for all threads and what was used last is free.
__device__ __forceinline__ void wait_for_copy() {
  wait_async<0>();
  __syncthreads();
}

// The fragments of Q, read again for every tile of keys: held in registers they left too few.
template <class Block>
struct QFragments {
  unsigned address;

  __device__ __forceinline__ explicit QFragments(const Block& block)
      : address(block.Q().at(block.warp_row() + block.lane() % 16, block.lane() / 16)) {}

  __device__ __forceinline__ void operator()(int tile, int step, unsigned (&a)[4]) const {
    load_matrix(Block::QTile::further(address, step, 16 * tile), a);
  }
};

// Waits for Q and brings its factor into it. Other threads see it after the first tile's barrier.
template <class Block>
__device__ __forceinline__ void scale_q(const Params& params, const Block& block) {
  const float factor = static_cast<float>(params.scale_q);
  if (factor == 1.0f) return;
  wait_async<0>();
  Block::CopyQ::scale(block.Q(), factor);
}

// Gives the elements that a warp may not see the score -inf.
template <class Config, class Block>
__device__ __forceinline__ void hide(const TileMask<Config>& sees, const Block& block,
                                     typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  const int lane = block.lane();
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    // Counted from the thread's first column, so that one comparison with a constant is left.
    const int end = sees.end(Scores::row_of(lane, r)) - Scores::column_of(lane, 0);
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      S(r, c) = Score<Config>::masked(S(r, c), Scores::column_of(0, c) < end);
    }
  }
}

// Writes up to two neighbouring elements, in one piece where they lie so.
template <class T>
__device__ __forceinline__ void store_pair(T* target, long long stride, unsigned pair, int count) {
  const bool whole = stride == 1 && reinterpret_cast<unsigned long long>(target) % 4 == 0;
  if (whole && count > 1) {
    store_global(reinterpret_cast<unsigned*>(target), pair);
  } else {
    if (count > 0) store_global(target, T{static_cast<unsigned short>(pair & 0xffffu)});
    if (count > 1) store_global(target + stride, T{static_cast<unsigned short>(pair >> 16)});
  }
}

// Writes the rows of O and lse that a warp holds.
template <class Config, class Block>
__device__ __forceinline__ void store_rows(const Params& params, const Block& block,
                                           const Tile& tile, const typename Block::Softmax& softmax,
                                           typename Block::Output& O) {
  using OType = typename Config::OType;
  using Output = typename Block::Output;
  OType* o = entry_of<OType>(params.o, tile, tile.head);
  float* lse = entry_of<float>(params.lse, tile, tile.head);
  const int lane = block.lane();
  const int first_column = Output::column_of(lane, 0);
  // Opaque, or the difference takes a register through the whole kernel: 24 bytes of spills at d = 128 on
  // sm_80. On sm_90, where p lies in a uniform register, hiding it costs 8.
  const int columns = opaque_before_sm90(static_cast<int>(params.p)) - first_column;
#pragma unroll
  for (int r = 0; r < Output::kRows; ++r) {
    const long long row = tile.row_begin + block.warp_row() + Output::row_of(lane, r);
    if (row >= tile.row_end) continue;
    const float inverse = 1.0f / softmax.l[r];
    OType* target = o + row * params.o.row + first_column * params.o.column;
#pragma unroll
    for (int c = 0; c < Output::kColumns; c += 2) {
      const unsigned pair = pack_pair<OType>(
          softmax.template output<OType>(r, O(r, c), inverse),
          softmax.template output<OType>(r, O(r, c + 1), inverse));
      store_pair(target, params.o.column, pair, columns - 8 * (c / 2));
      target += 8 * params.o.column;
    }
    if (lane % Output::kLanes == 0 && params.lse.data != nullptr) {
      store_global(lse + row * params.lse.row, softmax.lse(r));
    }
  }
}

template <class Config>
__device__ __forceinline__ void forward_sm80(const Params& params) {
  using Block = Sm80Block<Config>;
  using T = typename Block::T;
  constexpr int kBlockN = Config::kBlockN;
  const Block block;
  Schedule<Config> schedule(params);
  Tile tile;
  while (schedule.next(tile)) {
    // Q's copies belong to the first group.
    Block::CopyQ::run(block.Q(),
                      {entry_of<const T>(params.q, tile, tile.head), params.q.row, params.q.column},
                      tile.row_begin,
                      static_cast<int>(minimum(tile.row_end, tile.extent.rows) - tile.row_begin),
                      static_cast<int>(params.d));
    if (threadIdx.x == 0) begin<Config>(params, tile, block.work());
    __syncthreads();
    copy_k(params, block, 0);
    scale_q(params, block);
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    O.clear();
    for (int key = 0; key < block.work().sees.keys; key += kBlockN) {
      // Under a causal mask a warp may see nothing of a tile that later rows of the block see.
      const TileMask<Config> sees = block.work().sees.from(block.warp_row(), key);
      const bool idle = !sees.template any_visible<Block::kWarpRows>();
      typename Block::Scores S;
      wait_for_copy();
      copy_v(params, block, key);
      if (!idle) {
        S.clear();
        product_qk<T>(QFragments<Block>(block), block.K(), block.lane(), S);
      }
      wait_for_copy();
      copy_k(params, block, key + kBlockN);
      if (idle) continue;
      if (!sees.template all_visible<Block::kWarpRows, kBlockN>()) hide(sees, block, S);
      float alpha[Block::Scores::kRows];
      softmax.update(S, alpha);
#pragma unroll
      for (int r = 0; r < Block::Output::kRows; ++r) {
#pragma unroll
        for (int c = 0; c < Block::Output::kColumns; ++c) O(r, c) *= alpha[r];
      }
      product_pv<T>(S, block.V(), block.lane(), O);
    }
    softmax.finish();
    store_rows<Config>(params, block, block.work().tile, softmax, O);
    // Nobody begins the next tile over what another warp still reads, or leaves copies unfinished.
    wait_async<0>();
    __syncthreads();
  }
}
