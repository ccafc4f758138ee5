// The one argument of a kernel. cupy_flash/params.py mirrors it; both sides check every offset.
#pragma once

// Leading axes that one launch serves after merging; the head axis is apart.
constexpr int kBatchAxes = 4;

// A strided array of the problem's axes (batch..., head, row, column). Strides count elements; 0
// broadcasts. lse has no column, slopes and sinks have no row either, the lengths have only batch axes.
struct Operand {
  void* data;  // address of element (0, ..., 0); null if the call doesn't have the array
  long long head;
  long long row;
  long long column;
  long long batch[kBatchAxes];
};

struct Params {
  long long m;          // rows of q and o
  long long n;          // rows of k and v
  long long d;          // columns of q and k
  long long p;          // columns of v and o
  long long heads;      // query heads
  long long group;      // query heads per key head
  long long row_tiles;  // ceil(m / kBlockM)
  long long tiles;      // row_tiles * heads * product(batch_extent): the work of the whole grid
  long long offset;     // row i stands at key i + offset, unless it comes from the lengths
  long long left;       // row i sees keys from i + offset - left on; 0 without that bound
  long long right;      // and to i + offset + right
  double scale_q;       // power of two, applied to q
  double scale_s;       // the rest of the scale, applied to q k^T
  double p_scale;       // power of two <= 1 / (2 n), applied to P
  double softcap;       // c of c tanh(s / c); 0 without it
  double scale_softcap; // scale_s / c, what q k^T is multiplied by to get s / c
  long long batch_extent[kBatchAxes];
  double unit;          // of sm80's scores: so many natural ones
  long long reserved[3];  // the operands begin at a multiple of 64
  Operand q;             // (batch..., heads, m, d)
  Operand k;             // (batch..., heads / group, n, d)
  Operand v;             // (batch..., heads / group, n, p)
  Operand o;             // (batch..., heads, m, p)
  Operand lse;           // (batch..., heads, m); like all below null if the call doesn't have it
  Operand q_lengths;     // (batch...)
  Operand k_lengths;     // (batch...)
  Operand mask;          // (batch..., heads, m, n)
  Operand bias;          // (batch..., heads, m, n)
  Operand alibi_slopes;  // (batch..., heads)
  Operand sinks;         // (batch..., heads)
};

// NVRTC has no offsetof; the address of a member of a struct at 0, as a constant, is what its front end
// builds it from.
#ifdef CUPY_FLASH_EMULATE
#define CUPY_FLASH_OFFSET(type, member) __builtin_offsetof(type, member)
#else
#define CUPY_FLASH_OFFSET(type, member) __INTADDR__(&(static_cast<type*>(0)->member))
#endif

static_assert(sizeof(Operand) == 64, "params.py: OPERAND_DTYPE");
static_assert(sizeof(Params) == 896, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Operand, head) == 8, "params.py: OPERAND_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Operand, row) == 16, "params.py: OPERAND_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Operand, column) == 24, "params.py: OPERAND_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Operand, batch) == 32, "params.py: OPERAND_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, m) == 0, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, n) == 8, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, d) == 16, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, p) == 24, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, heads) == 32, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, group) == 40, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, row_tiles) == 48, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, tiles) == 56, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, offset) == 64, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, left) == 72, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, right) == 80, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, scale_q) == 88, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, scale_s) == 96, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, p_scale) == 104, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, softcap) == 112, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, scale_softcap) == 120, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, batch_extent) == 128, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, unit) == 160, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, reserved) == 168, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, q) == 192, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, k) == 256, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, v) == 320, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, o) == 384, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, lse) == 448, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, q_lengths) == 512, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, k_lengths) == 576, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, mask) == 640, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, bias) == 704, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, alibi_slopes) == 768, "params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(Params, sinks) == 832, "params.py: PARAMS_DTYPE");
