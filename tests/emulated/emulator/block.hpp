// Runs one block: which warp goes next, when a collective or a barrier completes.
//
// Lanes of a warp run one after another up to their next stop. Every stop is one that the whole
// warp must share, so once all lanes have stopped they must agree, or the kernel is wrong: a
// missing partner never arrives later. A warp therefore has one status, its first lane's.
#pragma once

#include "async.hpp"
#include "mbarriers.hpp"
#include "named_barriers.hpp"
#include "thread.hpp"

namespace emu {

enum class Schedule : int {
  forward = 0,         // each warp up to its next stop, in order
  backward = 1,        // the same from the last warp and the last lane
  random = 2,          // the same in an order drawn anew each round
  greedy = 3,          // each warp up to the next block barrier: the largest skew
  greedy_backward = 4, // the same from the last warp and the last lane
  greedy_random = 5,   // the same in an order drawn anew each round
  first = 6,           // always the first warp that can, up to its next stop: whom the last ones serve, they serve late
  last = 7             // the same from the last warp and the last lane
};

class Block {
 public:
  Block(unsigned threads, Schedule schedule, unsigned long long seed)
      : warps_(threads / kLanes), schedule_(schedule), random_(seed) {
    for (unsigned w = 0; w < warps_; ++w)
      order_[w] = runs_backward() ? warps_ - 1 - w : w;
  }

  // Runs the block that `state` describes; false if it failed.
  bool run(void (*thread_entry)()) {
    state.votes[0] = false;
    named_barriers.clear();
    mbarriers.clear();
    for (unsigned i = 0; i < warps_ * kLanes; ++i) start_thread(i, thread_entry);
    for (;;) {
      if (schedule_ == Schedule::random || schedule_ == Schedule::greedy_random) shuffle_order();
      for (unsigned i = 0; i < warps_; ++i) {
        const bool ready = warp_stop(order_[i]).status == Status::ready;
        if (!run_warp(order_[i])) return false;
        if (ready && runs_one_again()) break;
      }
      if (any_warp_ready()) continue;
      if (all_warps_exited()) return stacks_intact() && barriers_met();
      if (!release_barrier()) return false;
    }
  }

 private:
  static void start_thread(unsigned i, void (*entry)()) {
    Thread& thread = state.threads[i];
    thread.index = i;
    thread.votes = 0;
    thread.collectives = 0;
    thread.stop = Stop{Status::ready, "", Site{"", 0, -1}, 0, nullptr};
    async_copies[i].clear();
    thread.stack.allocate();
    thread.fiber.prepare(thread.stack, entry);
  }

  bool runs_backward() const {
    return schedule_ == Schedule::backward || schedule_ == Schedule::greedy_backward || schedule_ == Schedule::last;
  }

  bool runs_greedily() const {
    return schedule_ == Schedule::greedy || schedule_ == Schedule::greedy_backward || schedule_ == Schedule::greedy_random;
  }

  bool runs_one_again() const {
    return schedule_ == Schedule::first || schedule_ == Schedule::last;
  }

  static const Stop& warp_stop(unsigned w) { return state.threads[w * kLanes].stop; }

  bool run_warp(unsigned w) {
    while (warp_stop(w).status == Status::ready) {
      for (unsigned i = 0; i < kLanes; ++i) {
        state.current = &state.threads[w * kLanes + (runs_backward() ? kLanes - 1 - i : i)];
        state.current->fiber.resume();
        state.current = nullptr;
        if (state.failed) return false;
      }
      if (!lanes_agree(w)) return false;
      if (warp_stop(w).status == Status::at_collective) {
        if (!complete_collective(w)) return false;
        release_warp(w);
      }
      // Whoever completes a barrier, or finds its phase over, goes on.
      if (waits_for_some(warp_stop(w)) && !complete_collective(w)) return false;
      if (!runs_greedily()) break;
    }
    return true;
  }

  // At a barrier that needn't be all warps'.
  static bool waits_for_some(const Stop& stop) {
    return stop.status == Status::at_named_barrier || stop.status == Status::at_mbarrier;
  }

  static bool complete_collective(unsigned w) {
    return warp_stop(w).complete == nullptr || warp_stop(w).complete(&state.threads[w * kLanes]);
  }

  static void release_warp(unsigned w) {
    for (unsigned l = 0; l < kLanes; ++l)
      state.threads[w * kLanes + l].stop.status = Status::ready;
  }

  static bool lanes_agree(unsigned w) {
    for (unsigned l = 1; l < kLanes; ++l) {
      const Stop& stop = state.threads[w * kLanes + l].stop;
      if (stop.matches(warp_stop(w))) continue;
      char first[kMessageBytes / 4];
      char other[kMessageBytes / 4];
      describe(first, sizeof first, warp_stop(w));
      describe(other, sizeof other, stop);
      record_failure("lanes of warp %u diverged: lanes 0x%08x %s, lanes 0x%08x %s", w,
                     lanes_at(w, warp_stop(w)), first, lanes_at(w, stop), other);
      return false;
    }
    return true;
  }

  static unsigned lanes_at(unsigned w, const Stop& stop) {
    unsigned lanes = 0;
    for (unsigned l = 0; l < kLanes; ++l)
      if (state.threads[w * kLanes + l].stop.matches(stop)) lanes |= 1u << l;
    return lanes;
  }

  static void describe(char* text, size_t bytes, const Stop& stop) {
    if (stop.status == Status::exited)
      snprintf(text, bytes, "exited");
    else if (stop.status == Status::at_named_barrier)
      snprintf(text, bytes, "wait at %s (%s:%d) for barrier %u", stop.name, stop.site.file, stop.site.line,
               barrier_of(stop.bytes));
    else if (stop.status == Status::at_mbarrier)
      snprintf(text, bytes, "wait at %s (%s:%d) for parity %u of the mbarrier at byte %u", stop.name, stop.site.file,
               stop.site.line, parity_of(stop.bytes), mbarrier_of(stop.bytes));
    else
      snprintf(text, bytes, "wait at %s (%s:%d)", stop.name, stop.site.file, stop.site.line);
  }

  bool any_warp_ready() const {
    for (unsigned w = 0; w < warps_; ++w)
      if (warp_stop(w).status == Status::ready) return true;
    return false;
  }

  bool all_warps_exited() const {
    for (unsigned w = 0; w < warps_; ++w)
      if (warp_stop(w).status != Status::exited) return false;
    return true;
  }

  // Hardware counts exited threads as arrived; a kernel here that relies on it has a bug.
  bool release_barrier() {
    if (!nobody_waits_in_vain()) return false;
    for (unsigned w = 0; w < warps_; ++w) {
      if (warp_stop(w).status == Status::at_barrier && warp_stop(w).matches(warp_stop(0))) continue;
      char first[kMessageBytes / 4];
      char other[kMessageBytes / 4];
      describe(first, sizeof first, warp_stop(0));
      describe(other, sizeof other, warp_stop(w));
      record_failure("warps diverged: threads of warp 0 %s, threads of warp %u %s", first, w,
                     other);
      return false;
    }
    for (unsigned w = 0; w < warps_; ++w) release_warp(w);
    return true;
  }

  // No warp is ready: whom a named barrier keeps nobody lets go.
  bool nobody_waits_in_vain() const {
    for (unsigned w = 0; w < warps_; ++w) {
      const Stop& stop = warp_stop(w);
      if (!waits_for_some(stop)) continue;
      char others[kMessageBytes / 2] = "";
      for (unsigned other = 0, used = 0; other < warps_ && used + 1 < sizeof others; ++other) {
        if (warp_stop(other).matches(stop)) continue;
        char where[kMessageBytes / 4];
        describe(where, sizeof where, warp_stop(other));
        used += snprintf(others + used, sizeof others - used, "; warp %u %s", other, where);
      }
      char where[kMessageBytes / 4];
      describe(where, sizeof where, stop);
      char missing[kMessageBytes / 8];
      describe_missing(missing, sizeof missing, stop);
      record_failure("deadlock: threads of warp %u %s, %s%s", w, where, missing, others);
      return false;
    }
    return true;
  }

  static void describe_missing(char* text, size_t bytes, const Stop& stop) {
    if (stop.status == Status::at_mbarrier) {
      const Mbarriers::Mbarrier& barrier = *mbarriers.find(mbarrier_of(stop.bytes));
      snprintf(text, bytes, "whose phase %u lacks %u of %u arrivals", barrier.phase, barrier.pending, barrier.arrivals);
    } else {
      snprintf(text, bytes, "to which %u of %u threads have come", named_barriers.arrived(barrier_of(stop.bytes)),
               threads_of(stop.bytes));
    }
  }

  // A later block of this multiprocessor starts with barriers that nobody has come to, a later use in this one doesn't.
  static bool barriers_met() {
    const unsigned barrier = named_barriers.unmet();
    if (barrier == NamedBarriers::kCount) return true;
    record_failure("threads that arrived at barrier %u weren't met there", barrier);
    return false;
  }

  bool stacks_intact() const {
    bool intact = true;
    for (unsigned i = 0; i < warps_ * kLanes; ++i) {
      if (state.threads[i].stack.intact()) continue;
      intact = false;
      state.threads[i].stack.paint();
      record_failure("thread %u overflowed its stack of %zu bytes", i, kStackBytes);
    }
    return intact;
  }

  void shuffle_order() {
    for (unsigned i = warps_ - 1; i > 0; --i) {
      const unsigned j = next_random() % (i + 1);
      const unsigned swapped = order_[i];
      order_[i] = order_[j];
      order_[j] = swapped;
    }
  }

  // Knuth's MMIX linear congruential generator; its low bits are weak.
  unsigned next_random() {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(random_ >> 33);
  }

  unsigned warps_;
  Schedule schedule_;
  unsigned long long random_;
  unsigned order_[kMaxThreads / kLanes];
};

}  // namespace emu
