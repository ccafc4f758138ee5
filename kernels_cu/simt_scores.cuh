// What simt does between its two products: makes scores of a tile's products, hides pairs, clears hidden values.
#pragma once

#include "mask.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "score_arrays.cuh"
#include "tile.cuh"
#include "types.cuh"

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
  write_elements(block, block.P, S);
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
  read_elements(block, block.P, S);
}

// Zeroes the values in the stage, those from key `key` on, of keys that no row of the block sees. Where
// they lie is worked out again, lest it takes registers from the products.
template <class Config, class Block>
__device__ __forceinline__ void clear_hidden_values(const Params& params, const Tile& tile,
                                                    const Block& block, long long key) {
  const int j = threadIdx.x;
  const TileMask<Config> sees = Mask<Config>{params, tile.extent}.tile(tile.row_begin, key);
  const auto arrays = ScoreArrays<Config>::of(params, tile).from(tile.row_begin, key);
  if (j < Block::kChunkN && !arrays.any_row_sees(sees, j)) block.clear_value(j);
}

// The keys that a block's rows attend to on the tensor cores, and what makes their scores. Keys count from the first
// one of the first tile, and in 32 bits: registers bound the tiles.
template <class Config, class Block>
struct AttendedKeys {
  using A = typename Block::A;
  using KType = typename Config::KType;
  using VType = typename Config::VType;
  using Arrays = ScoreArrays<Config>;

  const Params& params;
  const KType* k;
  const VType* v;
  Score<Config> score;
  Arrays arrays;
  TileMask<Config> sees;  // of the block's rows
  int skipped;            // keys of the first tile that no row sees
  A place;                // where the first row stands

  __device__ __forceinline__ AttendedKeys(const Params& params, const Tile& tile)
      : params(params),
        score(params, number_of_head<A, typename Config::Slopes>(params.alibi_slopes, tile)),
        arrays(Arrays::of(params, tile)) {
    const Mask<Config> mask = {params, tile.extent};
    const KeyRange keys = mask.keys_of(tile.row_begin, tile.row_end);
    const KeyRange tiles = Mask<Config>::template tiles_of<Block::kBlockN>(keys);
    const long long kv_head = quotient(tile.head, params.group);
    k = entry_of<const KType>(params.k, tile, kv_head) + tiles.begin * params.k.row;
    v = entry_of<const VType>(params.v, tile, kv_head) + tiles.begin * params.v.row;
    arrays = arrays.from(tile.row_begin, tiles.begin);
    sees = mask.tile(tile.row_begin, tiles);
    skipped = static_cast<int>(keys.begin - tiles.begin);
    place = static_cast<A>(tile.row_begin + tile.extent.offset - tiles.begin);
  }

  __device__ __forceinline__ int count() const { return sees.rows > 0 ? sees.keys : 0; }
  __device__ __forceinline__ Matrix<KType> keys() const { return {k, params.k.row, params.k.column}; }
  __device__ __forceinline__ Matrix<VType> values() const { return {v, params.v.row, params.v.column}; }

  // Makes scores of the products of the block's rows and the keys from `key` on.
  __device__ __forceinline__ void make_scores(const Block& block, int key, typename Block::Scores& S) const {
    const TileMask<Config> here = sees.from(0, key);
    if constexpr (Arrays::kHide || Score<Config>::kMore) {
      score_and_hide(block, here, score, arrays.from(0, key), place - static_cast<A>(key), S);
    } else {
      scale_and_hide(block, here, score, S);
    }
  }

  // Zeroes the values in shared memory, those of the keys from `key` on, of keys that no row of the block sees.
  __device__ __forceinline__ void clear_hidden_values(const Block& block, int key) const {
    const int j = threadIdx.x;
    if (j < Block::kBlockN && !arrays.from(0, key).any_row_sees(sees.from(0, key), j)) block.clear_value(j);
  }
};
