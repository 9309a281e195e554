// Blocks of rows to one token after the other.
#include "common.cuh"
#include "pages.cuh"

// 16 bytes of memory to an output of the same type, or of fp8 to floats times their scale.
template <typename T>
__device__ __forceinline__ void hand_over(T* to, const T* from, float) {
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
}
__device__ __forceinline__ void hand_over(float* to, const __nv_fp8_e4m3* from, float scale) {
  float values[16];
  load16(from, values);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    reinterpret_cast<float4*>(to)[i] = make_float4(values[4 * i] * scale, values[4 * i + 1] * scale,
                                                   values[4 * i + 2] * scale, values[4 * i + 3] * scale);
}

template <typename TKV, typename TO>
__device__ __forceinline__ void gather_block(TO* __restrict__ to, const TKV* __restrict__ block,
                                             const float* __restrict__ scales, int tokens, int heads, int dim,
                                             i64 slot_stride, i64 head_stride) {
  constexpr int N = Vector<TKV>::N;
  const int vectors = dim / N, per_token = heads * vectors;
  for (int i = threadIdx.x; i < tokens * per_token; i += blockDim.x) {
    const int token = i / per_token, rest = i % per_token, head = rest / vectors, at = (rest % vectors) * N;
    hand_over(to + ((i64)token * heads + head) * dim + at, block + token * slot_stride + head * head_stride + at,
              scales ? scales[head] : 1.f);
  }
}

// Grid: row x entry of its table. `starts` has the tokens before each row.
template <typename TKV, typename TO>
__global__ void gather(TO* __restrict__ k, TO* __restrict__ v, const TKV* __restrict__ keys,
                       const TKV* __restrict__ values, const int* __restrict__ block_tables,
                       const int* __restrict__ seq_lens, const i64* __restrict__ starts,
                       const float* __restrict__ k_scale, const float* __restrict__ v_scale, int heads, int k_dim,
                       int v_dim, int block_size, int width, i64 table_stride, i64 k_block, i64 k_slot, i64 k_head,
                       i64 v_block, i64 v_slot, i64 v_head) {
  const int row = blockIdx.x / width, entry = blockIdx.x % width, begin = entry * block_size;
  const int tokens = min(block_size, seq_lens[row] - begin);
  if (tokens <= 0) return;
  const i64 block = block_tables[row * table_stride + entry], at = starts[row] + begin;
  gather_block(k + at * heads * k_dim, keys + block * k_block, k_scale, tokens, heads, k_dim, k_slot, k_head);
  gather_block(v + at * heads * v_dim, values + block * v_block, v_scale, tokens, heads, v_dim, v_slot, v_head);
}
