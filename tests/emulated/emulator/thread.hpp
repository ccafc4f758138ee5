// The threads of the running block, where each of them stopped, and how a launch fails.
//
// The state is one global: blocks run one after another, and each built library is compiled
// with hidden visibility, hence has a copy of its own.
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include "fiber.hpp"

namespace emu {

constexpr unsigned kLanes = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kDepositBytes = 128;
constexpr size_t kMessageBytes = 1024;

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
    return id == other.id && line == other.line && strcmp(file, other.file) == 0;
  }
};

#define EMU_SITE (::emu::Site{__FILE__, __LINE__, __COUNTER__})

enum class Status { ready, at_collective, at_barrier, at_named_barrier, exited };

struct Thread;

struct Stop {
  Status status;
  const char* name;
  Site site;
  size_t bytes;  // of a collective's operand: instances of one template differ by it; which named barrier
  bool (*complete)(Thread* lanes);  // runs once all lanes of the warp are here; false if it failed

  bool matches(const Stop& other) const {
    return status == other.status && site == other.site && bytes == other.bytes &&
           strcmp(name, other.name) == 0;
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

inline State state;

// Only the first failure of a launch is kept: what follows it is usually its consequence.
__attribute__((format(printf, 1, 2))) inline void record_failure(const char* format, ...) {
  if (state.failed) return;
  state.failed = true;
  int used = snprintf(state.message, kMessageBytes, "block %u", state.block_index);
  if (state.current != nullptr)
    used += snprintf(state.message + used, kMessageBytes - used, ", thread %u",
                     state.current->index);
  used += snprintf(state.message + used, kMessageBytes - used, ": ");
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(state.message + used, kMessageBytes - used, format, arguments);
  va_end(arguments);
}

// Leaves the current thread for good. The scheduler sees the recorded failure and stops.
[[noreturn]] inline void abandon_thread() {
  state.current->fiber.suspend();
  abort();
}

[[noreturn]] inline void fail(const char* message) {
  record_failure("%s", message);
  abandon_thread();
}

// Bounds loops that wait or touch memory; a loop that does neither needs an outer time limit.
inline void count_step() {
  if (++state.steps <= state.max_steps) return;
  record_failure("the block took more than %llu steps: an endless loop?", state.max_steps);
  abandon_thread();
}

inline void wait(const Stop& stop) {
  state.current->stop = stop;
  count_step();
  state.current->fiber.suspend();
}

}  // namespace emu
