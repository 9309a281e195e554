// fp8 e4m3: a sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, one NaN (S.1111.111).
#pragma once
#include "float16.h"

typedef uint8_t __nv_fp8_storage_t;
typedef uint16_t __nv_fp8x2_storage_t;
enum __nv_fp8_interpretation_t { __NV_E4M3 };
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };

namespace cuemu {
inline float e4m3_to_float(uint8_t v) {
  if ((v & 0x7f) == 0x7f) return v & 0x80 ? -NAN : NAN;
  // The same bits in a binary16 are 2^8 times less, whose exponent has a bias of 15; denormals, too.
  return 256.f * (float)__ushort_as_half((unsigned short)((v & 0x80) << 8 | (v & 0x7f) << 7));
}
// To nearest, ties to even. What would round to more than 448 becomes 448, or NaN if not to saturate.
inline uint8_t float_to_e4m3(float f, bool saturate) {
  if (f != f) return 0x7f;
  const uint8_t sign = signbit(f) ? 0x80 : 0;
  const float size = fabsf(f);
  if (size > 464.f) return sign | (saturate ? 0x7e : 0x7f);
  if (size > 448.f) return sign | 0x7e;
  int exponent;
  frexpf(size, &exponent);
  exponent = size == 0.f ? -6 : max(exponent - 1, -6);
  // In units of the last bit; a mantissa that rounds up to 16 carries into the exponent by itself.
  const int units = (int)nearbyintf(ldexpf(size, 3 - exponent));
  return sign | (uint8_t)(units < 8 ? units : ((exponent + 7) << 3) + units - 8);
}
}  // namespace cuemu

struct __nv_fp8_e4m3 {
  __nv_fp8_storage_t __x;
  __nv_fp8_e4m3() = default;
  explicit __nv_fp8_e4m3(float f) : __x(cuemu::float_to_e4m3(f, true)) {}
  explicit operator float() const { return cuemu::e4m3_to_float(__x); }
};
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float f, __nv_saturation_t saturation, __nv_fp8_interpretation_t) {
  return cuemu::float_to_e4m3(f, saturation == __NV_SATFINITE);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 f, __nv_saturation_t saturation,
                                                     __nv_fp8_interpretation_t) {
  const bool saturate = saturation == __NV_SATFINITE;
  return (uint16_t)(cuemu::float_to_e4m3(f.x, saturate) | cuemu::float_to_e4m3(f.y, saturate) << 8);
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t) {
  return {__half(cuemu::e4m3_to_float((uint8_t)v)).bits, __half(cuemu::e4m3_to_float((uint8_t)(v >> 8))).bits};
}
