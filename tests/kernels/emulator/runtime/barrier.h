// __syncthreads, and the end of a thread, which the others no longer wait for.
#pragma once
#include "block.h"

namespace cuemu {

// The running thread has returned from the kernel.
void end_thread(Thread& thread);

}  // namespace cuemu
