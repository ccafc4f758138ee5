#include "barrier.hpp"

namespace emu {

void sync_threads(Site site) {
  wait(Stop{Status::at_barrier, "__syncthreads", site, 0, nullptr});
}

// Votes take turns with three places: whoever enters one clears the next one's, which nobody reads any
// more since all have entered the one before.
int sync_threads_or(Site site, int predicate) {
  const unsigned vote = state.current->votes++;
  state.votes[(vote + 1) % 3] = false;
  if (predicate != 0) state.votes[vote % 3] = true;
  wait(Stop{Status::at_barrier, "__syncthreads_or", site, 0, nullptr});
  return state.votes[vote % 3];
}

}  // namespace emu
