// Warp collectives: the lanes of a mask bring something, the last to come works it out for all.
#include "report.h"
#include "schedule.h"
#include "tensor_core.h"

namespace cuemu {
namespace {

constexpr uint32_t kFull = 0xffffffffu;

void shuffle(Thread* const* lanes, uint32_t mask) {
  for_lanes(mask, [&](int i) {
    const uint32_t source = lanes[i]->parameter;
    if (source < 32 && (mask >> source & 1)) memcpy(lanes[i]->out, lanes[source]->in, 8);
    else memset(lanes[i]->out, 0xff, 8);  // undefined on the device: NaN, or -1
  });
}

void vote(Thread* const* lanes, uint32_t mask) {
  uint32_t bits = 0;
  for_lanes(mask, [&](int i) { bits |= lanes[i]->parameter << i; });
  for_lanes(mask, [&](int i) { memcpy(lanes[i]->out, &bits, 4); });
}

void work_out(const Thread& last, uint32_t mask) {
  Thread* lanes[32];
  for_lanes(mask, [&](int i) {
    lanes[i] = last.owner->thread(last.warp, i);
    if (lanes[i]->collective != last.collective || lanes[i]->mask != last.mask)
      fail("lanes disagree on the collective or its mask\n" + where(last) + where(*lanes[i]));
  });
  switch (last.collective) {
    case Collective::None:
    case Collective::Sync:
      break;
    case Collective::Shuffle:
      shuffle(lanes, mask);
      break;
    case Collective::Vote:
      vote(lanes, mask);
      break;
    case Collective::MmaFloat16:
    case Collective::MmaBfloat16:
      multiply(lanes, last.collective == Collective::MmaBfloat16);
      break;
    case Collective::Matrix:
    case Collective::MatrixTransposed:
      hand_out_matrices(lanes, last.collective == Collective::MatrixTransposed);
      break;
  }
}

void note_order(Block& block, int warp, uint32_t mask) {  // who has to acquire whose __syncwarp
  for_lanes(mask, [&](int i) {
    for_lanes(mask, [&](int j) { block.thread(warp, i)->syncs.turn[j] = block.thread(warp, j)->syncs.done & 1; });
  });
  for_lanes(mask, [&](int i) { block.thread(warp, i)->syncs.done++; });
}

void meet(Collective collective, uint32_t mask, uint32_t parameter, Site at) {
  Thread& thread = *running();
  Block& block = *thread.owner;
  const int warp = thread.warp;
  const uint32_t me = 1u << thread.lane;
  thread.collective = collective;
  thread.mask = mask;
  thread.parameter = parameter;
  thread.at = at;
  thread.state = Wait::Warp;
  if (!(mask & me)) fail("the calling lane is not in its own mask\n" + where(thread));
  if (mask & ~block.present[warp]) fail("the mask names lanes that do not exist or have exited\n" + where(thread));
  const bool orders = race::kWatched && collective == Collective::Sync;
  if (orders) race::release(&block.events->warp[thread.linear][thread.syncs.done & 1]);
  block.waiting[warp] |= me;
  if ((block.waiting[warp] & mask) == mask) {
    work_out(thread, mask);
    block.waiting[warp] &= ~mask;
    if (race::kWatched) note_order(block, warp, mask);
    if (block.order == Order::Forward) {
      make_ready(block, warp, mask & ~me);
      thread.state = Wait::Running;
    } else {  // any lane may be the first to go on
      make_ready(block, warp, mask);
      wait_for_others(thread);
    }
  } else {
    wait_for_others(thread);
  }
  if (orders)
    for_lanes(mask, [&](int lane) { race::acquire(&block.events->warp[warp * 32 + lane][thread.syncs.turn[lane]]); });
}

// Sizes are constants: a call of memcpy would be taken for an access of the kernel's.
void copy_value(void* to, const void* from, size_t bytes) {
  switch (bytes) {
    case 1:
      memcpy(to, from, 1);
      break;
    case 2:
      memcpy(to, from, 2);
      break;
    case 4:
      memcpy(to, from, 4);
      break;
    case 8:
      memcpy(to, from, 8);
      break;
    default:
      fail("a shuffle of " + std::to_string(bytes) + " bytes\n" + where(*running()));
  }
}

}  // namespace

void warp_sync(uint32_t mask, Site at) {
  const Thread& thread = *running();
  const int left = thread.owner->size - thread.warp * 32;
  // The default argument means the whole warp, which may be a short one.
  if (mask == kFull && left < 32) mask = (1u << left) - 1;
  meet(Collective::Sync, mask, 0, at);
}

void warp_shuffle(uint32_t mask, void* value, size_t bytes, uint32_t source, Site at) {
  Thread& thread = *running();
  copy_value(thread.in, value, bytes);
  meet(Collective::Shuffle, mask, source, at);
  copy_value(value, thread.out, bytes);
}

uint32_t warp_vote(uint32_t mask, bool predicate, Site at) {
  meet(Collective::Vote, mask, predicate, at);
  uint32_t bits;
  memcpy(&bits, running()->out, 4);
  return bits;
}

void warp_mma(Half kind, float* d, const uint32_t* a, const uint32_t* b, const float* c, Site at) {
  Thread& thread = *running();
  memcpy(thread.in, a, 16);
  memcpy(thread.in + 16, b, 8);
  memcpy(thread.in + 24, c, 16);
  meet(kind == Half::Bfloat16 ? Collective::MmaBfloat16 : Collective::MmaFloat16, kFull, 0, at);
  memcpy(d, thread.out, 16);
}

void warp_matrix(uint32_t* fragments, const uint4& row, bool transposed, Site at) {
  Thread& thread = *running();
  memcpy(thread.in, &row, 16);
  meet(transposed ? Collective::MatrixTransposed : Collective::Matrix, kFull, 0, at);
  memcpy(fragments, thread.out, 16);
}

}  // namespace cuemu
