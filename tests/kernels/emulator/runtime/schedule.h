// Who runs next.
#pragma once
#include "block.h"

namespace cuemu {

inline void make_ready(Block& block, int warp, uint32_t lanes) {
  block.ready[warp] |= lanes;
  if (block.ready[warp]) block.ready_warps |= 1u << warp;
}
// Leaves the worker for a thread of the block; returns when the block has ended or failed.
void enter(Block& block);
// The running thread has set what it waits for: runs others until one of them has made it ready.
void wait_for_others(Thread& thread);
// Ends the running thread, whose state is Done, and runs another, or the worker after the last.
void leave(Thread& thread);

}  // namespace cuemu
