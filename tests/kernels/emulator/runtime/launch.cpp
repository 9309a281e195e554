// One launch: blocks are dealt out to workers, a worker runs its blocks one after another.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "barrier.h"
#include "guards.h"
#include "report.h"
#include "schedule.h"
#include "shared_memory.h"

namespace cuemu {
namespace {

constexpr uint64_t kMaxShared = 232448;  // 227 KiB: the most that a kernel can ask for on sm_90
// Beyond this many blocks their order is not shuffled: it would take more memory than it is worth.
constexpr uint64_t kMaxShuffled = 1u << 22;

uint64_t volume(const unsigned* size) { return (uint64_t)size[0] * size[1] * size[2]; }

std::string refusal(const Launch& how) {
  const unsigned *g = how.grid, *b = how.block;
  if (!volume(b) || volume(b) > kMaxThreads || b[0] > 1024 || b[1] > 1024 || b[2] > 64)
    return "a block has 1 ... 1024 threads";
  if (!volume(g) || g[0] > 2147483647u || g[1] > 65535 || g[2] > 65535)
    return "a grid has 1 ... 2147483647 blocks in x, and 1 ... 65535 in y and z";
  if (how.shared_bytes > kMaxShared)
    return std::to_string(how.shared_bytes) + " bytes of shared memory: a block has " + std::to_string(kMaxShared);
  return {};
}

// Which block is the i-th to run.
class Sequence {
 public:
  explicit Sequence(const Launch& how) : count_(volume(how.grid)), order_((Order)how.order) {
    if (order_ != Order::Random || count_ > kMaxShuffled) return;
    shuffled_.resize(count_);
    std::iota(shuffled_.begin(), shuffled_.end(), 0);
    std::shuffle(shuffled_.begin(), shuffled_.end(), std::mt19937_64(how.seed));
  }
  uint64_t count() const { return count_; }
  uint64_t operator[](uint64_t i) const {
    if (!shuffled_.empty()) return shuffled_[i];
    return order_ == Order::Reverse ? count_ - 1 - i : i;
  }

 private:
  uint64_t count_;
  Order order_;
  std::vector<uint64_t> shuffled_;
};

void run_thread() {
  guards::after_switch(nullptr);
  for (;;) {  // a turn for each block
    Thread& thread = *running();
    race::acquire(&thread.owner->events->start);
    thread.owner->body(thread.owner->argument);
    end_thread(thread);
  }
}

class Worker {
 public:
  Worker(const Launch& how, void (*body)(void*), void* argument)
      : stacks_((int)volume(how.block)), fibers_(volume(how.block)), shared_(how.shared_bytes) {
    const unsigned* size = how.block;
    block_.grid = dim3(how.grid[0], how.grid[1], how.grid[2]);
    block_.dim = dim3(size[0], size[1], size[2]);
    block_.size = (int)volume(size);
    block_.num_warps = (block_.size + 31) / 32;
    block_.body = body;
    block_.argument = argument;
    block_.static_shared = static_shared(body);
    apart_ = race::kWatched && block_.static_shared.bytes == 0;
    block_.order = (Order)how.order;
    seed_ = how.seed;
    adopt_worker(block_.worker);
    for (int i = 0; i < block_.size; ++i) {
      auto thread = std::make_unique<Thread>();
      thread->linear = i;
      thread->warp = i / 32;
      thread->lane = i % 32;
      thread->block = thread->owner = &block_;
      const unsigned u = (unsigned)i;
      thread->index = {u % size[0], u / size[0] % size[1], u / size[0] / size[1]};
      block_.threads.push_back(std::move(thread));
      stacks_.prepare(i, fibers_[(size_t)i], run_thread);
    }
  }
  ~Worker() {
    race::acquire(&block_.ended);
    race::free_events(block_.events);
    for (auto& fiber : fibers_) stacks_.release(fiber);
  }

  // Runs one block to its end; false where it failed.
  bool run(uint64_t number) {
    reset(number);
    race::release(&block_.events->start);
    enter(block_);
    if (block_.failed) end_all();
    if (!apart_) race::acquire(&block_.ended);  // and the next block is after this one
    return !block_.failed;
  }
  const std::string& error() const { return block_.error; }

 private:
  void reset(uint64_t number) {
    const dim3 grid = block_.grid;
    block_.index = {(unsigned)(number % grid.x), (unsigned)(number / grid.x % grid.y),
                    (unsigned)(number / grid.x / grid.y)};
    // A block's order is its own, whichever worker runs it.
    block_.random = std::mt19937_64(seed_ ^ number << 32)() | 1;
    block_.alive = block_.size;
    block_.arrived = block_.true_predicates = 0;
    block_.generation = 0;
    for (int warp = 0; warp < block_.num_warps; ++warp)
      block_.present[warp] = block_.waiting[warp] = block_.ready[warp] = block_.at_barrier[warp] = 0;
    for (auto& thread : block_.threads) {
      thread->collective = Collective::None;
      thread->mask = thread->parameter = 0;
      thread->at = {};
      thread->committed = 0;
      thread->syncs.done = 0;
      block_.present[thread->warp] |= 1u << thread->lane;
      // A fiber is ordered after itself. Where races are looked for, a thread of the next block runs on
      // another fiber than its like in this, and so is ordered after none that it may race with.
      const size_t shift = race::kWatched ? turn_ : 0;
      thread->fiber = &fibers_[((size_t)thread->linear + shift) % fibers_.size()];
    }
    ++turn_;
    for (int warp = 0; warp < block_.num_warps; ++warp) make_ready(block_, warp, block_.present[warp]);
    block_.events = race::renew_events(block_.events);
    shared_.renew();
    block_.dynamic_shared = shared_.range();
    block_.shared = block_.dynamic_shared.first;
#ifndef CUEMU_STATIC_SHARED
    const Range fixed = block_.static_shared;
    if (fixed.bytes) memset(fixed.first, 0xff, fixed.bytes);
#endif
  }

  // After a failure: what the threads did, wherever they are, is before what comes after the launch.
  void end_all() {
    for (auto& fiber : fibers_) {
      race::switch_to(fiber.race_fiber);
      race::release(&block_.ended);
    }
    race::switch_to(block_.worker.race_fiber);
  }

  Block block_;
  Stacks stacks_;
  std::vector<Fiber> fibers_;
  uint64_t seed_;
  size_t turn_ = 0;
  SharedMemory shared_;
  bool apart_;  // blocks are ordered by nothing: see race_detector.h
};

}  // namespace

int launch(const Launch& how, void (*body)(void*), void* argument, char* error, size_t error_bytes) {
  std::string message = refusal(how);
  if (message.empty()) {
    const Sequence sequence(how);
    std::atomic<uint64_t> next{0};
    std::mutex failing;
    const auto work = [&] {
      Worker worker(how, body, argument);
      for (uint64_t i; (i = next.fetch_add(1)) < sequence.count();) {
        if (worker.run(sequence[i])) continue;
        const std::lock_guard<std::mutex> lock(failing);
        if (message.empty()) message = worker.error();
        next = sequence.count();
        break;
      }
    };
    const unsigned workers = (unsigned)std::min<uint64_t>(std::max(1u, how.workers), sequence.count());
    std::vector<std::thread> others;
    for (unsigned number = 1; number < workers; ++number) others.emplace_back(work);
    work();
    for (auto& other : others) other.join();
  }
  if (message.empty()) return 0;
  snprintf(error, error_bytes, "%s", message.c_str());
  return 1;
}

}  // namespace cuemu
