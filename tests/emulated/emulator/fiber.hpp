// A stackful fiber: what stands in for one CUDA thread on the CPU.
//
// Two back ends with one interface. The assembly one saves the six registers that the System V
// ABI makes a callee preserve. The ucontext one works wherever POSIX does but enters the kernel
// twice per switch to keep the signal mask.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif

#ifdef EMU_UCONTEXT
#include <ucontext.h>
#else
extern "C" __attribute__((visibility("hidden"))) void emu_switch(void** save, void* load);
#endif

namespace emu {

constexpr size_t kStackBytes = 128 * 1024;

// A stack that is allocated once and reused. Its lowest bytes hold a pattern, so that an
// overflow is noticed after the fact instead of corrupting a neighbour silently.
class FiberStack {
 public:
  void allocate() {
    if (low_ != nullptr) return;
    low_ = static_cast<unsigned char*>(aligned_alloc(64, kStackBytes));
    if (low_ == nullptr) abort();
    paint();
  }

  void paint() { memset(low_, kPattern, kGuardBytes); }

  bool intact() const {
    for (size_t i = 0; i < kGuardBytes; ++i)
      if (low_[i] != kPattern) return false;
    return true;
  }

  unsigned char* low() const { return low_; }

 private:
  static constexpr size_t kGuardBytes = 256;
  static constexpr unsigned char kPattern = 0xA5;
  unsigned char* low_ = nullptr;
};

class Fiber {
 public:
  // Makes the next resume() call `entry`, which must never return.
  void prepare(const FiberStack& stack, void (*entry)()) {
#ifdef EMU_UCONTEXT
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack.low();
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#else
    // From the top: a null return address, which also gives `entry` the stack alignment that
    // the ABI promises a callee, then the address that emu_switch returns to, then registers.
    constexpr size_t kSavedRegisters = 6;
    uintptr_t* top = reinterpret_cast<uintptr_t*>(stack.low() + kStackBytes);
    top[-1] = 0;
    top[-2] = reinterpret_cast<uintptr_t>(entry);
    uintptr_t* saved = top - 2 - kSavedRegisters;
    memset(saved, 0, kSavedRegisters * sizeof(uintptr_t));
    stack_pointer_ = saved;
#endif
  }

  // Runs the fiber until it suspends itself. Call from the main stack only.
  void resume() {
#ifdef EMU_UCONTEXT
    swapcontext(&main_, &context_);
#else
    emu_switch(&main_, stack_pointer_);
#endif
  }

  // Goes back to the resume() that started this fiber. Call from this fiber only.
  void suspend() {
#ifdef EMU_UCONTEXT
    swapcontext(&context_, &main_);
#else
    emu_switch(&stack_pointer_, main_);
#endif
  }

 private:
#ifdef EMU_UCONTEXT
  ucontext_t context_;
  static inline ucontext_t main_;
#else
  void* stack_pointer_ = nullptr;
  static inline void* main_ = nullptr;
#endif
};

}  // namespace emu
