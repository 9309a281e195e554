// New keys and values to their slots.
#include "common.cuh"
#include "pages.cuh"

// One token's heads x dim elements of T, 16 bytes at a time, as TKV.
template <typename T, typename TKV>
__device__ __forceinline__ void append_row(TKV* __restrict__ pages, const T* __restrict__ from, const float* __restrict__ scales,
                                           int heads, int dim, i64 base, i64 head_stride) {
  constexpr int N = Vector<T>::N;
  const int vectors = dim / N;
  for (int i = threadIdx.x; i < heads * vectors; i += blockDim.x) {
    const int head = i / vectors, at = (i % vectors) * N;
    float values[N];
    load16(from + head * dim + at, values);
    const float scale = scales ? scales[head] : 1.f;
    struct __align__(sizeof(TKV) * N) {
      TKV x[N];
    } stored;
#pragma unroll
    for (int e = 0; e < N; ++e) stored.x[e] = from_float<TKV>(scales ? values[e] / scale : values[e]);
    *reinterpret_cast<decltype(stored)*>(pages + base + head * head_stride + at) = stored;
  }
}

// A thread block for each token; a negative slot is nowhere.
template <typename T, typename TKV>
__global__ void append(TKV* __restrict__ keys, TKV* __restrict__ values, const T* __restrict__ k, const T* __restrict__ v,
                       const i64* __restrict__ slot_mapping, const float* __restrict__ k_scale,
                       const float* __restrict__ v_scale, int heads, int k_dim, int v_dim, int block_size, i64 k_token,
                       i64 v_token, i64 k_block, i64 k_slot, i64 k_head, i64 v_block, i64 v_slot, i64 v_head) {
  const i64 slot = slot_mapping[blockIdx.x];
  if (slot < 0) return;
  const i64 block = slot / block_size, within = slot % block_size;
  append_row(keys, k + blockIdx.x * k_token, k_scale, heads, k_dim, block * k_block + within * k_slot, k_head);
  append_row(values, v + blockIdx.x * v_token, v_scale, heads, v_dim, block * v_block + within * v_slot, v_head);
}
