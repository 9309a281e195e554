// Who runs next.
#pragma once
#include "block.h"

namespace cuemu {

void make_ready(Block& block, int warp, uint32_t lanes);
// Takes a ready thread, of `warp` if the order leaves it open; null where none is.
Thread* pick(Block& block, int warp);
// The running thread has set what it waits for: runs others until one of them has made it ready.
void wait_for_others(Thread& thread);
// Ends the running thread, whose state is Done, and runs another, or the worker after the last.
void leave(Thread& thread);

}  // namespace cuemu
