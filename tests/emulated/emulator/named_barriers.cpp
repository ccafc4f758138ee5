#include "named_barriers.hpp"

namespace emu {

NamedBarriers named_barriers;

static void require_barrier(const char* name, int barrier, unsigned threads) {
  const bool exists = barrier > 0 && barrier < static_cast<int>(NamedBarriers::kCount);
  if (exists && threads > 0 && threads % kLanes == 0 && threads <= state.block_threads) return;
  record_failure("%s: barrier %d of %u threads: barriers are 1 to 15, of whole warps of the block", name, barrier, threads);
  abandon_thread();
}

// Lets the warps go on that wait at a barrier.
static void release_named(unsigned barrier) {
  for (unsigned i = 0; i < state.block_threads; ++i) {
    Stop& stop = state.threads[i].stop;
    if (stop.status == Status::at_named_barrier && barrier_of(stop.bytes) == barrier) stop.status = Status::ready;
  }
}

// The warp of these lanes arrives.
static bool arrive_warp(Thread* lanes) {
  const Stop& stop = lanes[0].stop;
  const unsigned barrier = barrier_of(stop.bytes);
  bool complete = false;
  const char* problem = named_barriers.arrive(barrier, threads_of(stop.bytes), complete);
  if (problem != nullptr) {
    record_failure("%s (%s:%d), barrier %u: %s", stop.name, stop.site.file, stop.site.line, barrier, problem);
    return false;
  }
  if (complete) release_named(barrier);
  return true;
}

void meet_named(Site site, int barrier, unsigned threads) {
  require_barrier("bar.sync", barrier, threads);
  wait(Stop{Status::at_named_barrier, "bar.sync", site, named(static_cast<unsigned>(barrier), threads), &arrive_warp});
}

void arrive_named(Site site, int barrier, unsigned threads) {
  require_barrier("bar.arrive", barrier, threads);
  wait(Stop{Status::at_collective, "bar.arrive", site, named(static_cast<unsigned>(barrier), threads), &arrive_warp});
}

}  // namespace emu
