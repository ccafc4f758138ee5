// Where all threads of a block wait for each other.
#pragma once

#include "thread.hpp"

namespace emu {

void sync_threads(Site site);

// Whether any thread's predicate isn't 0.
int sync_threads_or(Site site, int predicate);

}  // namespace emu
