// Named barriers: some of a block's warps wait for each other, or arrive without waiting (PTX ISA, "barrier.cta").
#pragma once

#include "thread.hpp"
#include "warp.hpp"

namespace emu {

class NamedBarriers {
 public:
  static constexpr unsigned kCount = 16;

  void clear() {
    for (unsigned i = 0; i < kCount; ++i) barriers_[i] = Barrier{};
  }

  // A warp arrives at a barrier of so many threads; whether that completes it. Null, or what is wrong.
  const char* arrive(unsigned barrier, unsigned threads, bool& complete) {
    Barrier& own = barriers_[barrier];
    if (own.arrived != 0 && own.threads != threads) return "its warps differ in how many threads it has";
    own.threads = threads;
    own.arrived += kLanes;
    if (own.arrived > threads) return "more threads than it has have arrived";
    complete = own.arrived == threads;
    if (complete) own.arrived = 0;
    return nullptr;
  }

  // A barrier at which warps have arrived whom nobody met; kCount if there is none.
  unsigned unmet() const {
    unsigned barrier = 0;
    while (barrier < kCount && barriers_[barrier].arrived == 0) ++barrier;
    return barrier;
  }

 private:
  struct Barrier {
    unsigned threads = 0;
    unsigned arrived = 0;
  };
  Barrier barriers_[kCount];
};

inline NamedBarriers named_barriers;

// A barrier and its threads as Stop::bytes has them.
constexpr size_t named(unsigned barrier, unsigned threads) { return static_cast<size_t>(barrier) << 16 | threads; }
constexpr unsigned barrier_of(size_t named) { return static_cast<unsigned>(named >> 16); }
constexpr unsigned threads_of(size_t named) { return static_cast<unsigned>(named & 0xffffu); }

inline void require_barrier(const char* name, int barrier, unsigned threads) {
  const bool exists = barrier > 0 && barrier < static_cast<int>(NamedBarriers::kCount);
  if (exists && threads > 0 && threads % kLanes == 0 && threads <= state.block_threads) return;
  record_failure("%s: barrier %d of %u threads: barriers are 1 to 15, of whole warps of the block", name, barrier, threads);
  abandon_thread();
}

// Lets the warps go on that wait at a barrier.
inline void release_named(unsigned barrier) {
  for (unsigned i = 0; i < state.block_threads; ++i) {
    Stop& stop = state.threads[i].stop;
    if (stop.status == Status::at_named_barrier && barrier_of(stop.bytes) == barrier) stop.status = Status::ready;
  }
}

// The warp of these lanes arrives.
inline bool arrive_warp(Thread* lanes) {
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

inline void meet_named(Site site, int barrier, unsigned threads) {
  require_barrier("bar.sync", barrier, threads);
  wait(Stop{Status::at_named_barrier, "bar.sync", site, named(static_cast<unsigned>(barrier), threads), &arrive_warp});
}

inline void arrive_named(Site site, int barrier, unsigned threads) {
  require_barrier("bar.arrive", barrier, threads);
  wait(Stop{Status::at_collective, "bar.arrive", site, named(static_cast<unsigned>(barrier), threads), &arrive_warp});
}

}  // namespace emu
