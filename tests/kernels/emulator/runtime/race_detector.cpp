#include "race_detector.h"

#ifdef CUEMU_TSAN
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <vector>
#endif

namespace cuemu::race {

#ifdef CUEMU_TSAN
static std::vector<void*> spare;  // of the one worker that is watched

void* take_fiber() {
  if (spare.empty()) return __tsan_create_fiber(0);
  void* fiber = spare.back();
  spare.pop_back();
  return fiber;
}
void let_go_fiber(void* fiber) { spare.push_back(fiber); }

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
void* take_fiber() { return nullptr; }
void let_go_fiber(void*) {}
Events* renew_events(Events*) {
  static Events unused;
  return &unused;
}
void free_events(Events*) {}
#endif

}  // namespace cuemu::race
