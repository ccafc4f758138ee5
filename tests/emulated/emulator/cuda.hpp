// The CUDA names that the kernels use, for a C++17 compiler. Include before the kernel text.
//
// Anything that is missing here is meant to be: the kernels keep to one-dimensional launches,
// full-mask collectives and dynamic shared memory, and a kernel that does not fails to compile.
#pragma once

// C's functions alone: parsing C++'s overloads, which no kernel takes, is a fifth of a small kernel's build.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS

// CUDA has these for float too, where C's would compute a double.
float ceil(float) = delete;
float copysign(float, float) = delete;
float exp(float) = delete;
float exp2(float) = delete;
float fabs(float) = delete;
float floor(float) = delete;
float fma(float, float, float) = delete;
float fmax(float, float) = delete;
float fmin(float, float) = delete;
float ldexp(float, int) = delete;
float log(float) = delete;
float log2(float) = delete;
float round(float) = delete;
float sqrt(float) = delete;
float tanh(float) = delete;

#include "async.hpp"
#include "barrier.hpp"
#include "launch.hpp"
#include "matrix.hpp"
#include "mbarriers.hpp"
#include "named_barriers.hpp"
#include "memory.hpp"
#include "thread.hpp"
#include "warp.hpp"
#include "wgmma.hpp"

#define CUPY_FLASH_EMULATE 1

#define __global__
#define __device__
// As the compiler sees fit: to inline all takes builds half as long again, and launches no less.
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__

namespace emu {

struct Index {
  unsigned x;
};

}  // namespace emu

#define threadIdx (::emu::Index{::emu::state.current->index})
#define blockIdx (::emu::Index{::emu::state.block_index})
#define blockDim (::emu::Index{::emu::state.block_threads})
#define gridDim (::emu::Index{::emu::state.grid_blocks})

// Macros, because only they can name the line that a thread waits at.
#define __syncthreads() ::emu::sync_threads(EMU_SITE)
#define __syncthreads_or(...) ::emu::sync_threads_or(EMU_SITE, __VA_ARGS__)
#define __syncwarp() ::emu::sync_warp(EMU_SITE)
#define __any_sync(...) ::emu::any(EMU_SITE, __VA_ARGS__)
#define __shfl_sync(...) ::emu::shuffle(EMU_SITE, __VA_ARGS__)
#define __shfl_xor_sync(...) ::emu::shuffle_xor(EMU_SITE, __VA_ARGS__)

namespace emu {

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace emu

inline unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bit_cast<double>(x); }
