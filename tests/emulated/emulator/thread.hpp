// The threads of the running block, where each of them stopped, and how a launch fails.
//
// The state is one global: blocks run one after another, and each built library is compiled
// with hidden visibility, hence has a copy of its own.
#pragma once

#include <stdio.h>

#include "fiber.hpp"

namespace emu {

constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kDepositBytes = 128;
constexpr size_t kMessageBytes = 1024;

// Lanes are compared at every stop, and mostly bring the very same text.
inline bool same_text(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }

// A place in the kernel text. Macros give any two of them, also on one line, different `id`s; for a
// function that must do without, `here` as its default argument names the line of the call.
struct Site {
  const char* file;
  int line;
  int id;

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return Site{file, line, -1};
  }

  bool operator==(const Site& other) const {
    return id == other.id && line == other.line && same_text(file, other.file);
  }
};

#define EMU_SITE (::emu::Site{__FILE__, __LINE__, __COUNTER__})

enum class Status { ready, at_collective, at_barrier, at_named_barrier, at_mbarrier, exited };

struct Thread;

struct Stop {
  Status status;
  const char* name;
  Site site;
  size_t bytes;  // of a collective's operand: instances of one template differ by it; which barrier is waited for
  bool (*complete)(Thread* lanes);  // runs once all lanes of the warp are here; false if it failed

  bool matches(const Stop& other) const {
    return status == other.status && site == other.site && bytes == other.bytes &&
           same_text(name, other.name);
  }
};

struct Thread {
  Fiber fiber;
  FiberStack stack;
  unsigned index;
  Stop stop;
  unsigned votes;        // block-wide votes that this thread has entered
  unsigned collectives;  // how many this thread has entered; its parity picks the deposit
  alignas(16) unsigned char deposits[2][kDepositBytes];
};

struct State {
  Thread threads[kMaxThreads];
  Thread* current;  // null while the scheduler runs
  unsigned block_threads;
  unsigned block_index;
  unsigned grid_blocks;
  bool copies_land_early;
  bool votes[3];  // of the block's last, this and next vote
  unsigned long long steps;
  unsigned long long max_steps;
  bool failed;
  char message[kMessageBytes];
};

extern State state;

// Only the first failure of a launch is kept: what follows it is usually its consequence.
__attribute__((format(printf, 1, 2))) void record_failure(const char* format, ...);

// Leaves the current thread for good. The scheduler sees the recorded failure and stops.
[[noreturn]] void abandon_thread();

[[noreturn]] void fail(const char* message);

// Bounds loops that wait or touch memory; a loop that does neither needs an outer time limit.
void count_step();
void wait(const Stop& stop);

}  // namespace emu
