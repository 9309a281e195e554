#include "race_detector.h"

#ifdef CUEMU_TSAN
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#endif

namespace cuemu::race {

#ifdef CUEMU_TSAN
// An address keeps what was released at it until its memory is given back.
Events* renew_events(Events* used) {
  free_events(used);
  void* at = mmap(nullptr, sizeof(Events), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    perror("events of a block");
    abort();
  }
  return static_cast<Events*>(at);
}
void free_events(Events* events) {
  if (events) munmap(events, sizeof(Events));
}
#else
Events* renew_events(Events*) {
  static Events unused;
  return &unused;
}
void free_events(Events*) {}
#endif

}  // namespace cuemu::race
