// Sums of what the passes left of each row, key or pair, over the axes along which an array of options
// broadcasts: in double, in an order that depends on nothing but the extents.
#pragma once

#include "division.cuh"
#include "params.cuh"
#include "softmax.cuh"
#include "types.cuh"

// The axes of a problem: batch, head, row and column.
constexpr int kAxes = kBatchAxes + 3;

// cupy_flash/backward/params.py mirrors it.
struct SumParams {
  long long targets;        // product(kept)
  long long terms;          // product(summed)
  long long kept[kAxes];    // extents of the axes that the target has, or 1
  long long summed[kAxes];  // of those that are summed over, or 1
  Operand source;
  Operand target;
};

static_assert(sizeof(SumParams) == 256, "backward/params.py: SUM_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SumParams, targets) == 0, "backward/params.py: SUM_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SumParams, terms) == 8, "backward/params.py: SUM_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SumParams, kept) == 16, "backward/params.py: SUM_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SumParams, summed) == 72, "backward/params.py: SUM_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SumParams, source) == 128, "backward/params.py: SUM_DTYPE");
static_assert(CUPY_FLASH_OFFSET(SumParams, target) == 192, "backward/params.py: SUM_DTYPE");

// Where the index-th of so many elements lies, the last axis fastest.
__device__ __forceinline__ long long place_of(long long index, const long long (&extent)[kAxes],
                                              const Operand& operand) {
  long long place = 0;
#pragma unroll
  for (int axis = kAxes - 1; axis >= 0; --axis) {
    if (extent[axis] == 1) continue;
    const long long outer = quotient(index, extent[axis]);
    const long long stride = axis < kBatchAxes        ? operand.batch[axis]
                             : axis == kBatchAxes     ? operand.head
                             : axis == kBatchAxes + 1 ? operand.row
                                                      : operand.column;
    place += (index - outer * extent[axis]) * stride;
    index = outer;
  }
  return place;
}

// The sum of what kThreads threads have, a power of two of warps; all get it.
template <int kThreads>
__device__ __forceinline__ double block_sum(double value) {
  double* parts = reinterpret_cast<double*>(shared_memory());
  value = lanes_sum<double, 32>(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += parts[warp];
  return sum;
}

// kTeam threads share a target: all of a block, or one.
template <class Config>
__device__ __forceinline__ void backward_sum(const SumParams& params) {
  using Source = typename Config::Source;
  using Target = typename Config::Target;
  constexpr int kTeam = Config::kTeam;
  constexpr int kThreads = Config::kThreads;
  static_assert(kTeam == 1 || kTeam == kThreads, "a thread, or the block");
  const Source* source = static_cast<const Source*>(params.source.data);
  Target* target = static_cast<Target*>(params.target.data);
  const long long step = static_cast<long long>(gridDim.x) * (kThreads / kTeam);
  const long long first = static_cast<long long>(blockIdx.x) * (kThreads / kTeam);
  for (long long t = first + (kTeam == 1 ? threadIdx.x : 0); t < params.targets; t += step) {
    const Source* terms = source + place_of(t, params.kept, params.source);
    double sum = 0.0;
    for (long long i = kTeam == 1 ? 0 : threadIdx.x; i < params.terms; i += kTeam) {
      sum += Convert<double>::from(load_global(terms + place_of(i, params.summed, params.source)));
    }
    if constexpr (kTeam > 1) sum = block_sum<kThreads>(sum);
    if (kTeam == 1 || threadIdx.x == 0) {
      store_global(target + place_of(t, params.kept, params.target),
                   Round<Target>::from(static_cast<typename Config::Accumulate>(sum)));
    }
  }
}
