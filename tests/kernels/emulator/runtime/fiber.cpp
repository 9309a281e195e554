#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../device/runtime.h"
#include "guards.h"
#include "race_detector.h"

#if !defined(CUEMU_UCONTEXT) && defined(__x86_64__)
// System V: these registers belong to the caller; everything else is lost at a call anyway.
extern "C" void cuemu_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl cuemu_switch
.hidden cuemu_switch
.type cuemu_switch,@function
cuemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuemu_switch,.-cuemu_switch
)");
#endif

namespace cuemu {
namespace {

// What the threads of a warp touch together, the upper ends of their stacks, must not fall into the same
// sets of a cache.
constexpr size_t kShift = 5 * 64, kShifts = 64;

#if defined(CUEMU_UCONTEXT) || !defined(__x86_64__)
void start(Fiber& fiber, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = fiber.stack_bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}
#else
void start(Fiber& fiber, void (*entry)()) {
  void** top = reinterpret_cast<void**>(static_cast<char*>(fiber.stack) + fiber.stack_bytes);
  *--top = nullptr;  // a return address: the stack is aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that cuemu_switch takes off
  fiber.stack_pointer = top;
}
#endif

}  // namespace

void adopt_worker(Fiber& worker) {
  worker.race_fiber = race::current_fiber();
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &worker.stack, &worker.stack_bytes);
  pthread_attr_destroy(&attributes);
}

void switch_fiber(Fiber& from, Fiber& to) {
  guards::before_switch(&from.fake_stack, to.stack, to.stack_bytes);
  race::switch_to(to.race_fiber);
#if defined(CUEMU_UCONTEXT) || !defined(__x86_64__)
  swapcontext(&from.context, &to.context);
#else
  cuemu_switch(&from.stack_pointer, to.stack_pointer);
#endif
  guards::after_switch(from.fake_stack);
}

Stacks::Stacks(int count) : bytes_((size_t)count * kStack) {
  void* region = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    perror("stacks of a block");
    abort();
  }
  region_ = static_cast<char*>(region);
}

Stacks::~Stacks() {
  guards::open(region_, bytes_);
  munmap(region_, bytes_);
}

void Stacks::prepare(int i, Fiber& fiber, void (*entry)()) {
  char* base = region_ + (size_t)i * kStack;
  mprotect(base, kPage, PROT_NONE);
  fiber.stack = base + kPage;
  fiber.stack_bytes = kStack - kPage - (size_t)i % kShifts * kShift;
  fiber.race_fiber = race::take_fiber();
  start(fiber, entry);
}

void Stacks::release(Fiber& fiber) { race::let_go_fiber(fiber.race_fiber); }

}  // namespace cuemu
