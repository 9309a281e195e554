// Decode attention on CUDA cores: for groups of up to 4 query heads to a KV head, and for float32.
//
// A thread block has one KV head of one query, up to G of its query heads, and one split of the context, so that each
// key and value is read once. Some lanes of a warp share a token, 16 bytes each; a warp takes several tokens at a time.
#include "common.cuh"
#include "pages.cuh"
#include "states.cuh"

constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

// Grid: query, KV head x tile of G query heads, split. Shared: WARPS x G x (DV + 2) floats.
template <typename TQ, typename TKV, int D, int DV, int G, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, sizeof(TKV) == 1 ? 2
                                              : G == 4         ? 3
                                                               : 4)
    decode_cores(TQ* __restrict__ out, float* __restrict__ lse, float* __restrict__ part_out,
                 float* __restrict__ part_lse, const TQ* __restrict__ q, const TKV* __restrict__ keys,
                 const TKV* __restrict__ values, const int* __restrict__ block_tables, const int* __restrict__ lens,
                 const int* __restrict__ rows, const float* __restrict__ k_scale, const float* __restrict__ v_scale,
                 float scale, int group, int block_size, int window, int split_tokens, i64 q_token, i64 table_stride,
                 i64 k_block, i64 k_slot, i64 k_head, i64 v_block, i64 v_slot, i64 v_head) {
  constexpr int N = Vector<TKV>::N, NQ = Vector<TQ>::N;
  constexpr int CHUNKS = (D > DV ? D : DV) / N;                                           // 16-byte chunks of a token
  constexpr int LANES = power_of_two_from(CHUNKS) < 32 ? power_of_two_from(CHUNKS) : 32;  // lanes of a token
  constexpr int PER_LANE = (CHUNKS + LANES - 1) / LANES;                                  // chunks of a lane
  constexpr int TOKENS = 32 / LANES;        // tokens that a warp has at once
  constexpr int U = PER_LANE == 1 ? 2 : 1;  // and so many times, for loads under way

  const int query = blockIdx.x, tiles = (group + G - 1) / G;
  const int head = blockIdx.y / tiles, first = (blockIdx.y % tiles) * G, heads = min(G, group - first);
  const int num_heads = (int)gridDim.y / tiles * group, head0 = head * group + first;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, within = lane / LANES, l = lane % LANES;

  const Strides ks = {k_block, k_slot, k_head}, vs = {v_block, v_slot, v_head};
  const int* table = block_tables + (rows ? rows[query] : query) * table_stride;
  const int length = lens[query];
  const Range range = split_of(first_seen(length, window), length, split_tokens, blockIdx.z, gridDim.z);
  const float score_scale = scale * LOG2_E * (k_scale ? k_scale[head] : 1.f);

  float qs[G][PER_LANE][N], acc[G][PER_LANE][N], top[G], sum[G];
#pragma unroll
  for (int g = 0; g < G; ++g) {
    top[g] = NEG_INF;
    sum[g] = 0.f;
    // Heads that there are not repeat the last one, and are not written.
    const TQ* from = q + query * q_token + (i64)(head0 + min(g, heads - 1)) * D;
#pragma unroll
    for (int c = 0; c < PER_LANE; ++c)
#pragma unroll
      for (int i = 0; i < N; i += NQ) {
        const int d = (c * LANES + l) * N + i;
        float loaded[NQ] = {};
        if (d < D) load16(from + d, loaded);
#pragma unroll
        for (int e = 0; e < NQ; ++e) {
          qs[g][c][i + e] = loaded[e] * score_scale;
          acc[g][c][i + e] = 0.f;
        }
      }
  }

  for (int base = range.begin + warp * TOKENS * U; base < range.end; base += WARPS * TOKENS * U) {
    float k[U][PER_LANE][N], v[U][PER_LANE][N];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int token = base + u * TOKENS + within;
      const bool there = token < range.end;
      Place at = {0, 0};
      if (there) at = place_of(table, token, block_size);
      const TKV* key = keys + offset_of(at, ks) + head * k_head;
      const TKV* value = values + offset_of(at, vs) + head * v_head;
#pragma unroll
      for (int c = 0; c < PER_LANE; ++c) {
        const int d = (c * LANES + l) * N;
        // What is not read is zero: 0 x NaN is NaN.
        if (there && d < D) load16(key + d, k[u][c]);
        else
#pragma unroll
          for (int i = 0; i < N; ++i) k[u][c][i] = 0.f;
        if (there && d < DV) load16(value + d, v[u][c]);
        else
#pragma unroll
          for (int i = 0; i < N; ++i) v[u][c][i] = 0.f;
      }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float score[U], highest = top[g];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        float dot = 0.f;
#pragma unroll
        for (int c = 0; c < PER_LANE; ++c)
#pragma unroll
          for (int i = 0; i < N; ++i) dot = fmaf(qs[g][c][i], k[u][c][i], dot);
#pragma unroll
        for (int o = LANES / 2; o > 0; o >>= 1) dot += __shfl_xor_sync(ALL_LANES, dot, o);
        score[u] = base + u * TOKENS + within < range.end ? dot : NEG_INF;
        highest = fmaxf(highest, score[u]);
      }
      const float off = base_of(highest), shrink = exp2f(top[g] - off);
      top[g] = highest;
      sum[g] *= shrink;
#pragma unroll
      for (int c = 0; c < PER_LANE; ++c)
#pragma unroll
        for (int i = 0; i < N; ++i) acc[g][c][i] *= shrink;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const float weight = exp2f(score[u] - off);
        sum[g] += weight;
#pragma unroll
        for (int c = 0; c < PER_LANE; ++c)
#pragma unroll
          for (int i = 0; i < N; ++i) acc[g][c][i] = fmaf(weight, v[u][c][i], acc[g][c][i]);
      }
    }
  }

  // The tokens of a warp into one state.
#pragma unroll
  for (int o = LANES; o < 32; o <<= 1) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      const float top2 = __shfl_xor_sync(ALL_LANES, top[g], o), sum2 = __shfl_xor_sync(ALL_LANES, sum[g], o);
      const float highest = fmaxf(top[g], top2), off = base_of(highest);
      const float w1 = exp2f(top[g] - off), w2 = exp2f(top2 - off);
      sum[g] = sum[g] * w1 + sum2 * w2;
#pragma unroll
      for (int c = 0; c < PER_LANE; ++c)
#pragma unroll
        for (int i = 0; i < N; ++i) acc[g][c][i] = acc[g][c][i] * w1 + __shfl_xor_sync(ALL_LANES, acc[g][c][i], o) * w2;
      top[g] = highest;
    }
  }

  // The warps into one, through shared memory.
  SHARED_BYTES(raw);
  float* tops = reinterpret_cast<float*>(raw);  // [WARPS][G]
  float* sums = tops + WARPS * G;               // [WARPS][G]
  float* accs = sums + WARPS * G;               // [WARPS][G][DV]
  if (within == 0) {
#pragma unroll
    for (int g = 0; g < G; ++g) {
      if (l == 0) {
        tops[warp * G + g] = top[g];
        sums[warp * G + g] = sum[g];
      }
#pragma unroll
      for (int c = 0; c < PER_LANE; ++c)
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const int d = (c * LANES + l) * N + i;
          if (d < DV) accs[(warp * G + g) * DV + d] = acc[g][c][i];
        }
    }
  }
  __syncthreads();
  const Result<TQ> result = {out, lse, part_out, part_lse, (int)blockIdx.z, (int)gridDim.z, DV};
  merge_warps<WARPS, G, DV>(result, tops, heads, (i64)query * num_heads + head0, v_scale ? v_scale[head] : 1.f);
}
