// Types, conversions and loads that every kernel has. One source for NVRTC, nvcc, and a CPU that stands in for a GPU
// (it defines CUDA_ON_CPU).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

typedef long long i64;
typedef unsigned int u32;

#ifdef CUDA_ON_CPU
#define SHARED_BYTES(name) unsigned char* name = cuemu::dyn_smem()
#else
#define SHARED_BYTES(name) extern __shared__ __align__(128) unsigned char name[]
#endif

#define ALL_LANES 0xffffffffu
#define NEG_INF (-__int_as_float(0x7f800000))
// Inside, logarithms are of base 2: an exponential is one instruction. Outside they are natural.
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// --- one element ------------------------------------------------------------------------------------------------

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
// Saturates at 448; NaN stays NaN.
template <>
__device__ __forceinline__ __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float x) {
  return __nv_fp8_e4m3(x);
}

// --- 16 bytes ---------------------------------------------------------------------------------------------------

// Elements of a 16-byte load.
template <typename T>
struct Vector {
  static constexpr int N = 16 / (int)sizeof(T);
};

// As a uint4: through a float4 the compiler makes two loads of 8 bytes.
__device__ __forceinline__ void widen(uint4 u, float (&r)[4], float) {
  r[0] = __uint_as_float(u.x);
  r[1] = __uint_as_float(u.y);
  r[2] = __uint_as_float(u.z);
  r[3] = __uint_as_float(u.w);
}
__device__ __forceinline__ void widen(uint4 u, float (&r)[8], __half) {
  const u32 w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    __half2 h;
    memcpy(&h, &w[i], 4);
    const float2 f = __half22float2(h);
    r[2 * i] = f.x;
    r[2 * i + 1] = f.y;
  }
}
__device__ __forceinline__ void widen(uint4 u, float (&r)[8], __nv_bfloat16) {
  const u32 w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    r[2 * i] = __uint_as_float(w[i] << 16);
    r[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
  }
}
// Two e4m3 values, exactly, as halves.
__device__ __forceinline__ __half2 halves_of_fp8(u32 two) {
  return __half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3));
}
__device__ __forceinline__ void widen(uint4 u, float (&r)[16], __nv_fp8_e4m3) {
  const u32 w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 f = __half22float2(halves_of_fp8((w[i >> 1] >> (16 * (i & 1))) & 0xffffu));
    r[2 * i] = f.x;
    r[2 * i + 1] = f.y;
  }
}
// The 16 bytes at p, which is aligned to them, as floats.
template <typename T>
__device__ __forceinline__ void load16(const T* p, float (&r)[Vector<T>::N]) {
  widen(*reinterpret_cast<const uint4*>(p), r, T());
}
