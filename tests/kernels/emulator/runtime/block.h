// What a worker knows of the block that it runs: its threads, what each waits for, what is ready.
//
// A worker runs one block at a time and keeps block, threads and stacks for the next. Exactly one
// thread of the block is running; the others are fibers that wait, or may go on (a bit of `ready` says
// so, and their state is still what they waited for):
//
//   Running -> Warp  (at a warp collective)  -> ready -> Running
//           -> Block (at __syncthreads)      -> ready -> Running
//           -> Done
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "../device/runtime.h"
#include "fiber.h"
#include "race_detector.h"
// The runtime is no kernel.
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace cuemu {

constexpr int kMaxThreads = 1024, kMaxWarps = kMaxThreads / 32;

enum class Wait : uint8_t { Running, Warp, Block, Done };
enum class Collective : uint8_t { None, Sync, Shuffle, Vote, MmaFloat16, MmaBfloat16, Matrix, MatrixTransposed };
enum class Order : uint8_t { Forward, Reverse, Random };

// A cp.async that has not landed; `group` counts the commits of its thread before it.
struct Copy {
  void* to;
  const void* from;
  unsigned group;
};

struct Range {
  unsigned char* first = nullptr;
  size_t bytes = 0;
  bool holds(const void* address, size_t size) const {
    const auto at = (uintptr_t)address, from = (uintptr_t)first;
    return at >= from && at + size <= from + bytes;
  }
};

struct Block;
struct Thread : ThreadView {
  Block* owner;
  Fiber* fiber;  // that it runs on for this block
  Wait state;
  Collective collective;  // what it waits for or did last, with the mask and the parameter it gave
  uint32_t mask, parameter;
  Site at;
  alignas(16) unsigned char in[48], out[16];  // what it brought to the collective, and got from it
  unsigned committed;                         // groups of copies
  std::vector<Copy> copies;                   // oldest first
  race::Lane syncs;
};

struct Block : BlockView {
  int size = 0, num_warps = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;

  int alive = 0;
  // __syncthreads: threads that have come, and the predicates they brought; results of the last two
  // generations, since a fast thread may reach the next barrier before a slow one has left this.
  int arrived = 0, true_predicates = 0, result[2] = {0, 0};
  unsigned generation = 0;
  // A bit for each lane: there, waiting at a collective, ready; and a bit for each warp with a ready lane.
  uint32_t present[kMaxWarps], waiting[kMaxWarps], ready[kMaxWarps], ready_warps = 0;
  uint32_t at_barrier[kMaxWarps];  // a bit for each lane in __syncthreads

  Order order = Order::Forward;
  uint64_t random = 1;
  bool failed = false;
  std::string error;

  Range dynamic_shared, static_shared;
  Fiber worker;
  race::Events* events = nullptr;
  char ended = 0;  // the event of a thread's end, of all blocks of this worker

  Thread* thread(int warp, int lane) const { return threads[(size_t)(warp * 32 + lane)].get(); }
};

inline Thread* running() { return static_cast<Thread*>(self()); }

// The lanes of a mask, lowest first.
template <class F>
inline void for_lanes(uint32_t mask, F each) {
  for (; mask; mask &= mask - 1) each(__builtin_ctz(mask));
}

}  // namespace cuemu
