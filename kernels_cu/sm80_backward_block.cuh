// What a block of sm80 is in the backward pass: the tiles of its own rows or keys, the others that pass by,
// and where it is.
#pragma once

#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "forward_work.cuh"
#include "fragments.cuh"
#include "mask.cuh"
#include "matrix_tile.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "score_tile.cuh"
#include "types.cuh"

// Of rows the own matrices are Q and dO, and those of the others K and V; of keys it is the other way
// round. "First" is what scores are the products of, "second" what dP is.
template <class Config>
struct Sm80BackwardBlock {
  using T = typename Config::QType;
  static constexpr bool kOfKeys = Config::kOfKeys;
  // Whether dP is needed, and not P alone.
  static constexpr bool kDerivative = Config::kFirst || Config::kPairs || Config::kBiasSums ||
                                      Config::kSlopeSums || Config::kScaleSums;
  static constexpr bool kArrays = Config::kMask || Score<Config>::kBias;
  // Whether pairs' gradients alone are wanted: their sums over entries stay in registers.
  static constexpr bool kPairSums = Config::kPairs && !Config::kFirst;
  static constexpr int kWarps = Config::kWarps;
  static constexpr int kThreads = 32 * kWarps;
  // So many warps share their own rows or keys. Each makes the scores of some of the others, and has some
  // columns of the gradients; between the two P and dS go through shared memory.
  static constexpr int kSplit = Config::kSplit;
  static constexpr bool kExchange = kSplit > 1;
  static constexpr int kWarpRows = Config::kBlockM / kWarps * kSplit;
  // Whether four warps multiply together (wgmma), and how many own rows or keys do the same.
  static constexpr bool kGroups = Config::kGroups;
  static constexpr int kGroupRows = kGroups ? 4 * kWarpRows : kWarpRows;
  static constexpr int kTiles = kWarpRows / 16;
  static constexpr int kOthers = Config::kBlockN;
  static constexpr int kStep = Config::kStep;  // others whose scores a warp has at a time

  template <int kRows, int kColumns>
  using Matrix = typename Either<kGroups, PanelTile<kRows, kColumns>, MatrixTile<kRows, kColumns>>::Type;
  using OwnFirst = Matrix<Config::kBlockM, Config::kHeadDim>;
  using OwnSecond = Matrix<Config::kBlockM, Config::kHeadDimV>;
  using First = Matrix<kOthers, Config::kHeadDim>;
  using Second = Matrix<kOthers, Config::kHeadDimV>;
  using StepFirst = MatrixTile<kStep, Config::kHeadDim>;
  using StepSecond = MatrixTile<kStep, Config::kHeadDimV>;
  using Scores = Accumulators<kTiles, kStep>;
  using FirstSums = Accumulators<kTiles, Config::kHeadDim / kSplit>;
  using SecondSums = Accumulators<kTiles, Config::kHeadDimV / kSplit>;
  using PairSums = typename Either<kPairSums, Scores, RegisterTile<float, 1, 1>>::Type;
  using Exchange = MatrixTile<Config::kBlockM, kStep * kSplit>;

  // Of the mask and the bias, rows by keys as they are in memory.
  static constexpr int kTileRows = kOfKeys ? kOthers : Config::kBlockM;
  static constexpr int kTileKeys = kOfKeys ? Config::kBlockM : kOthers;
  using Bias = typename Config::Bias;
  using MaskTile = ScoreTile<unsigned char, Config::kMaskRows ? kTileRows : 1, kTileKeys>;
  using BiasTile = ScoreTile<Bias, Config::kBiasRows ? kTileRows : 1, kTileKeys>;
  template <class Element, class Tile>
  using Reader = typename Either<kOfKeys, TransposedScoreReader<Element, Tile, Scores>,
                                 ScoreReader<Element, Tile, Scores>>::Type;

  // What the block is at, of the entry whose share it adds. In shared memory, for every register counts in
  // the loop. Others count from the first one of the first tile.
  struct Work {
    OwnTile own;
    Tile entry;
    int own_count;   // rows or keys of the own tile
    int others;      // how many pass by
    int skipped;     // of the first tile that nobody of the own sees
    bool careful;    // whether what hidden pairs have may be NaN
    const T* first;  // row of the first other
    const T* second;
    const Statistics<float>* statistics;  // of the own row 0, or of the first other
    TileMask<Config> sees;                // from the first row and key of the tile on
    long long place;                      // of the first row, less the first key: ALiBi's distance
    long long mask;                       // the element of the first row and key
    long long bias;
    int mask_unit;
    int bias_unit;
    Score<Config> score;
  };

  static constexpr int kOwnBytes = OwnFirst::kBytes + (kDerivative ? OwnSecond::kBytes : 0);
  // In the end the gradients take the places of the own tiles.
  static constexpr int kSecondOffset = Config::kFirst || kDerivative ? OwnFirst::kBytes : 0;
  static constexpr int kGradientBytes = Config::kSecond ? kSecondOffset + OwnSecond::kBytes : 0;
  static constexpr int kStages = Config::kStages;
  static constexpr int kStageOffset = kOwnBytes > kGradientBytes ? kOwnBytes : kGradientBytes;
  static constexpr int kStageBytes = First::kBytes + Second::kBytes;
  static constexpr int kExchangeOffset = kStageOffset + kStages * kStageBytes;
  // One at least: the warps' sums over the others meet there.
  static constexpr int kExchanges = !kExchange ? 0 : Config::kFirst && Config::kSecond ? 2 : 1;
  static constexpr int kStatisticsOffset = kExchangeOffset + kExchanges * Exchange::kBytes;
  // Where P is exchanged the statistics of the next tile can take the place of this one's in time.
  static constexpr int kStatisticsStages = !kOfKeys ? 0 : kExchange ? 1 : kStages;
  static constexpr int kStatisticsBytes = kOthers * static_cast<int>(sizeof(Statistics<float>));
  static constexpr int kBiasOffset = kStatisticsOffset + kStatisticsStages * kStatisticsBytes;
  static constexpr int kBiasBytes = Score<Config>::kBias ? BiasTile::kBytes : 0;
  static constexpr int kMaskBytes = Config::kMask ? MaskTile::kBytes : 0;
  static constexpr int kMaskOffset = kBiasOffset + kStages * kBiasBytes;
  static constexpr int kWorkOffset = kMaskOffset + kStages * kMaskBytes;
  static constexpr int kWorkBytes = 320;
  static_assert(kWorkOffset + kWorkBytes == Config::kSharedMemory,
                "backward/variant.py: BackwardVariant.shared_memory");
  static_assert(sizeof(Work) <= kWorkBytes, "the rest of shared memory");
  static_assert(kWarpRows == 16 || kWarpRows == 32, "a warp holds one or two fragments of rows");
  static_assert(!kGroups || (kWarpRows == 16 && kWarps % 4 == 0 && kSplit == 1), "64 rows a group");
  static_assert(!kGroups || kOthers == kStep, "one step");
  static_assert(!kGroups || kStages == 2 || kPairSums, "the next tile is on its way, if there is one");
  static_assert(kOthers % (kStep * kSplit) == 0 && kStatisticsRows % kOthers == 0, "steps divide tiles");
  static_assert(!kExchange || kOthers == kStep * kSplit, "one exchange a tile");
  static_assert(!kPairSums || kOthers == kStep * kSplit, "a tile of pairs stays in registers");
  static_assert(!kExchange || !Config::kFirst || FirstSums::kColumns % 16 == 0, "64 columns a warp");
  static_assert(!kExchange || !Config::kSecond || SecondSums::kColumns % 16 == 0, "64 columns a warp");

  unsigned shared = shared_address(shared_memory());

  __device__ __forceinline__ Work& work() const {
    return *reinterpret_cast<Work*>(shared_memory() + kWorkOffset);
  }
  __device__ __forceinline__ int lane() const { return threadIdx.x % 32; }
  // The first own row or key of the warps that multiply together.
  __device__ __forceinline__ int group_row() const {
    return kGroups ? threadIdx.x / 128 * kGroupRows : warp_row();
  }
  // The warp's first own row or key, and which of those that share them it is.
  __device__ __forceinline__ int warp_row() const {
    return threadIdx.x / (32 * kSplit) * kWarpRows;
  }
  __device__ __forceinline__ int part() const { return kExchange ? threadIdx.x / 32 % kSplit : 0; }

  __device__ __forceinline__ OwnFirst own_first() const { return {shared}; }
  __device__ __forceinline__ OwnSecond own_second() const { return {shared + kSecondOffset}; }
  __device__ __forceinline__ First first(int stage) const {
    return {shared + kStageOffset + stage * kStageBytes};
  }
  __device__ __forceinline__ Second second(int stage) const {
    return {shared + kStageOffset + stage * kStageBytes + First::kBytes};
  }
  // Of keys: the statistics of the rows that pass by.
  __device__ __forceinline__ unsigned statistics(int stage) const {
    return shared + kStatisticsOffset + (kStatisticsStages > 1 ? stage : 0) * kStatisticsBytes;
  }
  // dS, and the second if there are two P.
  __device__ __forceinline__ Exchange exchange(int i) const {
    return {shared + kExchangeOffset + i * Exchange::kBytes};
  }
  __device__ __forceinline__ BiasTile bias(int stage) const {
    return {shared + kBiasOffset + stage * kBiasBytes};
  }
  __device__ __forceinline__ MaskTile mask(int stage) const {
    return {shared + kMaskOffset + stage * kMaskBytes};
  }
};

// Where the share of one entry begins. `share` counts the entries that the own tile's gradients are of.
template <class Config>
__device__ __forceinline__ typename Sm80BackwardBlock<Config>::Work work_on(
    const BackwardSchedule<Config>& schedule, const OwnTile& own, long long share, bool careful) {
  using Block = Sm80BackwardBlock<Config>;
  using T = typename Block::T;
  const BackwardParams& params = schedule.params;
  const Params& forward = params.forward;
  typename Block::Work work = {};
  work.own = own;
  work.entry = schedule.entry(own, share);
  work.careful = careful;
  work.own_count = static_cast<int>(own.end - own.begin);
  const Tile& entry = work.entry;
  const Mask<Config> mask = {forward, entry.extent};
  const long long kv_head = quotient(entry.head, forward.group);
  const auto* statistics =
      entry_of<const Statistics<float>>(params.statistics, entry, entry.head);
  long long row = own.begin;
  long long key = own.begin;
  if constexpr (Config::kOfKeys) {
    const RowRange rows = mask.rows_of(own.begin, own.end);
    row = rows.begin & -static_cast<long long>(Block::kOthers);
    work.others = static_cast<int>(rows.end - row);
    work.skipped = static_cast<int>(rows.begin - row);
    work.first = entry_of<const T>(forward.q, entry, entry.head) + row * forward.q.row;
    work.second = entry_of<const T>(params.d_o, entry, entry.head) + row * params.d_o.row;
  } else {
    KeyRange keys = mask.keys_of(own.begin, own.end);
    keys = {maximum(keys.begin, own.chunk.begin), minimum(keys.end, own.chunk.end)};
    key = keys.begin & -static_cast<long long>(Block::kOthers);
    work.others = static_cast<int>(maximum(keys.end - key, 0ll));
    work.skipped = static_cast<int>(keys.begin - key);
    work.first = entry_of<const T>(forward.k, entry, kv_head) + key * forward.k.row;
    work.second = entry_of<const T>(forward.v, entry, kv_head) + key * forward.v.row;
  }
  work.statistics = statistics + row;
  work.sees = mask.tile(row, key);
  if (!Config::kOfKeys) work.sees.keys = work.others;
  work.place = row + entry.extent.offset - key;
  if (Config::kMask) {
    work.mask = element_of(forward.mask, entry, row, key);
    work.mask_unit = unit_of<unsigned char>(forward.mask, work.mask, forward.n);
  }
  if (Score<Config>::kBias) {
    work.bias = element_of(forward.bias, entry, row, key);
    work.bias_unit = unit_of<typename Config::Bias>(forward.bias, work.bias, forward.n);
  }
  work.score = Score<Config>(
      forward, number_of_head<float, typename Config::Slopes>(forward.alibi_slopes, entry));
  return work;
}

// The same where no entry has a share.
template <class Config>
__device__ __forceinline__ typename Sm80BackwardBlock<Config>::Work without_entries(
    const BackwardSchedule<Config>& schedule) {
  typename Sm80BackwardBlock<Config>::Work work = {};
  work.own = schedule.current();
  work.own_count = static_cast<int>(work.own.end - work.own.begin);
  return work;
}
