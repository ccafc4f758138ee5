// Barriers in shared memory whose phases end after so many arrivals (PTX ISA, "mbarrier").
#pragma once

#include "thread.hpp"

namespace emu {

class Mbarriers {
 public:
  struct Mbarrier {
    unsigned offset;
    unsigned arrivals;  // of a phase
    unsigned pending;   // of this one
    unsigned phase;     // how many have ended

    // Whether the latest phase of this parity is over.
    bool over(unsigned parity) const { return phase % 2 != parity; }
  };

  void clear() { count_ = 0; }

  // Null if nobody has made it.
  Mbarrier* find(unsigned offset) {
    for (unsigned i = 0; i < count_; ++i)
      if (barriers_[i].offset == offset) return &barriers_[i];
    return nullptr;
  }

  // False if there are too many.
  bool make(unsigned offset, unsigned arrivals) {
    if (count_ == kMost) return false;
    barriers_[count_++] = Mbarrier{offset, arrivals, arrivals, 0};
    return true;
  }

 private:
  static constexpr unsigned kMost = 64;
  Mbarrier barriers_[kMost];
  unsigned count_ = 0;
};

extern Mbarriers mbarriers;

// A barrier and a parity as Stop::bytes has them.
constexpr size_t phase_of(unsigned offset, unsigned parity) { return static_cast<size_t>(offset) << 1 | parity; }
constexpr unsigned mbarrier_of(size_t phase) { return static_cast<unsigned>(phase >> 1); }
constexpr unsigned parity_of(size_t phase) { return static_cast<unsigned>(phase & 1); }

void init_mbarrier(unsigned offset, int arrivals);
void arrive_mbarrier(unsigned offset);
void wait_mbarrier(Site site, unsigned offset, int parity);

}  // namespace emu
