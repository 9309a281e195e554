// IEEE binary16: __half and __half2. All arithmetic is done in float, as in the kernels.
#pragma once
#include "scalar_math.h"

struct alignas(2) __half {
  uint16_t bits;
  __half() = default;
  __half(float f) : bits(cuemu::bits_as<uint16_t>((_Float16)f)) {}
  operator float() const { return (float)cuemu::bits_as<_Float16>(bits); }
};
typedef __half half;

struct __half2_raw {
  uint16_t x, y;
};
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half a, __half b) : x(a), y(b) {}
  __half2(__half2_raw r) {
    x.bits = r.x;
    y.bits = r.y;
  }
};
typedef __half2 half2;

inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline float __half2float(__half h) { return (float)h; }
inline float2 __half22float2(__half2 h) { return {(float)h.x, (float)h.y}; }
inline __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(unsigned short bits) { return cuemu::bits_as<__half>(bits); }
