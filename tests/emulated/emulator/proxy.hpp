// Which pieces of shared memory the async proxy may read: those whose writer has fenced since (PTX ISA, "Async
// proxy", "fence.proxy.async").
#pragma once

#include "thread.hpp"

namespace emu {

class Proxy {
 public:
  // A block begins: nothing that another one wrote counts.
  void begin_block() {
    for (unsigned i = 0; i < kMaxThreads; ++i) ++fences_[i];
  }

  void fence() { ++fences_[state.current->index]; }

  // Of bytes within one piece of 16.
  void write(unsigned offset) {
    Write& last = writes_[offset / kPiece % kPieces];
    last.thread = state.current->index;
    last.fences = fences_[last.thread];
  }

  // Why a piece can't be read; null if it can.
  const char* problem(unsigned offset) const {
    const Write& last = writes_[offset / kPiece % kPieces];
    if (last.fences != fences_[last.thread]) return nullptr;
    return "its writer hasn't passed fence.proxy.async since";
  }

 private:
  static constexpr unsigned kPiece = 16;
  static constexpr unsigned kPieces = 1 << 14;  // 256 KB

  struct Write {
    unsigned thread;
    unsigned long long fences;
  };

  Write writes_[kPieces] = {};
  unsigned long long fences_[kMaxThreads] = {};
};

extern Proxy proxy;

void fence_proxy_async();

}  // namespace emu
