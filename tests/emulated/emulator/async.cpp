#include "async.hpp"

namespace emu {

AsyncCopies async_copies[kMaxThreads];

static AsyncCopies& own_async_copies() { return async_copies[state.current->index]; }

void copy_async(unsigned offset, const void* source, bool present, unsigned size) {
  check_shared("cp.async", offset, size);
  const unsigned long long start = reinterpret_cast<uintptr_t>(source);
  const bool misaligned = start % size != 0;
  if (present && (misaligned || !regions.allows(start, size, false)))
    fail_access("cp.async", start, size, misaligned ? size : 0);
  if (own_async_copies().full()) {
    record_failure("more than %u cp.async of one thread are pending", AsyncCopies::kCapacity);
    abandon_thread();
  }
  own_async_copies().start(offset, present ? source : nullptr, size);
}

void commit_async() { own_async_copies().commit(); }

void wait_async(unsigned pending_groups) {
  count_step();
  own_async_copies().wait(pending_groups);
}

void require_no_copy_pending() {
  const unsigned pending = own_async_copies().pending();
  if (pending == 0) return;
  record_failure("cp.async still pending at exit: %u copies without a wait", pending);
  abandon_thread();
}

}  // namespace emu
