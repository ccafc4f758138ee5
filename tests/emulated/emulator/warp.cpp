#include "warp.hpp"

namespace emu {

void require_full_mask(const char* name, unsigned mask) {
  if (mask == 0xffffffffu) return;
  record_failure("%s with mask 0x%08x: only the full mask 0xffffffff is emulated", name, mask);
  abandon_thread();
}

int any(Site site, unsigned mask, int predicate) {
  require_full_mask("__any_sync", mask);
  const Deposits<int> predicates = exchange("__any_sync", site, predicate);
  for (unsigned lane = 0; lane < kLanes; ++lane)
    if (predicates[lane] != 0) return 1;
  return 0;
}

void sync_warp(Site site, unsigned mask) {
  require_full_mask("__syncwarp", mask);
  wait(Stop{Status::at_collective, "__syncwarp", site, 0, nullptr});
}

}  // namespace emu
