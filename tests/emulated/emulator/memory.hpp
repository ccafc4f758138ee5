// Checks of global addresses against the registered regions, and the block's shared memory.
#pragma once

#include "proxy.hpp"
#include "thread.hpp"

namespace emu {

// Mirrored field by field in emulation.py.
struct Region {
  const char* name;
  unsigned long long address;
  unsigned long long bytes;
  int writable;

  bool holds(unsigned long long start, unsigned long long count) const {
    return start >= address && count <= bytes && start - address <= bytes - count;
  }

  unsigned long long distance(unsigned long long start) const {
    if (start < address) return address - start;
    return start < address + bytes ? 0 : start - (address + bytes) + 1;
  }
};

struct Regions {
  const Region* items;
  unsigned count;
  unsigned last_hit;  // neighbouring accesses mostly go to one region

  bool allows(unsigned long long start, unsigned long long bytes, bool writing) {
    if (count > 0 && permits(last_hit, start, bytes, writing)) return true;
    for (unsigned i = 0; i < count; ++i)
      if (permits(i, start, bytes, writing)) {
        last_hit = i;
        return true;
      }
    return false;
  }

  const Region* nearest(unsigned long long start) const {
    const Region* best = nullptr;
    for (unsigned i = 0; i < count; ++i)
      if (best == nullptr || items[i].distance(start) < best->distance(start)) best = &items[i];
    return best;
  }

 private:
  bool permits(unsigned i, unsigned long long start, unsigned long long bytes,
               bool writing) const {
    return items[i].holds(start, bytes) && (items[i].writable || !writing);
  }
};

extern Regions regions;

// `alignment` is what `start` should be a multiple of and isn't, or 0.
[[noreturn]] void fail_access(const char* verb, unsigned long long start,
                              unsigned long long bytes, unsigned long long alignment);

void check_read(const void* pointer, unsigned long long bytes);
void check_write(void* pointer, unsigned long long bytes);

// Dynamic shared memory between two guard zones. Bytes that nobody wrote read as NaN at every
// width: 0xFF inside, 0xFFF7 in the guards, where a stray store of 0xFFFF is noticed as well.
class SharedMemory {
 public:
  // False if there is no memory for it.
  bool allocate(size_t bytes) {
    free(storage_);
    storage_ = static_cast<unsigned char*>(
        aligned_alloc(kAlignment, (bytes + 2 * kGuardBytes + kAlignment - 1) & -kAlignment));
    bytes_ = bytes;
    return storage_ != nullptr;
  }

  unsigned char* data() const { return storage_ + kGuardBytes; }

  size_t size() const { return bytes_; }

  bool holds(unsigned long long offset, size_t count) const {
    return count <= bytes_ && offset <= bytes_ - count;
  }

  void poison() {
    memset(data(), 0xFF, bytes_);
    for (size_t i = 0; i < kGuardBytes; ++i) {
      storage_[i] = guard_byte(i);
      storage_[kGuardBytes + bytes_ + i] = guard_byte(kGuardBytes + bytes_ + i);
    }
  }

  bool guards_intact() const {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      // Outwards from the memory, so that the reported byte is the one nearest to it.
      if (!check_guard(kGuardBytes - 1 - i) || !check_guard(kGuardBytes + bytes_ + i)) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kAlignment = 128;
  static constexpr size_t kGuardBytes = 4096;

  static unsigned char guard_byte(size_t position) { return position % 2 == 0 ? 0xF7 : 0xFF; }

  bool check_guard(size_t position) const {
    if (storage_[position] == guard_byte(position)) return true;
    record_failure("shared memory was written at byte %lld, outside its %zu bytes",
                   static_cast<long long>(position) - static_cast<long long>(kGuardBytes), bytes_);
    return false;
  }

  unsigned char* storage_ = nullptr;
  size_t bytes_ = 0;
};

extern SharedMemory shared;

inline unsigned char* shared_memory() { return shared.data(); }

// An address in the 32-bit space of shared memory, which starts at 0 here; one past the end is one.
unsigned shared_offset(const void* pointer);

// What is wrong with an access of 16 shared bytes; null if nothing.
const char* shared_access_problem(unsigned offset, unsigned size = 16);

void check_shared(const char* what, unsigned offset, unsigned size = 16);

template <class T>
T load_shared(unsigned offset) {
  check_shared("load", offset, sizeof(T));
  T value;
  memcpy(&value, shared.data() + offset, sizeof value);
  return value;
}

template <class T>
void store_shared(unsigned offset, const T& value) {
  check_shared("store", offset, sizeof(T));
  memcpy(shared.data() + offset, &value, sizeof value);
  proxy.write(offset);
}

}  // namespace emu
