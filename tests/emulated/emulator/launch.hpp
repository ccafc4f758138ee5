// A launch: the parameters by value, one block after another, the first failure as a message.
#pragma once

#include <new>

#include "async.hpp"
#include "block.hpp"
#include "memory.hpp"
#include "subnormals.hpp"
#include "thread.hpp"
#include "wgmma.hpp"

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

// The kernel and its parameters, as every thread of the launch calls it.
template <class Params>
struct Kernel {
  static inline void (*entry)(Params);
  static inline const Params* params;

  [[noreturn]] static void run_thread() {
    entry(*params);
    require_no_copy_pending();
    require_no_product_pending();
    state.current->stop = Stop{Status::exited, "exit", Site{"", 0, -1}, 0, nullptr};
    abandon_thread();
  }
};

template <class Params>
constexpr unsigned long long params_size(void (*)(Params)) {
  return sizeof(Params);
}

template <class Params>
const char* run_blocks(Block& block, const unsigned* blocks, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    state.block_index = blocks[i];
    state.steps = 0;
    shared.poison();
    proxy.begin_block();
    for (unsigned i = 0; i < state.block_threads; ++i) group_products[i].clear();
    const bool ran = block.run(&Kernel<Params>::run_thread);
    if (!ran || !shared.guards_intact() || !groups_agree()) return state.message;
  }
  return nullptr;
}

// Returns null, or why the launch failed; valid until the next launch.
template <class Params>
const char* launch(void (*entry)(Params), const void* params, const Launch& config) {
  // ctypes hands over bytes of any alignment.
  alignas(Params) unsigned char storage[sizeof(Params)];
  memcpy(storage, params, sizeof(Params));
  Kernel<Params>::entry = entry;
  Kernel<Params>::params = std::launder(reinterpret_cast<const Params*>(storage));

  state.failed = false;
  state.current = nullptr;
  state.grid_blocks = config.grid;
  state.block_threads = config.threads;
  state.max_steps = config.max_steps;
  state.copies_land_early = config.landing == 1;
  regions = Regions{config.regions, config.region_count, 0};
  if (!shared.allocate(config.smem)) return "no memory for the block's shared memory";

  Block block(config.threads, static_cast<Schedule>(config.schedule), config.seed);
  const unsigned arithmetic = flush_subnormals(config.flush_subnormals != 0);
  const char* failure = run_blocks<Params>(block, config.blocks, config.grid);
  restore_arithmetic(arithmetic);
  return failure;
}

}  // namespace emu
