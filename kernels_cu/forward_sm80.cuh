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
#include "score_arrays.cuh"
#include "sm80_scores.cuh"
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
  static constexpr bool kSink = is_given<typename Config::Sinks>;
  // Where a score is more than a factor times the product it is made in natural units; else the weight
  // brings the factor in.
  using Weight = ScaledWeight<Score<Config>::kMore>;
  using Softmax = OnlineSoftmax<float, Scores::kRows, Scores::kLanes, Weight, kSink>;
  using Bias = ScoreFragment<typename Config::Bias, Scores, Config::kBiasRows>;
  using MaskPairs = ScoreFragment<unsigned char, Scores, Config::kMaskRows>;
  using MaskWords = MaskFragment<MaskPairs>;
  // Whether the sums leave room for the bias during the product that it is added to.
  static constexpr bool kBiasAhead = Config::kHeadDimV <= 128;

  // What the block is at. In shared memory, for every register counts in the loop. Keys count from the
  // first one of the first tile.
  struct Work {
    Tile tile;
    const T* k;  // row of key 0
    const T* v;
    TileMask<Config> sees;  // of the block's rows
    int skipped;      // keys of the first tile that no row sees
    long long place;  // where the block's first row stands
    // The elements of the block's first row and key 0. No pointers: through one that comes from shared
    // memory loads are generic.
    long long mask;
    long long bias;
    bool mask_paired;  // whether neighbours can be loaded together
    bool bias_paired;
    Score<Config> score;
  };

  static constexpr int kKOffset = QTile::kBytes;
  static constexpr int kVOffset = kKOffset + KTile::kBytes;
  static constexpr int kWorkOffset = kVOffset + VTile::kBytes;
  static constexpr int kWorkBytes = 192;
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

__device__ __forceinline__ long long element_of(const Operand& operand, const Tile& tile,
                                                long long row, long long key) {
  return index_of(operand, tile, tile.head) + row * operand.row + key * operand.column;
}

// Whether the elements 2 c and 2 c + 1 of every row from `element` on can be loaded as one word. A
// question to ask at run time: tiles at the edge need the other way anyway, so that the kernel holds both.
template <class T>
__device__ __forceinline__ bool paired(const Operand& operand, long long element) {
  const auto address = reinterpret_cast<unsigned long long>(operand.data) + element * sizeof(T);
  return operand.column == 1 && operand.row % 2 == 0 && address % (2 * sizeof(T)) == 0;
}

template <class Config, class Work>
__device__ __forceinline__ void begin(const Params& params, const Tile& tile, Work& work) {
  using T = typename Config::QType;
  const Mask<Config> mask = {params, tile.extent};
  const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);
  const KeyRange tiles = Mask<Config>::template tiles_of<Config::kBlockN>(keys);
  const long long kv_head = tile.head / params.group;
  work.tile = tile;
  work.k = entry_of<const T>(params.k, tile, kv_head) + tiles.begin * params.k.row;
  work.v = entry_of<const T>(params.v, tile, kv_head) + tiles.begin * params.v.row;
  work.sees = mask.tile(tile.row_begin, tiles);
  work.skipped = static_cast<int>(keys.begin - tiles.begin);
  work.place = tile.row_begin + tile.extent.offset - tiles.begin;
  if (Config::kMask) {
    work.mask = element_of(params.mask, tile, tile.row_begin, tiles.begin);
    work.mask_paired = paired<unsigned char>(params.mask, work.mask);
  }
  if (Score<Config>::kBias) {
    work.bias = element_of(params.bias, tile, tile.row_begin, tiles.begin);
    work.bias_paired = paired<typename Config::Bias>(params.bias, work.bias);
  }
  work.score = Score<Config>(
      params, number_of_head<float, typename Config::Slopes>(params.alibi_slopes, tile));
}

// Start the copies of the keys from `key` on, and of their values; beyond the last key there are none.
// kSkip: the tile may be the first one, of which some keys may be out of sight.
template <bool kSkip, class Block>
__device__ __forceinline__ void copy_k(const Params& params, const Block& block, int key) {
  const int keys = block.work().sees.keys - key;
  if (keys > 0) {
    Block::CopyK::template run<kSkip>(
        block.K(), {block.work().k, params.k.row, params.k.column}, key, keys,
        static_cast<int>(params.d), kSkip ? block.work().skipped - key : 0);
  }
  commit_async();
}

template <bool kSkip, class Block>
__device__ __forceinline__ void copy_v(const Params& params, const Block& block, int key) {
  const int keys = block.work().sees.keys - key;
  if (keys > 0) {
    Block::CopyV::template run<kSkip>(
        block.V(), {block.work().v, params.v.row, params.v.column}, key, keys,
        static_cast<int>(params.p), kSkip ? block.work().skipped - key : 0);
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

// Computes m, l and O of the warp's rows over all keys; `careful` if what hidden keys have may be NaN. The
// first tile of K is on its way.
template <class Config, class Block>
__device__ __forceinline__ void attend(const Params& params, const Block& block, bool careful,
                                       typename Block::Softmax& softmax,
                                       typename Block::Output& O) {
  using T = typename Block::T;
  constexpr int kBlockN = Config::kBlockN;
  constexpr bool kBias = Score<Config>::kBias;
  constexpr bool kMask = Config::kMask;
  softmax.clear();
  O.clear();
  // The mask comes a tile ahead, for whether to skip one mustn't wait.
  typename Block::MaskPairs next_mask;
  typename Block::MaskWords mask;
  if (kMask) {
    fetch_mask<Config>(params, block, 0, next_mask);
    mask.pack(next_mask);
  }
  for (int key = 0; key < block.work().sees.keys; key += kBlockN) {
    // A warp may see nothing of a tile that other rows of the block see.
    const TileMask<Config> sees = block.work().sees.from(block.warp_row(), key);
    bool idle = !sees.template any_visible<Block::kWarpRows, kBlockN>();
    if (kMask) idle = !__any_sync(0xffffffffu, !idle && mask.any());
    typename Block::Bias bias;
    if constexpr (kBias && Block::kBiasAhead) {
      if (!idle) fetch_bias<Config>(params, block, key, bias);
    }
    typename Block::Scores S;
    wait_for_copy();
    copy_v<Config::kLeft>(params, block, key);
    if (!idle) {
      S.clear();
      product_qk<T>(QFragments<Block>(block), block.K(), block.lane(), S);
    }
    wait_for_copy();
    copy_k<false>(params, block, key + kBlockN);
    if (ScoreArrays<Config>::kHide && careful) {
      clear_hidden_values<Config>(params, block, key);
      __syncthreads();
    }
    if (!idle) {
      if constexpr (kBias) {
        if (!Block::kBiasAhead) fetch_bias<Config>(params, block, key, bias);
        if (careful) clear_hidden_products<Block>(bias, S);
      }
      if constexpr (Score<Config>::kMore) score_tile<Config>(block, key, bias, S);
      if (kMask) hide<Config, Block>(mask, S);
      if (!sees.template all_visible<Block::kWarpRows, kBlockN>()) hide(sees, block, S);
    }
    if (kMask) fetch_mask<Config>(params, block, key + kBlockN, next_mask);
    if (!idle) {
      float alpha[Block::Scores::kRows];
      softmax.update(S, alpha);
      scale_rows(O, alpha);
      product_pv<T>(S, block.V(), block.lane(), O);
    }
    if (kMask) mask.pack(next_mask);
  }
}

template <class Config>
__device__ __forceinline__ void forward_sm80(const Params& params) {
  using Block = Sm80Block<Config>;
  using T = typename Block::T;
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
    copy_k<Config::kLeft>(params, block, 0);
    scale_q(params, block);
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    bool careful = false;
    for (;;) {
      attend<Config>(params, block, careful, softmax, O);
      if (careful) break;
      careful = needs_care<Config>(softmax, O);
      if (!careful) break;
      copy_k<Config::kLeft>(params, block, 0);
    }
    const Tile& done = block.work().tile;
    if constexpr (Block::kSink) {
      float alpha[Block::Output::kRows];
      softmax.finish(number_of_head<float, typename Config::Sinks>(params.sinks, done), alpha);
      scale_rows(O, alpha);
    } else {
      softmax.finish();
    }
    store_rows<Config>(params, block, done, softmax, O);
    // Nobody begins the next tile over what another warp still reads, or leaves copies unfinished.
    wait_async<0>();
    __syncthreads();
  }
}
