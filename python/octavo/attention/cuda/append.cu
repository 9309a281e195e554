// New keys and values to their slots.
#include "common.cuh"

// 16 bytes as they are.
template <typename T>
__device__ __forceinline__ void store(T* to, const T* from, float) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}
// 16 bytes in units of the scale, as fp8.
template <typename T>
__device__ __forceinline__ void store(__nv_fp8_e4m3* to, const T* from, float scale) {
  constexpr int N = Vector<T>::N;
  float values[N];
  load16(from, values);
  struct __align__(N) {
    __nv_fp8_e4m3 x[N];
  } stored;
#pragma unroll
  for (int i = 0; i < N; ++i) stored.x[i] = from_float<__nv_fp8_e4m3>(values[i] / scale);
  *reinterpret_cast<decltype(stored)*>(to) = stored;
}

// One token's heads x dim elements.
template <typename T, typename TKV>
__device__ __forceinline__ void append_row(TKV* __restrict__ slot, const T* __restrict__ from,
                                           const float* __restrict__ scales, int heads, int dim, i64 head_stride) {
  constexpr int N = Vector<T>::N;
  const int vectors = dim / N;
  for (int i = threadIdx.x; i < heads * vectors; i += blockDim.x) {
    const int head = i / vectors, at = (i % vectors) * N;
    store(slot + head * head_stride + at, from + head * dim + at, scales ? scales[head] : 1.f);
  }
}

// A thread block for each token; a negative slot is nowhere.
template <typename T, typename TKV>
__global__ void append(TKV* __restrict__ keys, TKV* __restrict__ values, const T* __restrict__ k,
                       const T* __restrict__ v, const i64* __restrict__ slot_mapping, const float* __restrict__ k_scale,
                       const float* __restrict__ v_scale, int heads, int k_dim, int v_dim, int block_size, i64 k_token,
                       i64 v_token, i64 k_block, i64 k_slot, i64 k_head, i64 v_block, i64 v_slot, i64 v_head) {
  const i64 slot = slot_mapping[blockIdx.x];
  if (slot < 0) return;
  const i64 block = slot / block_size, within = slot % block_size;
  append_row(keys + block * k_block + within * k_slot, k + blockIdx.x * k_token, k_scale, heads, k_dim, k_head);
  append_row(values + block * v_block + within * v_slot, v + blockIdx.x * v_token, v_scale, heads, v_dim, v_head);
}
