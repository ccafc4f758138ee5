#include "launch.hpp"

#include "async.hpp"
#include "block.hpp"
#include "proxy.hpp"
#include "subnormals.hpp"
#include "thread.hpp"
#include "wgmma.hpp"

namespace emu {

void exit_thread() {
  require_no_copy_pending();
  require_no_product_pending();
  state.current->stop = Stop{Status::exited, "exit", Site{"", 0, -1}, 0, nullptr};
  abandon_thread();
}

static const char* run_blocks(Block& block, void (*thread_entry)(), const unsigned* blocks,
                              unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    state.block_index = blocks[i];
    state.steps = 0;
    shared.poison();
    proxy.begin_block();
    for (unsigned i = 0; i < state.block_threads; ++i) group_products[i].clear();
    const bool ran = block.run(thread_entry);
    if (!ran || !shared.guards_intact() || !groups_agree()) return state.message;
  }
  return nullptr;
}

const char* launch_threads(void (*thread_entry)(), const Launch& config) {
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
  const char* failure = run_blocks(block, thread_entry, config.blocks, config.grid);
  restore_arithmetic(arithmetic);
  return failure;
}

}  // namespace emu
