// The gradients of a tile in backward_simt.cuh: sums in registers, and on their way to global memory.
//
// One sum over all others is off by up to as many roundings as there are others: with 1,000 rows in float32 by
// 10.8 times the error of a matrix product (H200). Gradients of the type that sums run in are therefore summed
// in spans, and the spans in the result itself: the same thread reads it again, so no barrier is needed. What
// is rounded to fewer bits in the end stays in registers.
#pragma once

#include "backward_pair.cuh"
#include "backward_params.cuh"
#include "backward_schedule.cuh"
#include "tile.cuh"
#include "types.cuh"

// Whether a gradient that is summed in A is summed in spans.
template <class T, class A>
constexpr bool kInSpans = false;
template <class A>
constexpr bool kInSpans<A, A> = true;

// A thread's part of both gradients.
template <class Config, class Block>
struct TileGradients {
  using A = typename Block::A;
  using FirstType = typename Sides<Config>::template Own<1>;
  using SecondType = typename Config::VType;
  static constexpr bool kFirstInSpans = Config::kFirst && kInSpans<FirstType, A>;
  static constexpr bool kSecondInSpans = Config::kSecond && kInSpans<SecondType, A>;
  static_assert(kSpan % Block::kBlockN == 0, "spans are of whole tiles");

  typename Block::First first;    // of dq or dk
  typename Block::Second second;  // of dv
  bool stored;       // whether the results hold spans
  unsigned broken;  // which of the thread's rows have a span there that isn't finite, a bit each

  __device__ __forceinline__ void clear() {
    first.clear();
    second.clear();
    stored = false;
    broken = 0;
  }

  // Whether the thread's part of a row is finite.
  __device__ __forceinline__ bool finite(int r) {
    return (broken >> r & 1u) == 0 && (!Config::kFirst || ::finite(r, first)) && (!Config::kSecond || ::finite(r, second));
  }

  __device__ __forceinline__ bool finite() {
    bool all = true;
#pragma unroll
    for (int r = 0; r < Block::kRows; ++r) all = finite(r) && all;
    return all;
  }

  // Whether a span ends before the tile of others at `other`. That depends on where the tile lies, and not on
  // where the first one does: else a row alone had other bits than among others.
  static __device__ __forceinline__ bool ends_span(const Block& block, long long other) {
    if constexpr (!kFirstInSpans && !kSecondInSpans) return false;
    const auto& work = block.work();
    if (other == Block::tile_of(work.others.begin)) return !work.first;
    return other % kSpan == 0;
  }

  __device__ __forceinline__ void end_span(const BackwardParams& params, const Block& block) {
#pragma unroll
    for (int r = 0; r < Block::kRows; ++r) broken |= static_cast<unsigned>(!finite(r)) << r;
    const OwnTile& tile = block.work().tile;
    if constexpr (kFirstInSpans) {
      store_first(params, block, tile, A(1), A(1));
      first.clear();
    }
    if constexpr (kSecondInSpans) {
      store_second(params, block, tile);
      second.clear();
    }
    stored = true;
  }

  __device__ __forceinline__ void store(const BackwardParams& params, const Block& block,
                                        const OwnTile& tile) {
    if constexpr (Config::kFirst) {
      store_first(params, block, tile, static_cast<A>(params.forward.scale_q),
                  static_cast<A>(params.forward.scale_s));
    }
    if constexpr (Config::kSecond) store_second(params, block, tile);
  }

 private:
  __device__ __forceinline__ void store_first(const BackwardParams& params, const Block& block,
                                              const OwnTile& tile, A factor_q, A factor_s) {
    store_gradient<FirstType>(block, Config::kOfKeys ? params.dk : params.dq, tile,
                              params.forward.d, factor_q, factor_s, first);
  }

  __device__ __forceinline__ void store_second(const BackwardParams& params, const Block& block,
                                               const OwnTile& tile) {
    store_gradient<SecondType>(block, params.dv, tile, params.forward.p, A(1), A(1), second);
  }

  template <class T, class Gradient>
  __device__ __forceinline__ void store_gradient(const Block& block, const Operand& target,
                                                 const OwnTile& tile, long long columns, A factor_q,
                                                 A factor_s, Gradient& G) const {
    constexpr int kColumns = Gradient::kColumns;
    constexpr int pack = Block::template kPack<kColumns>;
    const int count = static_cast<int>(columns);
    const long long step = target.column;
    const long long jump = (pack * (Block::kThreadsN - 1) + 1) * step;  // to the next piece
    T* own_columns = own_entry_of<T>(target, tile) + block.template column_of<kColumns>(0) * step;
#pragma unroll
    for (int r = 0; r < Block::kRows; ++r) {
      const long long own = tile.begin + block.row_of(r);
      if (own >= tile.end) continue;
      T* element = own_columns + own * target.row;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        if (block.template column_of<kColumns>(c) < count) {
          A sum = G(r, c);
          if constexpr (kInSpans<T, A>) {
            if (stored) sum += load_global(element);
          }
          store_global(element, Round<T>::from(sum * factor_q * factor_s));
        }
        element += (c + 1) % pack == 0 ? jump : step;
      }
    }
  }
};
