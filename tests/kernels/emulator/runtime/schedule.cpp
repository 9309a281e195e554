#include "schedule.h"

#include "report.h"

namespace cuemu {

__thread ThreadView* current __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

uint64_t draw(Block& block) {  // xorshift64
  uint64_t& r = block.random;
  r ^= r << 13;
  r ^= r >> 7;
  r ^= r << 17;
  return r;
}

// One of the set bits, as the order has it.
int choose(Block& block, uint32_t bits) {
  if (block.order == Order::Forward) return __builtin_ctz(bits);
  if (block.order == Order::Reverse) return 31 - __builtin_clz(bits);
  for (uint64_t k = draw(block) % (unsigned)__builtin_popcount(bits); k; --k) bits &= bits - 1;
  return __builtin_ctz(bits);
}

// Takes a ready thread, of `warp` if the order leaves it open; null where none is.
Thread* pick(Block& block, int warp) {
  if (!block.ready_warps) return nullptr;
  // A warp that goes on as long as it can keeps its memory in the cache; a random order must not.
  if (block.order == Order::Random || !block.ready[warp]) warp = choose(block, block.ready_warps);
  const int lane = choose(block, block.ready[warp]);
  block.ready[warp] &= ~(1u << lane);
  if (!block.ready[warp]) block.ready_warps &= ~(1u << warp);
  Thread* thread = block.thread(warp, lane);
  thread->state = Wait::Running;
  return thread;
}

}  // namespace

void enter(Block& block) {
  Thread* first = pick(block, block.order == Order::Reverse ? block.num_warps - 1 : 0);
  current = first;
  switch_fiber(block.worker, *first->fiber);
}

void wait_for_others(Thread& thread) {
  Block& block = *thread.owner;
  Thread* next = pick(block, thread.warp);
  if (next == &thread) return;
  if (!next) fail(stuck(block));
  current = next;
  switch_fiber(*thread.fiber, *next->fiber);
}

void leave(Thread& thread) {
  Block& block = *thread.owner;
  Thread* next = pick(block, thread.warp);
  if (!next && block.alive) fail(stuck(block));
  current = next;
  switch_fiber(*thread.fiber, next ? *next->fiber : block.worker);
}

}  // namespace cuemu
