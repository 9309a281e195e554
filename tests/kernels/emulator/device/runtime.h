// What a kernel asks of the runtime: who am I, wait, exchange, copy, multiply, give up.
//
// A call that waits, or that may be wrong, takes the Site that it was written at, for the report.
#pragma once
#include <cstddef>
#include <cstdint>

#include "language.h"

namespace cuemu {

struct BlockView {
  dim3 grid, dim;
  uint3 index;
  unsigned char* shared;  // dynamic shared memory
};
struct ThreadView {
  uint3 index;
  int linear, warp, lane;
  BlockView* block;
};

struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// What follows lies in a library of its own, one for all kernels of the process.
#pragma GCC visibility push(default)

// The thread of the grid that this thread of the system runs now.
extern __thread ThreadView* current __attribute__((tls_model("initial-exec")));

// Waits for all threads of the block; returns how many came with a true predicate.
int block_barrier(bool predicate, Site at);
void warp_sync(uint32_t mask, Site at);
// Replaces `value` by lane `source`'s; all ones where that lane is not in the mask.
void warp_shuffle(uint32_t mask, void* value, size_t bytes, uint32_t source, Site at);
uint32_t warp_vote(uint32_t mask, bool predicate, Site at);

enum class Half : uint8_t { Float16, Bfloat16 };
// d = a b + c over the fragments of mma.sync.m16n8k16.
void warp_mma(Half kind, float* d, const uint32_t* a, const uint32_t* b, const float* c, Site at);
// Hands out the 8 x 8 matrices whose rows the lanes bring, 16 bytes each.
void warp_matrix(uint32_t* fragments, const uint4& row, bool transposed, Site at);
// Fails unless `bytes` at `address` are aligned to their size and shared memory of this block.
void check_shared(const void* address, size_t bytes, const char* what, Site at);

// A null source fills with zeros.
void copy_issue(void* to, const void* from, Site at);
void copy_commit();
void copy_wait(int keep);

[[noreturn]] void trap(Site at);

// One launch, as the launcher describes it.
struct Launch {
  unsigned grid[3], block[3];
  uint64_t shared_bytes;
  unsigned order;  // of the threads and blocks: 0 forward, 1 reverse, 2 random
  unsigned workers;
  uint64_t seed;
};
// Runs `body(argument)` once for every thread of the grid. Returns 0, or 1 and a message in `error`.
int launch(const Launch& how, void (*body)(void*), void* argument, char* error, size_t error_bytes);

#pragma GCC visibility pop

inline ThreadView* self() { return current; }
inline unsigned char* dyn_smem() { return self()->block->shared; }

}  // namespace cuemu
