// What sm80 does in the backward pass between its products: makes P and dS of a warp's products S and dP.
#pragma once

#include "backward_params.cuh"
#include "mask.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "sm80_backward_block.cuh"
#include "sm80_scores.cuh"
#include "types.cuh"

template <class T>
constexpr bool is_float16 = false;
template <>
constexpr bool is_float16<Float16> = true;

// What a thread has of sums over the others, for each of its own rows or keys; those not asked for take no
// registers.
template <class Config, int kRows>
struct OthersSums {
  float bias[Config::kBiasSums ? kRows : 1] = {};
  float slope[Config::kSlopeSums ? kRows : 1] = {};
  float scale[Config::kScaleSums ? kRows : 1] = {};
};

// Statistics of a thread's scores: of rows those of its own, which stay in registers.
template <class Config, class Block>
struct ThreadStatistics {
  static constexpr int kRows = Config::kOfKeys ? 1 : Block::Scores::kRows;
  Statistics<float> own[kRows];

  __device__ __forceinline__ explicit ThreadStatistics(const Block& block) {
    if constexpr (!Config::kOfKeys) {
      const Statistics<float>* first = block.work().statistics + block.warp_row();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        own[r] = load_global(first + Block::Scores::row_of(block.lane(), r));
      }
    }
  }
};

// Those of a pair of columns.
template <class Config, class Block>
struct PairStatistics {
  const ThreadStatistics<Config, Block>& of_thread;
  Words4 words;

  // Of keys: `rows` has those of the columns from the thread's first one on, in shared memory.
  __device__ __forceinline__ PairStatistics(const ThreadStatistics<Config, Block>& of_thread,
                                            unsigned rows, int offset)
      : of_thread(of_thread) {
    if constexpr (Config::kOfKeys) {
      words = load_shared<Words4>(rows + offset * static_cast<int>(sizeof(Statistics<float>)));
    }
  }

  __device__ __forceinline__ float lse(int r, int i) const {
    return Config::kOfKeys ? __uint_as_float(words.word[2 * i])
                           : of_thread.own[Config::kOfKeys ? 0 : r].lse;
  }
  __device__ __forceinline__ float delta(int r, int i) const {
    return Config::kOfKeys ? __uint_as_float(words.word[2 * i + 1])
                           : of_thread.own[Config::kOfKeys ? 0 : r].delta;
  }
};

// Of which columns a row of a warp's scores sees by its place, counted from the thread's first one.
struct SeenColumns {
  int begin;
  int end;
};

template <class Config, class Block>
__device__ __forceinline__ SeenColumns seen_columns(const TileMask<Config>& sees, int lane, int r) {
  using Scores = typename Block::Scores;
  const int row = Scores::row_of(lane, r);
  const int first = Scores::column_of(lane, 0);
  if (Config::kOfKeys) return {sees.row_begin(row) - first, sees.row_end(row) - first};
  return {sees.begin(row) - first, sees.end(row) - first};
}

// Where a warp's gradients of pairs go.
template <class Config>
struct PairGradients {
  using Element = typename Config::DBias;
  Element* data;  // of the warp's first row and first key
  long long row_stride;
  long long column_stride;
  int rows;  // how many exist
  int keys;

  __device__ __forceinline__ void store(int row, int key, float value) const {
    if (row >= rows || key >= keys) return;
    store_global(data + row * row_stride + key * column_stride, Round<Element>::from(value));
  }
};

// What a step over the others is to a warp.
template <class Config, class Block>
struct Step {
  int at;      // where the tile begins
  int column;  // the warp's first other in it
  TileMask<Config> sees;
  bool idle;  // a warp, or those that multiply together, may see nothing of what other rows of the block see
  bool all;

  __device__ __forceinline__ Step(const Block& block, int at, int first)
      : at(at), column(first + block.part() * Block::kStep) {
    if constexpr (Config::kOfKeys) {
      sees = block.work().sees.from(at + column, block.warp_row());
      idle = !of_group(block).template any_visible<Block::kStep, Block::kGroupRows>();
      all = sees.template all_visible<Block::kStep, Block::kWarpRows>();
    } else {
      sees = block.work().sees.from(block.warp_row(), at + column);
      idle = !of_group(block).template any_visible<Block::kGroupRows, Block::kStep>();
      all = sees.template all_visible<Block::kWarpRows, Block::kStep>();
    }
  }

 private:
  __device__ __forceinline__ TileMask<Config> of_group(const Block& block) const {
    if constexpr (!Block::kGroups) return sees;
    if constexpr (Config::kOfKeys) return block.work().sees.from(at + column, block.group_row());
    return block.work().sees.from(block.group_row(), at + column);
  }
};

// What is made of products: P and dS at once, or one after the other, while dP or dV is being multiplied. Between
// the two -0 tells that a pair is hidden, which P itself never is.
enum class Makes { both, weights, derivatives };
constexpr unsigned kHiddenWeight = 0x80000000u;

// Replaces S by P and dP by dS, of a warp's products with the others of a step. kHides: some may be hidden, by
// their places or, if the block is careful, by a bias of -inf whatever they hold. Where no gradient can tell that a
// block needs care the bias is always asked.
template <bool kHides, Makes kMakes, class Config, class Block>
__device__ __forceinline__ void differentiate(const Params& forward, const Block& block,
                                              const Step<Config, Block>& step, int stage,
                                              const ThreadStatistics<Config, Block>& of_thread,
                                              const PairGradients<Config>& pairs,
                                              OthersSums<Config, Block::Scores::kRows>& sums,
                                              typename Block::PairSums& pair_sums,
                                              typename Block::Scores& S,
                                              typename Block::Scores& dP) {
  using Scores = typename Block::Scores;
  using Bias = typename Config::Bias;
  constexpr bool kBias = Score<Config>::kBias;
  constexpr bool kAlibi = Score<Config>::kAlibi;
  constexpr bool kDistance = kAlibi || Config::kSlopeSums;
  // At once for a row, if products aren't needed any more: mostly that takes half the instructions.
  constexpr bool kWeighs = kMakes != Makes::derivatives;
  constexpr bool kDerives = kMakes == Makes::both && Block::kDerivative;
  constexpr bool kCapRows = kWeighs && Config::kSoftcap && !Config::kScaleSums;
  constexpr bool kTells = kMakes != Makes::both && (kHides || Config::kMask);
  constexpr bool kChooses = kHides || Config::kSoftcap || Config::kBiasSums || Config::kSlopeSums ||
                            Config::kScaleSums;
  // P of float16 carries a power of two (BackwardParams::p_exponent), and is at most that: the rounding of
  // large scores puts some above lse, and without bound P would be inf.
  constexpr float kExponent = is_float16<typename Block::T> ? 15.0f : 0.0f;
  constexpr float kUnscale = is_float16<typename Block::T> ? 0x1p-15f : 1.0f;
  const ThreadPlace<Block> place;
  const int at = step.at;
  const int column = step.column;
  const Score<Config> score = block.work().score;
  const float unit_log2 = static_cast<float>(forward.unit) * 1.4426950408889634f;
  float distance = 0.0f;  // of the thread's first element
  if constexpr (kDistance) {
    const float own = static_cast<float>(place.row + Scores::row_of(place.lane, 0));
    const float other = static_cast<float>(column + Scores::column_of(place.lane, 0));
    distance = Config::kOfKeys ? static_cast<float>(block.work().place + at) + (other - own)
                               : static_cast<float>(block.work().place - at) + (own - other);
  }
  if constexpr (kCapRows) {
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) cap_products(score, r, S);
  }
  const unsigned rows = block.statistics(stage) + (column + Scores::column_of(place.lane, 0)) *
                                                      static_cast<int>(sizeof(Statistics<float>));
#pragma unroll
  for (int pair = 0; pair < Scores::kColumns / 2; ++pair) {
    const int offset = Scores::column_of(0, 2 * pair);
    const PairStatistics<Config, Block> statistics(of_thread, rows, offset);
#pragma unroll
    for (int r = 0; r < Scores::kRows; ++r) {
      StoredPair<unsigned char> shown;
      if constexpr (kWeighs && Config::kMask) {
        shown = typename Block::template Reader<unsigned char, typename Block::MaskTile>(
            block.mask(stage), place, column)(r, pair);
      }
      StoredPair<typename Either<kBias, Bias, float>::Type> bias;
      if constexpr (kWeighs && kBias) {
        bias = typename Block::template Reader<Bias, typename Block::BiasTile>(
            block.bias(stage), place, column)(r, pair);
      }
      const SeenColumns seen = kWeighs && kHides ? seen_columns<Config, Block>(step.sees, place.lane, r)
                                      : SeenColumns{0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& s = S(r, 2 * pair + i);
        float& dp = dP(r, 2 * pair + i);
        const auto derivative = [&] { return s * kUnscale * (dp - statistics.delta(r, i)); };
        if constexpr (kMakes == Makes::derivatives) {
          dp = kTells && __float_as_uint(s) == kHiddenWeight ? 0.0f : derivative();
          continue;
        }
        const float product = s;
        float added = 0.0f;
        if constexpr (kBias) added = bias.value(i);
        const float from_first = static_cast<float>(
            Config::kOfKeys ? offset + i - Scores::row_of(0, r) : Scores::row_of(0, r) - offset - i);
        const float d = kDistance ? distance + from_first : 0.0f;
        float slope = 1.0f;
        if constexpr (Config::kSoftcap) {
          if (!kCapRows) s = hyperbolic_tangent(s * score.factor);
          slope = Score<Config>::cap_slope(s);
        }
        if constexpr (Score<Config>::kTerms) s = score.with_terms(s, added, d);
        bool visible = true;
        if constexpr (kHides) visible = offset + i >= seen.begin && offset + i < seen.end;
        if constexpr (Config::kMask) visible = visible && shown.given(i);
        if constexpr (kHides && kBias) visible = visible && added != -Limits<float>::infinity();
        const float P =
            exp2_approx(minimum(multiply_add(s, unit_log2, -statistics.lse(r, i)), kExponent));
        s = visible ? P : (kTells ? __uint_as_float(kHiddenWeight) : 0.0f);
        if constexpr (kDerives) {
          // 0 where P is. Where dP may be anything it is chosen, but for a mask alone: NaN then shows in the
          // gradient, and the block takes care.
          const float dS = derivative();
          dp = !kChooses || visible ? dS : 0.0f;
          if constexpr (Block::kPairSums) {
            pair_sums(r, 2 * pair + i) += dp;
          } else if constexpr (Config::kPairs) {
            pairs.store(Scores::row_of(place.lane, r),
                        column + Scores::column_of(place.lane, 2 * pair + i), dp);
          }
          if constexpr (Config::kBiasSums) sums.bias[r] += dp;
          if constexpr (Config::kSlopeSums) {
            sums.slope[r] = multiply_add(-dp, magnitude(d), sums.slope[r]);
          }
          // Of a hidden pair the slope may be NaN.
          if constexpr (Config::kSoftcap) dp = visible ? dp * slope : 0.0f;
          if constexpr (Config::kScaleSums) {
            sums.scale[r] = multiply_add(dp, visible ? product : 0.0f, sums.scale[r]);
          }
        }
      }
    }
  }
}

// Writes the sums of a warp's pairs.
template <class Config, class Block>
__device__ __forceinline__ void store_pair_sums(const Block& block,
                                                const PairGradients<Config>& pairs,
                                                typename Block::PairSums& sums) {
  using Scores = typename Block::Scores;
#pragma unroll
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Scores::kColumns; ++c) {
      const int column = block.part() * Block::kStep + Scores::column_of(block.lane(), c);
      pairs.store(Scores::row_of(block.lane(), r), column, sums(r, c));
    }
  }
}

// The gradients of a warp's pairs that nobody sees.
template <class Config, class Block>
__device__ __forceinline__ void store_no_gradients(const Block& block, int column,
                                                   const PairGradients<Config>& pairs) {
  using Scores = typename Block::Scores;
#pragma unroll 1
  for (int r = 0; r < Scores::kRows; ++r) {
#pragma unroll 1
    for (int c = 0; c < Scores::kColumns; ++c) {
      pairs.store(Scores::row_of(block.lane(), r), column + Scores::column_of(block.lane(), c), 0.0f);
    }
  }
}
