// Warp collectives: every lane deposits an operand, waits for the others, and reads theirs.
#pragma once

#include <type_traits>

#include "thread.hpp"

namespace emu {

// What the 32 lanes of the calling thread's warp brought to one collective.
//
// Deposits alternate between two buffers, so a lane may already deposit for the next collective
// while a slower one still reads this one's; none can be two ahead.
template <class T>
class Deposits {
 public:
  Deposits(const Thread* lane0, unsigned parity) : lane0_(lane0), parity_(parity) {}

  T operator[](unsigned lane) const {
    T value;
    memcpy(&value, lane0_[lane].deposits[parity_], sizeof(T));
    return value;
  }

 private:
  const Thread* lane0_;
  unsigned parity_;
};

inline unsigned lane_index() { return state.current->index % kLanes; }

void require_full_mask(const char* name, unsigned mask);

// The building block of every collective; `name` is only for messages.
template <class T>
Deposits<T> exchange(const char* name, Site site, const T& operand) {
  static_assert(std::is_trivially_copyable<T>::value, "lanes exchange bytes");
  static_assert(sizeof(T) <= kDepositBytes, "raise kDepositBytes");
  Thread& me = *state.current;
  const unsigned parity = me.collectives++ % 2;
  memcpy(me.deposits[parity], &operand, sizeof(T));
  wait(Stop{Status::at_collective, name, site, sizeof(T), nullptr});
  return Deposits<T>(&me - lane_index(), parity);
}

// A warp at a collective whose results are computed once for all lanes: their operands, each of which
// the lane's result replaces.
template <class Operand, class Result>
class Warp {
 public:
  static_assert(std::is_trivially_copyable<Operand>::value, "lanes exchange bytes");
  static_assert(std::is_trivially_copyable<Result>::value, "lanes exchange bytes");
  static_assert(sizeof(Operand) <= kDepositBytes, "raise kDepositBytes");
  static_assert(sizeof(Result) <= kDepositBytes, "raise kDepositBytes");

  // Deposits the calling lane's operand and returns its result once `complete` ran for the warp.
  static Result meet(const char* name, Site site, const Operand& operand,
                     bool (*complete)(Thread* lanes)) {
    Thread& me = *state.current;
    unsigned char* deposit = me.deposits[me.collectives++ % 2];
    memcpy(deposit, &operand, sizeof operand);
    wait(Stop{Status::at_collective, name, site, sizeof operand, complete});
    Result result;
    memcpy(&result, deposit, sizeof result);
    return result;
  }

  explicit Warp(Thread* lanes) : lanes_(lanes) {}

  unsigned index() const { return lanes_[0].index / kLanes; }
  const Stop& stop() const { return lanes_[0].stop; }

  Operand operand(unsigned lane) const {
    Operand operand;
    memcpy(&operand, deposit(lane), sizeof operand);
    return operand;
  }

  void answer(unsigned lane, const Result& result) const {
    memcpy(deposit(lane), &result, sizeof result);
  }

 private:
  unsigned char* deposit(unsigned lane) const {
    return lanes_[lane].deposits[(lanes_[lane].collectives - 1) % 2];
  }

  Thread* lanes_;
};

// The types that CUDA's shuffles are overloaded for.
template <class T>
constexpr bool is_shuffled =
    std::is_same<T, float>::value || std::is_same<T, double>::value ||
    std::is_same<T, int>::value || std::is_same<T, unsigned>::value ||
    std::is_same<T, long>::value || std::is_same<T, unsigned long>::value ||
    std::is_same<T, long long>::value || std::is_same<T, unsigned long long>::value;

// PTX shfl.sync reads the low five bits of a lane or lane mask.
template <class T>
T shuffle(Site site, unsigned mask, T value, int lane) {
  static_assert(is_shuffled<T>, "no __shfl_sync for this type");
  require_full_mask("__shfl_sync", mask);
  return exchange("__shfl_sync", site, value)[static_cast<unsigned>(lane) % kLanes];
}

template <class T>
T shuffle_xor(Site site, unsigned mask, T value, int lane_mask) {
  static_assert(is_shuffled<T>, "no __shfl_xor_sync for this type");
  require_full_mask("__shfl_xor_sync", mask);
  const unsigned lane = (lane_index() ^ static_cast<unsigned>(lane_mask)) % kLanes;
  return exchange("__shfl_xor_sync", site, value)[lane];
}

// Whether any lane's predicate isn't 0.
int any(Site site, unsigned mask, int predicate);

void sync_warp(Site site, unsigned mask = 0xffffffffu);

}  // namespace emu
