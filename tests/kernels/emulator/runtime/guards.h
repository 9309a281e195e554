// AddressSanitizer, told about fibers and shared memory; nothing at all in other builds.
#pragma once
#include <cstddef>

#ifdef CUEMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuemu::guards {

#ifdef CUEMU_ASAN
inline void before_switch(void** fake_stack, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
}
inline void after_switch(void* fake_stack) { __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr); }
inline void close(const void* from, size_t bytes) { __asan_poison_memory_region(from, bytes); }
inline void open(const void* from, size_t bytes) { __asan_unpoison_memory_region(from, bytes); }
#else
inline void before_switch(void**, const void*, size_t) {}
inline void after_switch(void*) {}
inline void close(const void*, size_t) {}
inline void open(const void*, size_t) {}
#endif

}  // namespace cuemu::guards
