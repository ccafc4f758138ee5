// The one argument of the softmax kernels. cupy_flash/softmaxes/params.py mirrors it; both sides check
// every offset.
#pragma once

#include "params.cuh"

// Of an operand `batch` holds the strides of the axes that tell rows apart and `column` that of the axis
// which is summed over; `head` and `row` are unused.
struct SoftmaxParams {
  long long rows;          // product(row_extent)
  long long columns;       // of a row
  long long parts;         // of a row: blocks that share it; 1 if one block or fewer lanes have it all
  long long part_columns;  // of every part but the last, a multiple of a pack
  long long row_extent[kBatchAxes];
  Operand x;
  Operand o;
  Operand m;  // (rows, parts), contiguous: maximum of each part; null if there is one
  Operand l;  // (rows, parts), contiguous: sum of each part; null if there is one
};

static_assert(sizeof(SoftmaxParams) == 320, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, rows) == 0, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, columns) == 8, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, parts) == 16, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, part_columns) == 24, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, row_extent) == 32, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, x) == 64, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, o) == 128, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, m) == 192, "softmaxes/params.py: PARAMS_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SoftmaxParams, l) == 256, "softmaxes/params.py: PARAMS_DTYPE");
