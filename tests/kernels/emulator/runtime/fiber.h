// A fiber: a stack of its own, and a switch that costs some nanoseconds.
//
// The stacks of a block lie one after the other, and below each is a page that may not be touched.
#pragma once
#include <cstddef>

#if defined(CUEMU_UCONTEXT) || !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuemu {

constexpr size_t kPage = 4096, kStack = 256 << 10;

struct Fiber {
#if defined(CUEMU_UCONTEXT) || !defined(__x86_64__)
  ucontext_t context;
#else
  void* stack_pointer = nullptr;
#endif
  void* stack = nullptr;  // lowest usable byte
  size_t stack_bytes = 0;
  void* race_fiber = nullptr;  // ThreadSanitizer's handle
  void* fake_stack = nullptr;  // AddressSanitizer's
};

// Makes `worker` stand for the system's thread that calls this.
void adopt_worker(Fiber& worker);
// Leaves `from`, and goes on where `to` was left or, the first time, at its entry.
void switch_fiber(Fiber& from, Fiber& to);

// The stacks of a block: address space is taken for all of them, memory where they grow.
class Stacks {
 public:
  explicit Stacks(int count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  // Makes a fiber that starts in `entry` on stack i.
  void prepare(int i, Fiber& fiber, void (*entry)());
  void release(Fiber& fiber);

 private:
  char* region_;
  size_t bytes_;
};

}  // namespace cuemu
