// Attention of one row by one warp, one key a lane, any d and p.
#pragma once

#include "mask.cuh"
#include "naive_columns.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "softmax.cuh"
#include "tile.cuh"
#include "types.cuh"

template <class Config>
struct NaiveRow {
  using A = typename Config::Accumulate;
  using Arrays = ScoreArrays<Config>;
  static constexpr bool kSink = is_given<typename Config::Sinks>;
  using Softmax = OnlineSoftmax<A, 1, kWarp, NaturalWeight<A>, kSink>;
  using Output = RegisterTile<A, 1, kColumnsPerLane>;

  const Params& params;
  const typename Config::QType* q;  // row of q
  const typename Config::KType* k;  // (n, d)
  const typename Config::VType* v;  // (n, p)
  Mask<Config> mask;
  Arrays arrays;  // from row and key 0 on
  Score<Config> of_product;
  A sink;
  long long row;
  int lane;

  // The score of a key, and whether the row sees it.
  __device__ __forceinline__ A score(long long key, bool& visible) const {
    const A scale_q = static_cast<A>(params.scale_q);
    visible = mask.tile(row, key).visible(0, 0);
    A bias = A(0);
    if (Arrays::kHide && visible) {
      const ScoreElements<A> found = arrays(row, key);
      visible = found.visible;
      bias = found.bias;
    }
    A dot = A(0);
    if (visible) {
      for (long long x = 0; x < params.d; ++x) {
        const A q_x = Convert<A>::from(load_global(q + x * params.q.column)) * scale_q;
        const A k_x = Convert<A>::from(
            load_global(k + key * params.k.row + x * params.k.column));
        dot = multiply_add(q_x, k_x, dot);
      }
    }
    const A distance = static_cast<A>(row + mask.extent.offset - key);
    return Score<Config>::masked(of_product(dot, bias, distance), visible);
  }

  // Sums columns [column, column + kColumnChunk) of O over the row's keys.
  __device__ __forceinline__ void attend(long long column, Softmax& softmax,
                                         Output& O) const {
    const KeyRange keys = mask.keys_of(row, row + 1);
    const KeyRange tiles = Mask<Config>::template tiles_of<kWarp>(keys);
    for (long long tile = tiles.begin; tile < tiles.end; tile += kWarp) {
      RegisterTile<A, 1, 1> S;
      bool visible;
      S(0, 0) = score(tile + lane, visible);
      A alpha[1];
      softmax.update(S, alpha);
      scale_rows(O, alpha);
      const int first = Config::kLeft ? static_cast<int>(maximum(keys.begin - tile, 0ll)) : 0;
      const int count = static_cast<int>(minimum(keys.end - tile, static_cast<long long>(kWarp)));
      for (int j = first; j < count; ++j) {
        // Values of hidden keys may be NaN.
        if (Arrays::kHide && !__shfl_sync(0xffffffffu, static_cast<int>(visible), j)) continue;
        const A P = __shfl_sync(0xffffffffu, S(0, 0), j);
#pragma unroll
        for (int c = 0; c < kColumnsPerLane; ++c) {
          const long long x = column + lane + c * kWarp;
          if (x < params.p) {
            const A v_x = Convert<A>::from(
                load_global(v + (tile + j) * params.v.row + x * params.v.column));
            O(0, c) = multiply_add(P, v_x, O(0, c));
          }
        }
      }
    }
    if constexpr (kSink) {
      A alpha[1];
      softmax.finish(sink, alpha);
      scale_rows(O, alpha);
    } else {
      softmax.finish();
    }
  }
};

// Computes and writes a row of a tile.
template <class Config>
__device__ __forceinline__ void attend_row(const Params& params, const Tile& tile, long long row) {
  using A = typename Config::Accumulate;
  using OType = typename Config::OType;
  const int lane = threadIdx.x % kWarp;
  const long long kv_head = tile.head / params.group;
  const NaiveRow<Config> work = {
      params,
      entry_of<const typename Config::QType>(params.q, tile, tile.head) + row * params.q.row,
      entry_of<const typename Config::KType>(params.k, tile, kv_head),
      entry_of<const typename Config::VType>(params.v, tile, kv_head),
      {params, tile.extent},
      ScoreArrays<Config>::of(params, tile),
      Score<Config>(params, number_of_head<A, typename Config::Slopes>(params.alibi_slopes, tile)),
      number_of_head<A, typename Config::Sinks>(params.sinks, tile),
      row,
      lane,
  };
  OType* o = entry_of<OType>(params.o, tile, tile.head) + row * params.o.row;
  // One pass even if v has no column: lse needs it.
  long long column = 0;
  do {
    typename NaiveRow<Config>::Softmax softmax(params);
    typename NaiveRow<Config>::Output O;
    work.attend(column, softmax, O);
#pragma unroll
    for (int c = 0; c < kColumnsPerLane; ++c) {
      const long long x = column + lane + c * kWarp;
      if (x < params.p) {
        store_global(o + x * params.o.column, Round<OType>::from(softmax.template output<OType>(0, O(0, c))));
      }
    }
    if (column == 0 && lane == 0 && params.lse.data != nullptr) {
      store_global(entry_of<A>(params.lse, tile, tile.head) + row * params.lse.row, softmax.lse(0));
    }
    column += kColumnChunk;
  } while (column < params.p);
}
