// Atomic read-modify-write, relaxed as on the device.
#pragma once
#include <type_traits>

#include "language.h"

namespace cuemu {
template <class T, class F>
inline T modify(T* p, F change) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what an atomic can hold");
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  Bits* bits = reinterpret_cast<Bits*>(p);
  Bits seen = __atomic_load_n(bits, __ATOMIC_RELAXED), wanted;
  T before;
  do {
    memcpy(&before, &seen, sizeof(T));
    const T after = change(before);
    memcpy(&wanted, &after, sizeof(T));
  } while (!__atomic_compare_exchange_n(bits, &seen, wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return before;
}
template <class T>
using Same = std::common_type_t<T>;  // takes what converts to T, and deduces nothing
}  // namespace cuemu

template <class T>
inline T atomicAdd(T* p, cuemu::Same<T> v) {
  return cuemu::modify(p, [=](T a) { return T(a + v); });
}
template <class T>
inline T atomicSub(T* p, cuemu::Same<T> v) {
  return cuemu::modify(p, [=](T a) { return T(a - v); });
}
template <class T>
inline T atomicMax(T* p, cuemu::Same<T> v) {
  return cuemu::modify(p, [=](T a) { return a < v ? v : a; });
}
template <class T>
inline T atomicMin(T* p, cuemu::Same<T> v) {
  return cuemu::modify(p, [=](T a) { return v < a ? v : a; });
}
template <class T>
inline T atomicExch(T* p, cuemu::Same<T> v) {
  return cuemu::modify(p, [=](T) { return v; });
}
template <class T>
inline T atomicCAS(T* p, cuemu::Same<T> expected, cuemu::Same<T> v) {
  return cuemu::modify(p, [=](T a) { return a == expected ? v : a; });
}
