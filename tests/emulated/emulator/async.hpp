// cp.async: copies that a thread starts and waits for later, in groups.
//
// Hardware lands a copy at any moment between its issue and the end of the wait for its group. The two
// extremes show different errors: landing late, data that nobody waited for is missing; landing early,
// a copy destroys what other threads still read.
#pragma once

#include "memory.hpp"
#include "thread.hpp"

namespace emu {

struct AsyncCopy {
  unsigned offset;  // in shared memory
  unsigned size;
  const void* source;  // null: zeros
  unsigned long long group;

  void land() const {
    unsigned char* destination = shared.data() + offset;
    if (source != nullptr)
      memcpy(destination, source, size);
    else
      memset(destination, 0, size);
    proxy.write(offset);
  }
};

// What one thread has started and not waited for, oldest first.
class AsyncCopies {
 public:
  void clear() { first_ = end_ = groups_ = 0; }

  unsigned pending() const { return end_ - first_; }

  bool full() const { return pending() == kCapacity; }

  void start(unsigned offset, const void* source, unsigned size) {
    AsyncCopy& copy = copies_[end_++ % kCapacity];
    copy = AsyncCopy{offset, size, source, groups_};
    if (state.copies_land_early)
      copy.land();
    else
      memset(shared.data() + offset, 0xFF, size);
  }

  void commit() { ++groups_; }

  // Copies after the last commit belong to no group yet: no wait covers them.
  void wait(unsigned pending_groups) {
    for (; first_ != end_; ++first_) {
      const AsyncCopy& copy = copies_[first_ % kCapacity];
      if (copy.group + pending_groups >= groups_) return;
      if (!state.copies_land_early) copy.land();
    }
  }

  static constexpr unsigned kCapacity = 1024;

 private:
  unsigned first_;
  unsigned end_;
  unsigned long long groups_;
  AsyncCopy copies_[kCapacity];
};

extern AsyncCopies async_copies[kMaxThreads];

void copy_async(unsigned offset, const void* source, bool present, unsigned size);
void commit_async();
void wait_async(unsigned pending_groups);

// A copy that nobody waits for may land when the block's shared memory is another block's.
void require_no_copy_pending();

}  // namespace emu
