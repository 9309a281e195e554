// ThreadSanitizer, told what orders the threads of a grid; nothing at all in other builds.
//
// The runtime is never instrumented: the sanitizer sees the kernel's accesses, and between them only the
// orderings that are said here. __syncthreads orders a block, __syncwarp the lanes of its mask; shuffles,
// votes and the tensor-core instructions order nothing; nor does anything order two blocks. One exception:
// blocks of a kernel with static __shared__ arrays count as one after another, since those are one memory.
#pragma once
#include <cstddef>
#include <cstdint>

#ifdef CUEMU_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read16(void*);
void __tsan_write16(void*);
}
#endif

namespace cuemu::race {

#ifdef CUEMU_TSAN
constexpr bool kWatched = true;
inline void* current_fiber() { return __tsan_get_current_fiber(); }
inline void switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }
inline void release(void* at) { __tsan_release(at); }
inline void acquire(void* at) { __tsan_acquire(at); }
inline void read16(const void* at) { __tsan_read16(const_cast<void*>(at)); }
inline void write16(void* at) { __tsan_write16(at); }
#else
constexpr bool kWatched = false;
inline void* current_fiber() { return nullptr; }
inline void switch_to(void*) {}
inline void release(void*) {}
inline void acquire(void*) {}
inline void read16(const void*) {}
inline void write16(void*) {}
#endif

// A fiber of the sanitizer's. It takes long to make, so one that is let go is kept for the next.
void* take_fiber();
void let_go_fiber(void* fiber);

// The events of a block, as addresses to release and acquire at. Two of each kind are used in turns: a
// slow thread may still have to acquire one when a fast one releases the next.
struct Events {
  char start;          // of the block
  char barrier[2];     // __syncthreads, by its generation
  char warp[1024][2];  // __syncwarp of each thread, by how many it has done
};
// Where no event has happened yet, in place of where some have; null is taken for none.
Events* renew_events(Events* used);
void free_events(Events* events);

// What a lane knows of its __syncwarp.
struct Lane {
  unsigned done = 0;
  uint8_t turn[32] = {};  // which of the two of each lane it has to acquire
};

}  // namespace cuemu::race
