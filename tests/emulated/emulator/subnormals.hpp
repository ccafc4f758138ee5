// Flushing float32 numbers below 2^-126 to zero, as NVRTC's -ftz=true makes kernels do.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace emu {

// Makes this host thread's SSE arithmetic flush results (FTZ) and operands (DAZ); returns what
// restore_arithmetic needs. It flushes double too, which a GPU never does: kernels that sum in double
// run without it. Elsewhere than on x86-64 nothing is flushed.
inline unsigned flush_subnormals(bool on) {
#if defined(__x86_64__)
  constexpr unsigned kFlushResults = 0x8000u;
  constexpr unsigned kFlushOperands = 0x0040u;
  const unsigned before = _mm_getcsr();
  if (on) _mm_setcsr(before | kFlushResults | kFlushOperands);
  return before;
#else
  return on;
#endif
}

inline void restore_arithmetic(unsigned before) {
#if defined(__x86_64__)
  _mm_setcsr(before);
#else
  static_cast<void>(before);
#endif
}

}  // namespace emu
