// The one argument of the kernels of the backward pass. cupy_flash/backward/params.py mirrors it; both sides
// check every offset.
#pragma once

#include "params.cuh"

// A launch computes the gradients of rows (q) or of keys (k, v): its own, in tiles. An array that broadcasts
// has the sum of its copies' gradients: each tile goes through all entries that share it, in their order.
struct BackwardParams {
  Params forward;          // the call; o and lse are inputs
  long long own_tiles;     // tiles of one head's own rows or keys
  long long tiles;         // own_tiles * chunks * own_heads * product(own_batch): the work of the whole grid
  long long own_heads;     // heads that have a gradient of their own
  long long shared_heads;  // query heads that share it: those from own head * shared_heads on
  long long shares;        // shared_heads * product(shared_batch)
  long long chunks;        // parts that the keys of a tile of rows come in; 1 but for a bias alone
  long long chunk_keys;    // keys of a part, a multiple of kBlockN
  double lse_unit;         // of Statistics::lse: so many make a natural one
  long long own_batch[kBatchAxes];     // extents of the batch axes that have gradients of their own, or 1
  long long shared_batch[kBatchAxes];  // of those that are summed over, or 1
  double p_exponent;       // of the power of two that sm80 gives P, so that float16 holds it
  long long together;      // entries whose tiles take turns, so that their others stay in the L2 cache
  long long reserved[6];   // the operands begin at a multiple of 64
  Operand d_o;         // (batch..., heads, m, p)
  Operand dlse;        // (batch..., heads, m); null if lse has no gradient
  Operand statistics;  // (batch..., heads, m), of Statistics, m rounded up to a multiple of kStatisticsRows
  Operand dq;          // (own batch..., own heads, m, d)
  Operand dk;          // (own batch..., own heads, n, d)
  Operand dv;          // (own batch..., own heads, n, p)
  Operand dbias;       // (own batch..., own heads, m, n)
  Operand bias_sums;   // (batch..., heads, m or n): of the gradients of a row's or a key's scores
  Operand slope_sums;  // (batch..., heads, m): a row's share of the slope's gradient
  Operand scale_sums;  // (batch..., heads, m): a row's share of the scale's gradient
  Operand sink_sums;   // (batch..., heads, m): a row's share of the sink's gradient
};

// Tiles of rows read statistics without asking whether the row exists.
constexpr int kStatisticsRows = 128;

// Of a row: with these P = exp(S - lse) and dS = P (dP - delta).
template <class A>
struct alignas(2 * sizeof(A)) Statistics {
  A lse;    // in BackwardParams::lse_unit; inf of a row that sees no key
  A delta;  // sum of dO O, less dlse
};

static_assert(sizeof(BackwardParams) == 1792, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, forward) == 0, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, own_tiles) == 896, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, tiles) == 904, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, own_heads) == 912, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, shared_heads) == 920, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, shares) == 928, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, chunks) == 936, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, chunk_keys) == 944, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, lse_unit) == 952, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, own_batch) == 960, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, shared_batch) == 992, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, p_exponent) == 1024, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, together) == 1032, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, reserved) == 1040, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, d_o) == 1088, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, dlse) == 1152, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, statistics) == 1216, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, dq) == 1280, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, dk) == 1344, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, dv) == 1408, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, dbias) == 1472, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, bias_sums) == 1536, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, slope_sums) == 1600, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, scale_sums) == 1664, "backward/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(BackwardParams, sink_sums) == 1728, "backward/params.py: PARAMS_DTYPE");
