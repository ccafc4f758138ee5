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
#include "score_fragments.cuh"
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
  // Scores are made in natural units where the products need more than a factor.
  using Softmax = OnlineSoftmax<float, Scores::kRows, Scores::kLanes,
                                ScaledWeight<Score<Config>::kMore>, kSink>;
  using Bias = ScoreFragment<typename Config::Bias, Scores, Config::kBiasRows>;
  using MaskWords = MaskFragment<Scores, Config::kMaskRows>;
  using MaskPairs = typename MaskWords::Pairs;

  // What the block is at. In shared memory, for every register counts in the loop. Keys count from the
  // first one of the first tile.
  struct Work {
    Tile tile;
    const T* k;  // row of key 0
    const T* v;
    TileMask<Config> sees;  // of the block's rows
    int skipped;            // keys of the first tile that nobody sees
    long long place;        // where the block's first row stands
    const unsigned char* mask;  // of the block's first row and key 0
    const typename Config::Bias* bias;
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

// Whether any two elements of an array from an even column on can be loaded as one word.
template <class T>
__device__ __forceinline__ bool in_pairs(const Matrix<T>& array) {
  const bool even_rows = array.row_stride % 2 == 0;
  return array.column_stride == 1 && even_rows &&
         reinterpret_cast<unsigned long long>(array.data) % (2 * sizeof(T)) == 0;
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
  const auto arrays = ScoreArrays<Config>::of(params, tile).from(tile.row_begin, tiles.begin);
  work.mask = arrays.mask.data;
  work.bias = arrays.bias.data;
  work.mask_paired = in_pairs(arrays.mask);
  work.bias_paired = in_pairs(arrays.bias);
  work.score = Score<Config>(
      params, number_of_head<float, typename Config::Slopes>(params.alibi_slopes, tile));
}

// Starts the copy of a tile of K or V, from its key `key` on; beyond the last key there is none.
template <class Config, class Copy, class Target, class Block>
__device__ __forceinline__ void copy_keys(const Target& target, const Block& block,
                                          const typename Block::T* data, const Operand& operand,
                                          int key, int columns) {
  const int keys = block.work().sees.keys - key;
  if (keys > 0) {
    const int skipped = Config::kLeft ? block.work().skipped - key : 0;
    Copy::template run<Config::kLeft>(target, {data, operand.row, operand.column}, key, keys,
                                      columns, skipped);
  }
  commit_async();
}

template <class Config, class Block>
__device__ __forceinline__ void copy_k(const Params& params, const Block& block, int key) {
  copy_keys<Config, typename Block::CopyK>(block.K(), block, block.work().k, params.k, key,
                                           static_cast<int>(params.d));
}

template <class Config, class Block>
__device__ __forceinline__ void copy_v(const Params& params, const Block& block, int key) {
  copy_keys<Config, typename Block::CopyV>(block.V(), block, block.work().v, params.v, key,
                                           static_cast<int>(params.p));
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

// Gives the elements that lie outside of a warp's band of keys the score -inf.
template <class Config, class Block>
__device__ __forceinline__ void hide(const TileMask<Config>& sees, const Block& block,
                                     typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  const int lane = block.lane();
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    // Counted from the thread's first column, so that comparisons with a constant are left.
    const int begin = sees.begin(Scores::row_of(lane, r)) - Scores::column_of(lane, 0);
    const int end = sees.end(Scores::row_of(lane, r)) - Scores::column_of(lane, 0);
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      const int column = Scores::column_of(0, c);
      const bool visible = column < end && (!Config::kLeft || column >= begin);
      S(r, c) = Score<Config>::masked(S(r, c), visible);
    }
  }
}

template <class Config, class Block>
__device__ __forceinline__ void hide(const typename Block::MaskWords& mask,
                                     typename Block::Scores& S) {
  using Scores = typename Block::Scores;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) S(r, c) = Score<Config>::masked(S(r, c), mask(r, c));
  }
}

template <class Block>
__device__ __forceinline__ FragmentPlace place_of(const Block& block) {
  // Opaque, or what follows from the thread's place lives in registers through the whole kernel.
  const int thread = opaque(static_cast<int>(threadIdx.x));
  const int lane = thread % 32;
  const Tile& tile = block.work().tile;
  return {thread / 32 * Block::kWarpRows + Block::Scores::row_of(lane, 0),
          static_cast<int>(tile.row_end - tile.row_begin) - 1, Block::Scores::column_of(lane, 0)};
}

template <class Block>
__device__ __forceinline__ void fetch_mask(const Params& params, const Block& block, int key,
                                           typename Block::MaskPairs& mask) {
  const auto& work = block.work();
  const long long column = params.mask.column;
  mask.fetch({work.mask + key * column, params.mask.row, column}, place_of(block),
             work.sees.keys - key, work.mask_paired);
}

template <class Block>
__device__ __forceinline__ void fetch_bias(const Params& params, const Block& block, int key,
                                           typename Block::Bias& bias) {
  const auto& work = block.work();
  const long long column = params.bias.column;
  bias.fetch({work.bias + key * column, params.bias.row, column}, place_of(block),
             work.sees.keys - key, work.bias_paired);
}

// Makes the scores of a warp's products.
template <class Config, class Block>
__device__ __forceinline__ void score_tile(const Block& block, int key,
                                           const typename Block::Bias& bias,
                                           typename Block::Scores& S) {
  using Scores = typename Block::Scores;
  const Score<Config> score = block.work().score;
  const FragmentPlace first = place_of(block);
  const float place = static_cast<float>(block.work().place - key);
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
    // Of the thread's first column.
    const float distance =
        place + static_cast<float>(first.row + Scores::row_of(0, r) - first.column);
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      float b = 0.0f;
      if constexpr (Score<Config>::kBias) b = bias.value(r, c);
      S(r, c) = score(S(r, c), b, distance - static_cast<float>(Scores::column_of(0, c)));
    }
  }
}

// Where the bias is -inf any product gives -inf, unless it isn't finite.
template <class Block>
__device__ __forceinline__ void clear_hidden_products(const typename Block::Bias& bias,
                                                      typename Block::Scores& S) {
  using Scores = typename Block::Scores;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      if (bias.value(r, c) == -Limits<float>::infinity()) S(r, c) = 0.0f;
    }
  }
}

// Zeroes the values of keys that no row of the block sees.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_values(const Params& params, const Block& block,
                                                    int key) {
  const auto& work = block.work();
  const ScoreArrays<Config> arrays = {{work.mask, params.mask.row, params.mask.column},
                                      {work.bias, params.bias.row, params.bias.column}};
#pragma unroll 1
  for (int j = threadIdx.x; j < Config::kBlockN; j += Block::kThreads) {
    if (arrays.any_row_sees(work.sees, key + j)) continue;
#pragma unroll 1
    for (int piece = 0; piece < Block::VTile::kPieces; ++piece) {
      store_shared(block.V().at(j, piece), Words4{});
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

// Computes m, l and O of the warp's rows over all keys; `careful` if what hidden keys have may be NaN. The
// first tile of K is on its way.
template <class Config, class Block>
__device__ __forceinline__ void attend(const Params& params, const Block& block, bool careful,
                                       typename Block::Softmax& softmax,
                                       typename Block::Output& O) {
  using T = typename Block::T;
  constexpr int kBlockN = Config::kBlockN;
  typename Block::MaskWords mask;
  if (Config::kMask) {
    typename Block::MaskPairs first;
    fetch_mask(params, block, 0, first);
    mask.pack(first);
  }
  softmax.clear();
  O.clear();
  for (int key = 0; key < block.work().sees.keys; key += kBlockN) {
    // In a band a warp may see nothing of a tile that other rows of the block see.
    const TileMask<Config> sees = block.work().sees.from(block.warp_row(), key);
    bool idle = !sees.template any_visible<Block::kWarpRows, kBlockN>();
    if (Config::kMask) idle = !__any_sync(0xffffffffu, !idle && mask.any());
    typename Block::Bias bias;
    if constexpr (Score<Config>::kBias) {
      if (!idle) fetch_bias(params, block, key, bias);
    }
    typename Block::Scores S;
    wait_for_copy();
    copy_v<Config>(params, block, key);
    if (!idle) {
      S.clear();
      product_qk<T>(QFragments<Block>(block), block.K(), block.lane(), S);
    }
    wait_for_copy();
    copy_k<Config>(params, block, key + kBlockN);
    if (ScoreArrays<Config>::kHide && careful) {
      clear_hidden_values<Config>(params, block, key);
      __syncthreads();
    }
    if (!idle) {
      if constexpr (Score<Config>::kBias) {
        if (careful) clear_hidden_products<Block>(bias, S);
      }
      if constexpr (Score<Config>::kMore) score_tile<Config>(block, key, bias, S);
      if constexpr (Config::kMask) hide<Config, Block>(mask, S);
      if (!sees.template all_visible<Block::kWarpRows, kBlockN>()) hide(sees, block, S);
    }
    // A tile ahead, so that the vote needn't wait.
    typename Block::MaskPairs next_mask;
    if (Config::kMask) fetch_mask(params, block, key + kBlockN, next_mask);
    if (!idle) {
      float alpha[Block::Scores::kRows];
      softmax.update(S, alpha);
      scale_rows(O, alpha);
      product_pv<T>(S, block.V(), block.lane(), O);
    }
    if (Config::kMask) mask.pack(next_mask);
  }
}

template <class Config>
__device__ __forceinline__ void forward_sm80(const Params& params) {
  using Block = Sm80Block<Config>;
  using T = typename Block::T;
  constexpr int kBlockN = Config::kBlockN;
  const Block block;
  constexpr bool kHide = ScoreArrays<Config>::kHide;
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
    copy_k<Config>(params, block, 0);
    scale_q(params, block);
    typename Block::Softmax softmax(params);
    typename Block::Output O;
    bool careful = false;
    for (;;) {
      attend<Config>(params, block, careful, softmax, O);
      if (!kHide || careful) break;
      // The vote tells the compiler that the warp stays together.
      careful = __any_sync(0xffffffffu, __syncthreads_or(!softmax.finite(O)));
      if (!careful) break;
      copy_k<Config>(params, block, 0);
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
