// A launch: the parameters by value, one block after another, the first failure as a message.
#pragma once

#include <string.h>

#include <new>

#include "memory.hpp"

namespace emu {

// Mirrored field by field in emulation.py.
struct Launch {
  const Region* regions;
  unsigned region_count;
  unsigned grid;
  unsigned threads;
  int schedule;
  unsigned long long smem;
  unsigned long long seed;
  unsigned long long max_steps;
  int flush_subnormals;
  int landing;  // of cp.async: 0 late, 1 early
  const unsigned* blocks;  // of the grid, in the order in which they run
};

// Ends the calling thread, which must have waited for all that it started.
[[noreturn]] void exit_thread();

const char* launch_threads(void (*thread_entry)(), const Launch& config);

// The kernel and its parameters, as every thread of the launch calls it.
template <class Params>
struct Kernel {
  static inline void (*entry)(Params);
  static inline const Params* params;

  [[noreturn]] static void run_thread() {
    entry(*params);
    exit_thread();
  }
};

template <class Params>
constexpr unsigned long long params_size(void (*)(Params)) {
  return sizeof(Params);
}

// Returns null, or why the launch failed; valid until the next launch.
template <class Params>
const char* launch(void (*entry)(Params), const void* params, const Launch& config) {
  // ctypes hands over bytes of any alignment.
  alignas(Params) unsigned char storage[sizeof(Params)];
  memcpy(storage, params, sizeof(Params));
  Kernel<Params>::entry = entry;
  Kernel<Params>::params = std::launder(reinterpret_cast<const Params*>(storage));
  return launch_threads(&Kernel<Params>::run_thread, config);
}

}  // namespace emu
