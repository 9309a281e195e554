// The words of CUDA C++ that g++ does not know: qualifiers, vector types, coordinates.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

// A worker runs one block at a time, so an array of the worker is an array of the block.
#ifdef CUEMU_STATIC_SHARED
#define __shared__ static
#else
#define __shared__ static thread_local
#endif

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float3 {
  float x, y, z;
};

// The alignments are CUDA's: a vector load at any other address is an error there, and UBSan's here.
#define CUEMU_VECTOR2(T, name, alignment)        \
  struct alignas(alignment) name##2 { T x, y; }; \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define CUEMU_VECTOR4(T, name, alignment)              \
  struct alignas(alignment) name##4 { T x, y, z, w; }; \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUEMU_VECTOR2(float, float, 8)
CUEMU_VECTOR2(int, int, 8)
CUEMU_VECTOR2(unsigned, uint, 8)
CUEMU_VECTOR2(short, short, 4)
CUEMU_VECTOR2(unsigned short, ushort, 4)
CUEMU_VECTOR2(double, double, 16)
CUEMU_VECTOR2(long long, longlong, 16)
CUEMU_VECTOR4(float, float, 16)
CUEMU_VECTOR4(int, int, 16)
CUEMU_VECTOR4(unsigned, uint, 16)
CUEMU_VECTOR4(unsigned short, ushort, 8)
CUEMU_VECTOR4(signed char, char, 4)
CUEMU_VECTOR4(unsigned char, uchar, 4)

static constexpr int warpSize = 32;

#define threadIdx (cuemu::self()->index)
#define blockIdx (cuemu::self()->block->index)
#define blockDim (cuemu::self()->block->dim)
#define gridDim (cuemu::self()->block->grid)
