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

inline Regions regions;

// `alignment` is what `start` should be a multiple of and isn't, or 0.
[[noreturn]] inline void fail_access(const char* verb, unsigned long long start,
                                     unsigned long long bytes, unsigned long long alignment) {
  const Region* region = regions.nearest(start);
  if (region == nullptr) {
    record_failure("%s of %llu bytes at 0x%llx, but no region is registered", verb, bytes, start);
    abandon_thread();
  }
  char reason[64];
  if (alignment > 0)
    snprintf(reason, sizeof reason, "is not %llu-byte aligned", alignment);
  else if (region->holds(start, bytes))
    snprintf(reason, sizeof reason, "is in a read-only region");
  else
    snprintf(reason, sizeof reason, "is outside every region");
  record_failure("%s of %llu bytes at %s%+lld (0x%llx) %s; %s has %llu bytes", verb, bytes,
                 region->name, static_cast<long long>(start - region->address), start, reason,
                 region->name, region->bytes);
  abandon_thread();
}

inline void check_access(const void* pointer, unsigned long long bytes, bool writing) {
  count_step();
  const unsigned long long start = reinterpret_cast<uintptr_t>(pointer);
  const bool vector = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
  const bool misaligned = vector && start % bytes != 0;
  if (misaligned || !regions.allows(start, bytes, writing))
    fail_access(writing ? "write" : "read", start, bytes, misaligned ? bytes : 0);
}

inline void check_read(const void* pointer, unsigned long long bytes) {
  check_access(pointer, bytes, false);
}

inline void check_write(void* pointer, unsigned long long bytes) {
  check_access(pointer, bytes, true);
}

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

inline SharedMemory shared;

inline unsigned char* shared_memory() { return shared.data(); }

// An address in the 32-bit space of shared memory, which starts at 0 here; one past the end is one.
inline unsigned shared_offset(const void* pointer) {
  const long long offset =
      static_cast<long long>(reinterpret_cast<uintptr_t>(pointer) -
                             reinterpret_cast<uintptr_t>(shared.data()));
  if (offset < 0 || !shared.holds(offset, 0)) {
    record_failure("shared address of a pointer to byte %lld of %zu bytes of shared memory: outside",
                   offset, shared.size());
    abandon_thread();
  }
  return static_cast<unsigned>(offset);
}

// What is wrong with an access of 16 shared bytes; null if nothing.
inline const char* shared_access_problem(unsigned offset, unsigned size = 16) {
  if (offset % size != 0) return size == 16 ? "not 16-byte aligned" : "not aligned to its size";
  return shared.holds(offset, size) ? nullptr : "outside";
}

inline void check_shared(const char* what, unsigned offset, unsigned size = 16) {
  count_step();
  const char* problem = shared_access_problem(offset, size);
  if (problem == nullptr) return;
  record_failure("%s of %u bytes at byte %u of %zu bytes of shared memory: %s", what, size, offset,
                 shared.size(), problem);
  abandon_thread();
}

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
