// Barriers, shuffles and votes.
#pragma once
#include <type_traits>

#include "runtime.h"

#define CUEMU_AT cuemu::Site at = cuemu::Site::here()

inline void __syncthreads(CUEMU_AT) { cuemu::block_barrier(false, at); }
inline int __syncthreads_count(int p, CUEMU_AT) { return cuemu::block_barrier(p != 0, at); }
inline int __syncthreads_or(int p, CUEMU_AT) { return cuemu::block_barrier(p != 0, at) != 0; }
inline int __syncthreads_and(int p, CUEMU_AT) { return cuemu::block_barrier(p == 0, at) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu, CUEMU_AT) { cuemu::warp_sync(mask, at); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __trap(CUEMU_AT) { cuemu::trap(at); }

namespace cuemu {
template <class T>
inline T shuffle(unsigned mask, T value, int source, Site at) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "what a shuffle can exchange");
  warp_shuffle(mask, &value, sizeof(T), (uint32_t)source, at);
  return value;
}
}  // namespace cuemu

// A source outside the segment of `width` lanes means the lane itself.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUEMU_AT) {
  const int lane = cuemu::self()->lane;
  return cuemu::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), at);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, CUEMU_AT) {
  const int lane = cuemu::self()->lane, source = lane ^ flip;
  return cuemu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, at);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CUEMU_AT) {
  const int lane = cuemu::self()->lane, source = lane + (int)by;
  return cuemu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, at);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CUEMU_AT) {
  const int lane = cuemu::self()->lane, source = lane - (int)by;
  return cuemu::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source, at);
}

inline unsigned __ballot_sync(unsigned mask, int p, CUEMU_AT) { return cuemu::warp_vote(mask, p != 0, at); }
inline int __any_sync(unsigned mask, int p, CUEMU_AT) { return cuemu::warp_vote(mask, p != 0, at) != 0; }
inline int __all_sync(unsigned mask, int p, CUEMU_AT) { return cuemu::warp_vote(mask, p == 0, at) == 0; }
