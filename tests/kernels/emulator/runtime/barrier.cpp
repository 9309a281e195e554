#include "barrier.h"

#include "report.h"
#include "schedule.h"

namespace cuemu {
namespace {

void open_barrier(Block& block) {
  block.result[block.generation & 1] = block.true_predicates;
  block.true_predicates = block.arrived = 0;
  ++block.generation;
  for (int warp = 0; warp < block.num_warps; ++warp) {
    make_ready(block, warp, block.at_barrier[warp]);
    block.at_barrier[warp] = 0;
  }
}

// The instruction is the warp's: its lanes must not come to it from different places.
void check_same_place(const Thread& thread) {
  const uint32_t there = thread.owner->at_barrier[thread.warp];
  if (!there) return;
  const Thread& other = *thread.owner->thread(thread.warp, __builtin_ctz(there));
  if (other.at.line != thread.at.line)
    fail("lanes of a warp wait at different __syncthreads\n" + where(thread) + where(other));
}

}  // namespace

int block_barrier(bool predicate, Site at) {
  Thread& thread = *running();
  Block& block = *thread.owner;
  const unsigned generation = block.generation;
  thread.at = at;
  thread.state = Wait::Block;
  check_same_place(thread);
  block.at_barrier[thread.warp] |= 1u << thread.lane;
  race::release(&block.events->barrier[generation & 1]);
  block.true_predicates += predicate;
  if (++block.arrived == block.alive) open_barrier(block);
  wait_for_others(thread);
  race::acquire(&block.events->barrier[generation & 1]);
  return block.result[generation & 1];
}

void end_thread(Thread& thread) {
  Block& block = *thread.owner;
  thread.state = Wait::Done;
  thread.at = {};
  block.present[thread.warp] &= ~(1u << thread.lane);
  for_lanes(block.waiting[thread.warp], [&](int lane) {
    const Thread& other = *block.thread(thread.warp, lane);
    if (other.mask >> thread.lane & 1)
      fail("a lane exited while another waits for it\n" + where(other) + where(thread));
  });
  if (!thread.copies.empty()) fail("a thread exited with cp.async copies that it never waited for\n" + where(thread));
  race::release(&block.ended);
  if (--block.alive && block.arrived == block.alive) open_barrier(block);
  leave(thread);
}

}  // namespace cuemu
