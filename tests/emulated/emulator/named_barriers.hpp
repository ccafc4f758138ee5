// Named barriers: some of a block's warps wait for each other, or arrive without waiting (PTX ISA, "barrier.cta").
#pragma once

#include "thread.hpp"

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

  // How many threads have come to a barrier since it was met last.
  unsigned arrived(unsigned barrier) const { return barriers_[barrier].arrived; }

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

extern NamedBarriers named_barriers;

// A barrier and its threads as Stop::bytes has them.
constexpr size_t named(unsigned barrier, unsigned threads) { return static_cast<size_t>(barrier) << 16 | threads; }
constexpr unsigned barrier_of(size_t named) { return static_cast<unsigned>(named >> 16); }
constexpr unsigned threads_of(size_t named) { return static_cast<unsigned>(named & 0xffffu); }

// bar.sync and bar.arrive.
void meet_named(Site site, int barrier, unsigned threads);
void arrive_named(Site site, int barrier, unsigned threads);

}  // namespace emu
