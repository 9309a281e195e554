// Functions of single numbers: CUDA's names for what the C library has, and casts of bits.
#pragma once
// The special functions of C++17 take longer to read than all other headers, and no kernel has them.
#include <type_traits>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <math.h>

#include "language.h"

template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (T)a < (T)b ? (T)b : (T)a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (T)b < (T)a ? (T)b : (T)a;
}

template <class T>
inline T __ldg(const T* p) {
  return *p;
}

inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float rsqrtf(float a) { return 1.f / sqrtf(a); }

namespace cuemu {
template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a cast of bits keeps their number");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}
}  // namespace cuemu
inline float __int_as_float(int i) { return cuemu::bits_as<float>(i); }
inline float __uint_as_float(unsigned i) { return cuemu::bits_as<float>(i); }
inline int __float_as_int(float f) { return cuemu::bits_as<int>(f); }
inline unsigned __float_as_uint(float f) { return cuemu::bits_as<unsigned>(f); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
