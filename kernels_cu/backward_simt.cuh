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
#include "simt_backward_gradients.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

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


// Chunks of columns of own rows and of others on their way to shared memory; of own rows that stay there
// only the others'.
template <class Config, int kNumber>
struct ColumnLoads {
  using Block = GradientBlock<Config>;
  using A = typename Block::A;
  using On = Sides<Config>;
  static constexpr int kColumns = kNumber == 1 ? Block::kHeadDim : Block::kHeadDimV;

  const BackwardParams& params;
  const Block& block;
  Transfer<typename On::template Own<kNumber>, Block::kThreads, Block::kBlockM, Block::kChunkD> own;
  Transfer<typename On::template Others<kNumber>, Block::kThreads, Block::kBlockN, Block::kChunkD>
      others;

  __device__ __forceinline__ ColumnLoads(const BackwardParams& params, const Block& block)
      : params(params), block(block) {}

  __device__ __forceinline__ auto own_shared() const {
    if constexpr (kNumber == 1) {
      return block.own1();
    } else {
      return block.own2();
    }
  }
  // A power of two.
  __device__ __forceinline__ A factor() const {
    return kNumber == 1 ? static_cast<A>(params.forward.scale_q) : A(1);
  }

  __device__ __forceinline__ void fetch(long long other, int column) {
    const EntryWork<Config>& work = block.work();
    const long long columns = On::template columns<kNumber>(params);
    if (!Block::kResident) {
      own.fetch(work.sides.template own<kNumber>(params), work.own.begin, work.own.end, column,
                columns);
    }
    others.template fetch<Block::kSkip>(work.sides.template others<kNumber>(params), other,
                                        work.others.end, column, columns, work.others.begin);
  }

  __device__ __forceinline__ void store() const {
    if constexpr (!Block::kResident) own.store(own_shared(), factor());
    others.store(typename Block::ColumnTile{block.stage()}, A(1));
  }

  // Brings all columns of own rows that stay.
  __device__ __forceinline__ void load_own() const {
    if constexpr (Block::kResident) {
      const EntryWork<Config>& work = block.work();
      Transfer<typename On::template Own<kNumber>, Block::kThreads, Block::kBlockM, kColumns> all;
      all.fetch(work.sides.template own<kNumber>(params), work.own.begin, work.own.end, 0,
                On::template columns<kNumber>(params));
      all.store(own_shared(), factor());
    }
  }

  // X += own others^T over all columns. The first chunk has been fetched; `after` fetches what comes next.
  template <class After>
  __device__ __forceinline__ void multiply(long long other, typename Block::Pairs& X,
                                           const After& after) {
    constexpr bool kChunks = kColumns > Block::kChunkD;
    const long long columns = On::template columns<kNumber>(params);
    int x = 0;
    do {
      store();
      __syncthreads();
      if (kChunks && x + Block::kChunkD < columns) {
        fetch(other, x + Block::kChunkD);
      } else {
        after();
      }
      block.product_of_columns(own_shared(), Block::kResident ? x : 0, X);
      __syncthreads();
      x += Block::kChunkD;
    } while (kChunks && x < columns);
  }
};

// Zeroes the others in the stage, those from `other` on, that none of the block's own sees, or is seen by.
template <class Config, int kColumns>
__device__ __forceinline__ void clear_hidden_others(
    const BackwardParams& params, const GradientBlock<Config>& block,
    const SharedTile<typename Config::Accumulate, kColumns>& stage, long long other) {
  const int j = threadIdx.x;
  if (j >= Config::kChunkN) return;
  const EntryWork<Config>& work = block.work();
  const long long row = Config::kOfKeys ? other + j : work.own.begin;
  const long long key = Config::kOfKeys ? work.own.begin : other + j;
  const TileMask<Config> sees =
      Mask<Config>{params.forward, work.entry.extent}.tile(row, key);
  const auto arrays = ScoreArrays<Config>::of(params.forward, work.entry).from(row, key);
#pragma unroll 1
  for (int i = 0; i < Config::kBlockM; ++i) {
    const int r = Config::kOfKeys ? 0 : i;
    const int c = Config::kOfKeys ? i : 0;
    if (sees.visible(r, c) && arrays(r, c).visible) return;
  }
#pragma unroll 1
  for (int c = 0; c < kColumns; ++c) *stage.at(j, c) = typename Config::Accumulate(0);
}

// Chunks of others on their way to shared memory, all their columns.
template <class Config, int kNumber>
struct RowLoads {
  using Block = GradientBlock<Config>;
  using On = Sides<Config>;
  static constexpr int kColumns = kNumber == 1 ? Block::kHeadDim : Block::kHeadDimV;

  const BackwardParams& params;
  const Block& block;
  Transfer<typename On::template Others<kNumber>, Block::kThreads, Block::kChunkN, kColumns> others;

  __device__ __forceinline__ RowLoads(const BackwardParams& params, const Block& block)
      : params(params), block(block) {}

  __device__ __forceinline__ void fetch(long long other) {
    const EntryWork<Config>& work = block.work();
    others.template fetch<Block::kSkip>(work.sides.template others<kNumber>(params), other,
                                        work.others.end, 0, On::template columns<kNumber>(params),
                                        work.others.begin);
  }

  // G += pairs others. The first chunk has been fetched; `after` fetches what comes next. `careful` if
  // others that are hidden may be NaN.
  template <class Gradient, class After>
  __device__ __forceinline__ void multiply(long long other, bool careful, Gradient& G,
                                           const After& after) {
    const int count = static_cast<int>(
        minimum(block.work().others.end - other, static_cast<long long>(Block::kBlockN)));
    const SharedTile<typename Block::A, kColumns> stage = {block.stage()};
    for (int j = 0; j < count; j += Block::kChunkN) {
      others.store(stage, typename Block::A(1));
      __syncthreads();
      if (ScoreArrays<Config>::kHide && careful) {
        clear_hidden_others<Config>(params, block, stage, other + j);
        __syncthreads();
      }
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
  const EntryWork<Config>& work;
  long long row;  // of the tile's first pair
  long long key;

  __device__ __forceinline__ TilePairs(const BackwardParams& params, const Block& block,
                                       long long other)
      : params(params),
        block(block),
        work(block.work()),
        row(kOfKeys ? other : work.own.begin),
        key(kOfKeys ? work.own.begin : other) {}

  __device__ __forceinline__ void compute(typename Block::Pairs& dP) const {
    const Mask<Config> mask = {params.forward, work.entry.extent};
    const TileMask<Config> sees = mask.tile(row, key);
    const Statistics<A>* statistics = work.statistics + row;
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
    const A place = static_cast<A>(row + work.entry.extent.offset - key);
    typename Block::Sums sums;
#pragma unroll
    for (int j = 0; j < kOthers; ++j) {
      const int other = block.other_of(j);
      const int r = kOfKeys ? other : own;
      const int c = kOfKeys ? own : other;
      bool visible = all || sees.visible(r, c);
      ScoreElements<A> found;
      if (Arrays::kHide && visible) {
        found = Arrays::of(params.forward, work.entry)(row + r, key + c);
        visible = found.visible;
      }
      A* element = block.pairs().at(own, other);
      const A dot = *element;
      const A distance = place + static_cast<A>(r) - static_cast<A>(c);
      const PairGradient<A> pair = pair_gradient(work.score, dot, dP[j], found.bias, distance,
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
    if (own >= work.tile.end || other >= work.tile.chunk.end) return;
    DBias* target = own_entry_of<DBias>(params.dbias, work.tile) + own * params.dbias.row +
                    other * params.dbias.column;
    if (work.first) {
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

// Tells the block which entry of a tile is next; nobody reads of the last one any more.
template <class Config, class Block>
__device__ __forceinline__ void begin_entry(const BackwardParams& params,
                                            const BackwardSchedule<Config>& schedule,
                                            const Block& block, long long share) {
  using A = typename Block::A;
  __syncthreads();
  if (threadIdx.x == 0) {
    const Params& forward = params.forward;
    const OwnTile tile = schedule.current();
    const Tile entry = schedule.entry(tile, share);
    EntryWork<Config>& work = block.work();
    work.tile = tile;
    work.entry = entry;
    work.sides = Sides<Config>::of(params, entry);
    work.own = own_of<Config>(tile, entry);
    work.others = others_of<Config>(params, tile, entry);
    work.score = Score<Config>(
        forward, number_of_head<A, typename Config::Slopes>(forward.alibi_slopes, entry));
    work.statistics = entry_of<const Statistics<A>>(params.statistics, entry, entry.head);
    work.first = share == 0;
  }
  if (Block::kSums && block.thread_n == 0) {
#pragma unroll 1
    for (int r = 0; r < Block::kRows; ++r) *block.sums_of(block.row_of(r)) = {};
  }
  __syncthreads();
}

// Writes what an entry leaves beside gradients: its sums, and zeros of pairs that nobody came to.
template <class Config, class Block>
__device__ __forceinline__ void end_entry(const BackwardParams& params, const Block& block) {
  const EntryWork<Config>& work = block.work();
  const OwnTile& tile = work.tile;
  if (Config::kPairs && work.first) {
    TilePairs<Config>::clear(params, block, tile, tile.chunk.begin,
                             Block::tile_of(work.others.begin));
    TilePairs<Config>::clear(params, block, tile,
                             Block::tile_of(work.others.end + Block::kBlockN - 1), tile.chunk.end);
  }
  if (Block::kSums && block.thread_n == 0) {
#pragma unroll 1
    for (int r = 0; r < Block::kRows; ++r) {
      const int row = block.row_of(r);
      if (tile.begin + row >= tile.end) break;
      block.sums_of(row)->store(params, work.entry, tile.begin + row);
    }
  }
}

// Adds what one entry gives to the gradients of a tile.
template <class Config, class Block>
__device__ __forceinline__ void add_entry(const BackwardParams& params, const Block& block,
                                          bool careful, TileGradients<Config, Block>& G) {
  constexpr bool kScores = Block::kScores;
  constexpr bool kFirst = Config::kFirst;
  constexpr bool kSecond = Config::kSecond;
  ColumnLoads<Config, 1> columns1(params, block);
  ColumnLoads<Config, 2> columns2(params, block);
  RowLoads<Config, 1> rows1(params, block);
  RowLoads<Config, 2> rows2(params, block);
  columns1.load_own();
  if (kScores) columns2.load_own();
  long long other = Block::tile_of(block.work().others.begin);
  columns1.fetch(other, 0);
  for (; other < block.work().others.end; other += Block::kBlockN) {
    if (G.ends_span(block, other)) G.end_span(params, block);
    const auto next_tile = [&] { columns1.fetch(other + Block::kBlockN, 0); };
    const auto then_first = [&] {
      if constexpr (kFirst) {
        rows1.fetch(other);
      } else {
        next_tile();
      }
    };
    const auto then_second = [&] {
      if constexpr (kSecond) {
        rows2.fetch(other);
      } else {
        then_first();
      }
    };
    {
      typename Block::Pairs X;
      columns1.multiply(other, X, [&] {
        if constexpr (kScores) {
          columns2.fetch(other, 0);
        } else {
          then_second();
        }
      });
      block.write_pairs(X);
    }
    typename Block::Pairs dP;
    if constexpr (kScores) columns2.multiply(other, dP, then_second);
    TilePairs<Config>(params, block, other).compute(dP);
    // Read by other lanes after the barrier that the first chunk needs.
    if constexpr (kSecond) {
      rows2.multiply(other, careful, G.second, then_first);
      if constexpr (kFirst) block.write_pairs(dP);
    }
    if constexpr (kFirst) rows1.multiply(other, careful, G.first, next_tile);
  }
}

template <class Config>
__device__ __forceinline__ void backward_simt(const BackwardParams& params) {
  using Block = GradientBlock<Config>;
  const Block block;
  BackwardSchedule<Config> schedule(params);
  OwnTile tile;
  while (schedule.next(tile)) {
    TileGradients<Config, Block> G;
    bool careful = false;
    for (;;) {
      G.clear();
      for (long long share = 0; share < params.shares; ++share) {
        begin_entry<Config>(params, schedule, block, share);
        add_entry<Config>(params, block, careful, G);
        end_entry<Config>(params, block);
      }
      if (careful) break;
      careful = needs_care<Config>(G.finite());
      if (!careful) break;
    }
    const OwnTile done = schedule.current();
    if (Config::kPairs && params.shares == 0) {
      TilePairs<Config>::clear(params, block, done, done.chunk.begin, done.chunk.end);
    }
    G.store(params, block, done);
  }
}
