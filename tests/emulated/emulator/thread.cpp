#include "thread.hpp"

#include <stdarg.h>

namespace emu {

State state;

void record_failure(const char* format, ...) {
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

void abandon_thread() {
  state.current->fiber.suspend();
  abort();
}

void fail(const char* message) {
  record_failure("%s", message);
  abandon_thread();
}

void count_step() {
  if (++state.steps <= state.max_steps) return;
  record_failure("the block took more than %llu steps: an endless loop?", state.max_steps);
  abandon_thread();
}

void wait(const Stop& stop) {
  state.current->stop = stop;
  count_step();
  state.current->fiber.suspend();
}

}  // namespace emu
