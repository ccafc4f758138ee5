#include "memory.hpp"

namespace emu {

Regions regions;
SharedMemory shared;

void fail_access(const char* verb, unsigned long long start, unsigned long long bytes,
                 unsigned long long alignment) {
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

static void check_access(const void* pointer, unsigned long long bytes, bool writing) {
  count_step();
  const unsigned long long start = reinterpret_cast<uintptr_t>(pointer);
  const bool vector = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
  const bool misaligned = vector && start % bytes != 0;
  if (misaligned || !regions.allows(start, bytes, writing))
    fail_access(writing ? "write" : "read", start, bytes, misaligned ? bytes : 0);
}

void check_read(const void* pointer, unsigned long long bytes) {
  check_access(pointer, bytes, false);
}

void check_write(void* pointer, unsigned long long bytes) {
  check_access(pointer, bytes, true);
}

unsigned shared_offset(const void* pointer) {
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

const char* shared_access_problem(unsigned offset, unsigned size) {
  if (offset % size != 0) return size == 16 ? "not 16-byte aligned" : "not aligned to its size";
  return shared.holds(offset, size) ? nullptr : "outside";
}

void check_shared(const char* what, unsigned offset, unsigned size) {
  count_step();
  const char* problem = shared_access_problem(offset, size);
  if (problem == nullptr) return;
  record_failure("%s of %u bytes at byte %u of %zu bytes of shared memory: %s", what, size, offset,
                 shared.size(), problem);
  abandon_thread();
}

}  // namespace emu
