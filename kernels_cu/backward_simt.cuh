// The gradients of attention with tiled FMA, every element type, d and p to 256.
//
// A block of kThreadsM x kThreadsN threads computes the gradients of kBlockM own rows or keys
// (backward_pair.cuh says of which), and kBlockN of the others at a time pass by. Of own operands of up to
// kResidentColumns columns both stay in shared memory, wider ones are loaded again with the others. The
// others pass through one stage four times: in chunks of kChunkD columns to make the scores and dP, in
// chunks of kChunkN rows to be summed. While a chunk is multiplied the next one is loaded into registers.
// A thread has own rows thread_m + r kThreadsM, so the lanes of a warp have whole rows: what a product
// leaves for the next goes through shared memory between the lanes of a warp.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "mask.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

constexpr int kResidentColumns = 64;

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
                        (kSums ? kBlockM * sizeof(Sums) : 0) ==
                    Config::kSharedMemory,
                "backward/variant.py: BackwardVariant.shared_memory");
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
  // The sums of an own row; only its first lane touches them.
  __device__ __forceinline__ Sums* sums_of(int row) const {
    return reinterpret_cast<Sums*>(stage() + kStage) + row;
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


// Chunks of columns of own rows and of others on their way to shared memory; of own rows that stay there
// only the others'.
template <class Config, class Own, class Others>
struct ColumnLoads {
  using Block = GradientBlock<Config>;
  using A = typename Block::A;
  // Whether the others that count may begin within a tile.
  static constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;

  Matrix<Own> own;
  Range own_rows;  // nothing else may be read
  Matrix<Others> others;
  Range other_rows;
  long long columns;
  A factor;  // of own rows
  Transfer<Own, Block::kThreads, Block::kBlockM, Block::kChunkD> next_own;
  Transfer<Others, Block::kThreads, Block::kBlockN, Block::kChunkD> next_others;

  __device__ __forceinline__ ColumnLoads(const Matrix<Own>& own, Range own_rows,
                                         const Matrix<Others>& others, Range other_rows,
                                         long long columns, A factor)
      : own(own), own_rows(own_rows), others(others), other_rows(other_rows), columns(columns),
        factor(factor) {}

  __device__ __forceinline__ void fetch(long long other, int column) {
    if (!Block::kResident) {
      next_own.fetch(own, own_rows.begin, own_rows.end, column, columns);
    }
    next_others.template fetch<kSkip>(others, other, other_rows.end, column, columns,
                                      other_rows.begin);
  }

  template <class OwnShared>
  __device__ __forceinline__ void store(const Block& block, const OwnShared& shared) const {
    if constexpr (!Block::kResident) next_own.store(shared, factor);
    next_others.store(typename Block::ColumnTile{block.stage()}, A(1));
  }

  // Brings all columns of the own rows that stay.
  template <int kColumns>
  __device__ __forceinline__ void load_own(const SharedTile<A, kColumns>& shared) const {
    if constexpr (Block::kResident) {
      Transfer<Own, Block::kThreads, Block::kBlockM, kColumns> all;
      all.fetch(own, own_rows.begin, own_rows.end, 0, columns);
      all.store(shared, factor);
    }
  }

  // X += own others^T over all columns. The first chunk has been fetched; `after` fetches what comes next.
  template <int kColumns, class OwnShared, class After>
  __device__ __forceinline__ void multiply(const Block& block, const OwnShared& shared,
                                           long long other, typename Block::Pairs& X,
                                           const After& after) {
    constexpr bool kChunks = kColumns > Block::kChunkD;
    int x = 0;
    do {
      store(block, shared);
      __syncthreads();
      if (kChunks && x + Block::kChunkD < columns) {
        fetch(other, x + Block::kChunkD);
      } else {
        after();
      }
      block.product_of_columns(shared, Block::kResident ? x : 0, X);
      __syncthreads();
      x += Block::kChunkD;
    } while (kChunks && x < columns);
  }
};

// Chunks of others, all their columns.
template <class Config, class Others, int kColumns>
struct RowLoads {
  using Block = GradientBlock<Config>;
  using A = typename Block::A;
  static constexpr bool kSkip = Config::kOfKeys ? Config::kRight : Config::kLeft;

  Matrix<Others> others;
  Range other_rows;
  long long columns;
  Transfer<Others, Block::kThreads, Block::kChunkN, kColumns> next;

  __device__ __forceinline__ RowLoads(const Matrix<Others>& others, Range other_rows,
                                      long long columns)
      : others(others), other_rows(other_rows), columns(columns) {}

  __device__ __forceinline__ void fetch(long long other) {
    next.template fetch<kSkip>(others, other, other_rows.end, 0, columns, other_rows.begin);
  }

  // G += pairs others. The first chunk has been fetched; `after` fetches what comes next, `clear` zeroes in
  // the stage what must not be multiplied.
  template <class Gradient, class After, class Clear>
  __device__ __forceinline__ void multiply(const Block& block, long long other, Gradient& G,
                                           const After& after, const Clear& clear) {
    const int count = static_cast<int>(
        minimum(other_rows.end - other, static_cast<long long>(Block::kBlockN)));
    const SharedTile<A, kColumns> stage = {block.stage()};
    for (int j = 0; j < count; j += Block::kChunkN) {
      next.store(stage, A(1));
      __syncthreads();
      clear(stage, other + j);
      if (j + Block::kChunkN < count) {
        fetch(other + j + Block::kChunkN);
      } else {
        after();
      }
      block.product_of_rows(j, G);
      __syncthreads();
    }
  }
};

// The pairs of a tile: from products, which wait in the tile of pairs, and dP to P there and dx, there too if
// P isn't needed, in place of dP otherwise.
template <class Config>
struct TilePairs {
  using Block = GradientBlock<Config>;
  using A = typename Block::A;
  using Arrays = ScoreArrays<Config>;
  static constexpr bool kOfKeys = Config::kOfKeys;
  static constexpr int kRows = Block::kRows;
  static constexpr int kOthers = Block::kOthers;
  // Own rows take turns where their pairs need more than products: unrolled, their loads take more
  // registers than there are.
  static constexpr bool kTurns =
      Arrays::kHide || Score<Config>::kMore || Config::kPairs || Block::kSums;

  const BackwardParams& params;
  const Block& block;
  const Tile& entry;
  const Score<Config>& score;
  long long row;  // of the tile's first pair
  long long key;
  const OwnTile& tile;
  bool first;  // entry that adds to the gradients of pairs

  __device__ __forceinline__ void compute(typename Block::Pairs& dP) const {
    const Mask<Config> mask = {params.forward, entry.extent};
    const TileMask<Config> sees = mask.tile(row, key);
    const Statistics<A>* statistics =
        entry_of<const Statistics<A>>(params.statistics, entry, entry.head) + row;
    Statistics<A> of_other[kOthers];
    if (kOfKeys) {
#pragma unroll
      for (int j = 0; j < kOthers; ++j) of_other[j] = load_global(statistics + block.other_of(j));
    }
    const bool all = sees.template all_visible<kOfKeys ? Block::kBlockN : Block::kBlockM,
                                               kOfKeys ? Block::kBlockM : Block::kBlockN>();
    if constexpr (kTurns) {
#pragma unroll 1
      for (int r = 0; r < kRows; ++r) {
        own_row(sees, all, statistics, of_other, block.row_of(r), dP.value[0]);
        // Registers have no index that isn't known: whose turn is next comes to the first.
        rotate(dP);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        own_row(sees, all, statistics, of_other, block.row_of(r), dP.value[r]);
      }
    }
  }

  // Clears the gradients of pairs with keys from begin up to end. Each by the thread that adds to it
  // later: `begin` is that of a tile.
  __device__ static __forceinline__ void clear(const BackwardParams& params, const Block& block,
                                               const OwnTile& tile, long long begin,
                                               long long end) {
    using DBias = typename Config::DBias;
    DBias* dbias = own_entry_of<DBias>(params.dbias, tile);
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      const long long own = tile.begin + block.row_of(r);
      if (own >= tile.end) break;
#pragma unroll 1
      for (long long other = begin + block.thread_n; other < end; other += Block::kThreadsN) {
        store_global(dbias + own * params.dbias.row + other * params.dbias.column,
                     Round<DBias>::from(A(0)));
      }
    }
  }

 private:
  __device__ __forceinline__ void own_row(const TileMask<Config>& sees, bool all,
                                          const Statistics<A>* statistics,
                                          const Statistics<A> (&of_other)[kOthers], int own,
                                          A (&dP)[kOthers]) const {
    const Statistics<A> of_own = kOfKeys ? Statistics<A>{} : load_global(statistics + own);
    const A place = static_cast<A>(row + entry.extent.offset - key);
    typename Block::Sums sums;
#pragma unroll
    for (int j = 0; j < kOthers; ++j) {
      const int other = block.other_of(j);
      const int r = kOfKeys ? other : own;
      const int c = kOfKeys ? own : other;
      bool visible = all || sees.visible(r, c);
      ScoreElements<A> found;
      if (Arrays::kHide && visible) {
        found = Arrays::of(params.forward, entry)(row + r, key + c);
        visible = found.visible;
      }
      A* element = block.pairs().at(own, other);
      const A dot = *element;
      const A distance = place + static_cast<A>(r) - static_cast<A>(c);
      const PairGradient<A> pair = pair_gradient(score, dot, dP[j], found.bias, distance,
                                                 kOfKeys ? of_other[j] : of_own, visible);
      sums.add(pair, dot, distance);
      if constexpr (Config::kPairs) store_pair(row + r, key + c, pair.dy);
      *element = Config::kSecond ? pair.P : pair.dx;
      if (Config::kSecond) dP[j] = pair.dx;
    }
    if constexpr (Block::kSums) {
      const typename Block::Sums total = sums.template over_lanes<Block::kThreadsN>();
      if (block.thread_n == 0) *block.sums_of(own) += total;
    }
  }

  __device__ __forceinline__ void store_pair(long long own, long long other, A dy) const {
    using DBias = typename Config::DBias;
    if (own >= tile.end || other >= tile.chunk.end) return;
    DBias* target = own_entry_of<DBias>(params.dbias, tile) + own * params.dbias.row +
                    other * params.dbias.column;
    if (first) {
      store_global(target, Round<DBias>::from(dy));
    } else {
      add_pair<Config>(target, dy);
    }
  }

  static __device__ __forceinline__ void rotate(typename Block::Pairs& X) {
#pragma unroll
    for (int j = 0; j < kOthers; ++j) {
      const A front = X(0, j);
#pragma unroll
      for (int r = 1; r < kRows; ++r) X(r - 1, j) = X(r, j);
      X(kRows - 1, j) = front;
    }
  }
};

// Zeroes the others in the stage, those from `other` on, that none of the block's own sees, or is seen by.
// Where they lie is worked out again, lest it takes registers from the products.
template <class Config, int kColumns>
__device__ __forceinline__ void clear_hidden_others(
    const BackwardParams& params, const BackwardSchedule<Config>& schedule, long long share,
    const SharedTile<typename Config::Accumulate, kColumns>& stage, long long other) {
  const int j = threadIdx.x;
  if (j >= Config::kChunkN) return;
  const OwnTile own = schedule.current();
  const Tile entry = schedule.entry(own, share);
  const long long row = Config::kOfKeys ? other + j : own.begin;
  const long long key = Config::kOfKeys ? own.begin : other + j;
  const TileMask<Config> sees = Mask<Config>{params.forward, entry.extent}.tile(row, key);
  const auto arrays = ScoreArrays<Config>::of(params.forward, entry).from(row, key);
#pragma unroll 1
  for (int i = 0; i < Config::kBlockM; ++i) {
    const int r = Config::kOfKeys ? 0 : i;
    const int c = Config::kOfKeys ? i : 0;
    if (sees.visible(r, c) && arrays(r, c).visible) return;
  }
#pragma unroll 1
  for (int c = 0; c < kColumns; ++c) *stage.at(j, c) = typename Config::Accumulate(0);
}

// Adds what one entry gives to the gradients of a tile.
template <class Config, class Block>
__device__ __forceinline__ void add_entry(const BackwardParams& params,
                                          const BackwardSchedule<Config>& schedule,
                                          const Block& block, const OwnTile& tile, long long share,
                                          bool careful, typename Block::First& G1,
                                          typename Block::Second& G2) {
  using A = typename Block::A;
  using On = Sides<Config>;
  constexpr bool kScores = Block::kScores;
  constexpr bool kFirst = Config::kFirst;
  constexpr bool kSecond = Config::kSecond;
  const Params& forward = params.forward;
  const Tile entry = schedule.entry(tile, share);
  const On on = {params, entry};
  const Range own = on.own(tile);
  const Range others = on.others(tile);
  const Score<Config> score(
      forward, number_of_head<A, typename Config::Slopes>(forward.alibi_slopes, entry));
  ColumnLoads<Config, typename On::Own1, typename On::Others1> columns1(
      on.own1(), own, on.others1(), others, forward.d, static_cast<A>(forward.scale_q));
  ColumnLoads<Config, typename On::Own2, typename On::Others2> columns2(
      on.own2(), own, on.others2(), others, forward.p, A(1));
  RowLoads<Config, typename On::Others1, Block::kHeadDim> rows1(on.others1(), others, forward.d);
  RowLoads<Config, typename On::Others2, Block::kHeadDimV> rows2(on.others2(), others, forward.p);
  const auto clear = [&](const auto& stage, long long other) {
    if (ScoreArrays<Config>::kHide && careful) {
      clear_hidden_others<Config>(params, schedule, share, stage, other);
      __syncthreads();
    }
  };

  // The barrier after the last stage has passed, so nobody reads what was here.
  columns1.load_own(block.own1());
  if (kScores) columns2.load_own(block.own2());
  if constexpr (Block::kSums) {
    if (block.thread_n == 0) {
#pragma unroll 1
      for (int r = 0; r < Block::kRows; ++r) *block.sums_of(block.row_of(r)) = {};
    }
  }
  const long long begin = others.begin & -static_cast<long long>(Block::kBlockN);
  long long other = begin;
  columns1.fetch(other, 0);
  for (; other < others.end; other += Block::kBlockN) {
    const auto next_tile = [&] { columns1.fetch(other + Block::kBlockN, 0); };
    const auto then_first = [&] {
      if constexpr (kFirst) rows1.fetch(other);
      else next_tile();
    };
    const auto then_second = [&] {
      if constexpr (kSecond) rows2.fetch(other);
      else then_first();
    };
    {
      typename Block::Pairs X;
      columns1.template multiply<Block::kHeadDim>(block, block.own1(), other, X, [&] {
        if constexpr (kScores) columns2.fetch(other, 0);
        else then_second();
      });
      block.write_pairs(X);
    }
    typename Block::Pairs dP;
    if constexpr (kScores) {
      columns2.template multiply<Block::kHeadDimV>(block, block.own2(), other, dP, then_second);
    }
    const TilePairs<Config> pairs = {params,
                                     block,
                                     entry,
                                     score,
                                     Config::kOfKeys ? other : tile.begin,
                                     Config::kOfKeys ? tile.begin : other,
                                     tile,
                                     share == 0};
    pairs.compute(dP);
    // Read by other lanes after the barrier that the first chunk needs.
    if constexpr (kSecond) {
      rows2.multiply(block, other, G2, then_first, clear);
      if constexpr (kFirst) block.write_pairs(dP);
    }
    if constexpr (kFirst) rows1.multiply(block, other, G1, next_tile, clear);
  }
  if constexpr (Config::kPairs) {
    if (share == 0) {
      TilePairs<Config>::clear(params, block, tile, tile.chunk.begin, begin);
      TilePairs<Config>::clear(params, block, tile, other, tile.chunk.end);
    }
  }
  if constexpr (Block::kSums) {
    if (block.thread_n == 0) {
#pragma unroll 1
      for (int r = 0; r < Block::kRows; ++r) {
        const int row = block.row_of(r);
        if (tile.begin + row < tile.end) {
          block.sums_of(row)->store(params, entry, tile.begin + row);
        }
      }
    }
  }
}

// Writes a thread's part of a gradient.
template <class T, class Block, class Gradient>
__device__ __forceinline__ void store_gradient(const Block& block, const Operand& target,
                                               const OwnTile& tile, long long columns,
                                               typename Block::A factor_q,
                                               typename Block::A factor_s, Gradient& G) {
  T* gradient = own_entry_of<T>(target, tile);
#pragma unroll
  for (int r = 0; r < Block::kRows; ++r) {
    const long long own = tile.begin + block.row_of(r);
    if (own >= tile.end) continue;
#pragma unroll
    for (int c = 0; c < Gradient::kColumns; ++c) {
      const int column = block.template column_of<Gradient::kColumns>(c);
      if (column < columns) {
        store_global(gradient + own * target.row + column * target.column,
                     Round<T>::from(G(r, c) * factor_q * factor_s));
      }
    }
  }
}

template <class Config>
__device__ __forceinline__ void backward_simt(const BackwardParams& params) {
  using A = typename Config::Accumulate;
  using Block = GradientBlock<Config>;
  const Params& forward = params.forward;
  const Block block;
  BackwardSchedule<Config> schedule(params);
  OwnTile tile;
  while (schedule.next(tile)) {
    typename Block::First G1;
    typename Block::Second G2;
    bool careful = false;
    for (;;) {
      G1.clear();
      G2.clear();
      for (long long share = 0; share < params.shares; ++share) {
        add_entry<Config>(params, schedule, block, tile, share, careful, G1, G2);
      }
      if (careful) break;
      careful = needs_care<Config>(finite(G1) && finite(G2));
      if (!careful) break;
    }
    const OwnTile done = schedule.current();
    if (Config::kPairs && params.shares == 0) {
      TilePairs<Config>::clear(params, block, done, done.chunk.begin, done.chunk.end);
    }
    if constexpr (Config::kFirst) {
      store_gradient<typename Sides<Config>::Own1>(
          block, Config::kOfKeys ? params.dk : params.dq, done, forward.d,
          static_cast<A>(forward.scale_q), static_cast<A>(forward.scale_s), G1);
    }
    if constexpr (Config::kSecond) {
      store_gradient<typename Config::VType>(block, params.dv, done, forward.p, A(1), A(1), G2);
    }
  }
}
