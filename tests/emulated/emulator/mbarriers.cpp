#include "mbarriers.hpp"

#include "memory.hpp"

namespace emu {

Mbarriers mbarriers;

constexpr unsigned kMbarrierBytes = 8;
constexpr int kMostArrivals = (1 << 20) - 1;

static Mbarriers::Mbarrier& require_mbarrier(const char* name, unsigned offset) {
  check_shared(name, offset, kMbarrierBytes);
  Mbarriers::Mbarrier* barrier = mbarriers.find(offset);
  if (barrier != nullptr) return *barrier;
  record_failure("%s at byte %u of shared memory: no mbarrier has been made there", name, offset);
  abandon_thread();
}

void init_mbarrier(unsigned offset, int arrivals) {
  check_shared("mbarrier.init", offset, kMbarrierBytes);
  const char* problem = nullptr;
  if (arrivals < 1 || arrivals > kMostArrivals) problem = "a phase has 1 to 2^20 - 1 arrivals";
  if (mbarriers.find(offset) != nullptr) problem = "there is one already";
  if (problem == nullptr && !mbarriers.make(offset, static_cast<unsigned>(arrivals))) problem = "they are too many";
  if (problem == nullptr) return;
  record_failure("mbarrier.init of %d arrivals at byte %u of shared memory: %s", arrivals, offset, problem);
  abandon_thread();
}

// Lets the warps go on that wait for a phase which has ended.
static void release_waiting(const Mbarriers::Mbarrier& barrier) {
  for (unsigned i = 0; i < state.block_threads; ++i) {
    Stop& stop = state.threads[i].stop;
    if (stop.status == Status::at_mbarrier && mbarrier_of(stop.bytes) == barrier.offset && barrier.over(parity_of(stop.bytes)))
      stop.status = Status::ready;
  }
}

void arrive_mbarrier(unsigned offset) {
  Mbarriers::Mbarrier& barrier = require_mbarrier("mbarrier.arrive", offset);
  if (--barrier.pending > 0) return;
  barrier.pending = barrier.arrivals;
  ++barrier.phase;
  release_waiting(barrier);
}

// All lanes of a warp have come to wait: they go on if the phase is over.
static bool join_waiting(Thread* lanes) {
  release_waiting(*mbarriers.find(mbarrier_of(lanes[0].stop.bytes)));
  return true;
}

void wait_mbarrier(Site site, unsigned offset, int parity) {
  require_mbarrier("mbarrier.try_wait", offset);
  if (parity != 0 && parity != 1) {
    record_failure("mbarrier.try_wait for parity %d: it is 0 or 1", parity);
    abandon_thread();
  }
  wait(Stop{Status::at_mbarrier, "mbarrier.try_wait", site, phase_of(offset, static_cast<unsigned>(parity)), &join_waiting});
}

}  // namespace emu
