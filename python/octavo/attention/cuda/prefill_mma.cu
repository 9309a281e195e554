// Causal attention of runs of queries on tensor cores: prompts, chunks of them, drafts, mixed with single decodes.
//
// The queries of a row and the query heads of a KV head together are the rows of a matrix, so that a key is read once
// for all of them. A thread block has 16 of these rows in each warp; tiles of BN tokens come in one ahead, for all its
// warps.
#include "common.cuh"
#include "pages.cuh"
#include "ptx.cuh"
#include "states.cuh"
#include "tiles.cuh"

// Which row a thread block works for, and where its first query x head lies there; row -1: none.
struct Share {
  int row, first;
};
__device__ __forceinline__ Share share_of(const int* __restrict__ query_start, int num_rows, int group, int tile_rows,
                                          int lane) {
  // From the end on: the last tile of a row sees the most tokens, and the longest should not start last.
  const int tile = (int)(gridDim.x - 1 - blockIdx.x);
  int before = 0;
  for (int base = 0; base < num_rows; base += 32) {
    const int row = base + lane;
    int tiles = 0;
    if (row < num_rows) tiles = ((query_start[row + 1] - query_start[row]) * group + tile_rows - 1) / tile_rows;
    int through = tiles;  // the tiles of rows base … row
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      const int earlier = __shfl_up_sync(ALL_LANES, through, o);
      if (lane >= o) through += earlier;
    }
    const u32 behind = __ballot_sync(ALL_LANES, before + through > tile);
    if (behind) {
      const int found = __ffs(behind) - 1;
      const int start = before + __shfl_sync(ALL_LANES, through - tiles, found);
      return {base + found, (tile - start) * tile_rows};
    }
    before += __shfl_sync(ALL_LANES, through, 31);
  }
  return {-1, 0};
}

// Grid: tile of query rows, KV head, split; tiles that there are not do nothing. Shared bytes: those of the catalogue.
template <typename TQ, typename TKV, int D, int DV, int BN, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1)
    prefill_mma(TQ* __restrict__ out, float* __restrict__ lse, float* __restrict__ part_out,
                float* __restrict__ part_lse, const TQ* __restrict__ q, const TKV* __restrict__ keys,
                const TKV* __restrict__ values, const int* __restrict__ query_start,
                const int* __restrict__ block_tables, const int* __restrict__ seq_lens,
                const float* __restrict__ k_scale, const float* __restrict__ v_scale, float scale, int num_rows,
                int group, int block_size, int window, int split_tokens, i64 q_token, i64 table_stride, i64 k_block,
                i64 k_slot, i64 k_head, i64 v_block, i64 v_slot, i64 v_head) {
  constexpr int BM = 16 * WARPS, THREADS = 32 * WARPS;
  constexpr bool FP8 = sizeof(TKV) == 1;
  using KStage = Tile<TKV, BN, D>;
  using VStage = Tile<TKV, BN, DV>;
  using Q = Tile<TQ, BM, D>;
  using K = Tile<TQ, BN, D>;
  using V = Tile<TQ, BN, DV>;
  constexpr int STAGE = KStage::BYTES + VStage::BYTES;
  constexpr int STEPS = D / 16;
  constexpr bool HELD = D <= 128;

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y;
  const Share share = share_of(query_start, num_rows, group, BM, lane);
  if (share.row < 0) return;
  const int query0 = query_start[share.row], count = query_start[share.row + 1] - query0;
  const int length = seq_lens[share.row], num_heads = (int)gridDim.y * group;
  const int last_row = min(share.first + BM, count * group) - 1;
  const int* table = block_tables + share.row * table_stride;
  const Strides ks = {k_block, k_slot, k_head}, vs = {v_block, v_slot, v_head};
  const float score_scale = scale * LOG2_E * (k_scale ? k_scale[head] : 1.f);

  // Of the tokens that any of these queries sees, from the first one's window to the last one's own, this split's.
  const int position0 = length - count;
  const int seen = max(0, position0 + last_row / group + 1);
  const int first = min(seen, first_seen(position0 + share.first / group + 1, window));
  const Range range = split_of(first, seen, split_tokens, blockIdx.z, gridDim.z);
  const int begin = range.begin, end = range.end;

  SHARED_BYTES(raw);
  unsigned char* queries = raw;
  unsigned char* stages = raw + Q::BYTES;
  unsigned char* converted = stages + 2 * STAGE;

  for (int i = threadIdx.x; i < BM * Q::CHUNKS; i += THREADS) {
    const int r = i / Q::CHUNKS, chunk = i % Q::CHUNKS, at = share.first + r;
    const bool there = at <= last_row;
    const TQ* from = q + (query0 + at / group) * q_token + (i64)(head * group + at % group) * D + chunk * 8;
    copy_async(Q::at(queries, r, chunk), there ? from : q, there);
  }
  // Chunks of keys and of values side by side: where a token lies is looked up once for both.
  auto fetch = [&](int token0, int stage) {
    unsigned char* k_tile = stages + stage * STAGE;
    unsigned char* v_tile = k_tile + KStage::BYTES;
    constexpr int CHUNKS = KStage::CHUNKS > VStage::CHUNKS ? KStage::CHUNKS : VStage::CHUNKS;
#pragma unroll 1
    for (int i = threadIdx.x; i < BN * CHUNKS; i += THREADS) {
      const int r = i / CHUNKS, chunk = i % CHUNKS;
      const bool wanted = token0 + r < end;
      Place at = {0, 0};
      if (wanted) at = place_of(table, token0 + r, block_size);
      const i64 inside = chunk * Vector<TKV>::N;
      if (chunk < KStage::CHUNKS)
        copy_async(KStage::at(k_tile, r, chunk), keys + (wanted ? offset_of(at, ks) + head * ks.head + inside : 0),
                   wanted);
      if (chunk < VStage::CHUNKS)
        copy_async(VStage::at(v_tile, r, chunk), values + (wanted ? offset_of(at, vs) + head * vs.head + inside : 0),
                   wanted);
    }
  };
  if (begin < end) fetch(begin, 0);
  copies_commit();

  float o[DV / 8][4];
#pragma unroll
  for (int n = 0; n < DV / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) o[n][e] = 0.f;
  Softmax softmax;
  u32 held[HELD ? STEPS : 1][4];

  // The two rows of this lane: their queries' positions.
  int position[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) position[r] = position0 + (share.first + warp * 16 + (lane >> 2) + r * 8) / group;

  // A warp without queries, or past what its last query sees, has nothing to do but copy and wait.
  const bool has_rows = share.first + warp * 16 <= last_row;
  const int horizon = position0 + (share.first + warp * 16 + 15) / group;

  int stage = 0;
  for (int token0 = begin; token0 < end; token0 += BN) {
    if (token0 + BN < end) fetch(token0 + BN, stage ^ 1);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    if (HELD && has_rows && token0 == begin)
#pragma unroll
      for (int s = 0; s < STEPS; ++s) left_operand<Q>(held[HELD ? s : 0], queries, warp * 16, s, lane);
    unsigned char* k_tile = stages + stage * STAGE;
    unsigned char* v_tile = k_tile + KStage::BYTES;
    if (FP8) {
      convert_tile<TQ, BN, D, THREADS>(converted, k_tile, threadIdx.x);
      convert_tile<TQ, BN, DV, THREADS>(converted + K::BYTES, v_tile, threadIdx.x);
      __syncthreads();
      k_tile = converted;
      v_tile = converted + K::BYTES;
    }

    if (has_rows && token0 <= horizon) {
      float s[BN / 8][4];
#pragma unroll
      for (int n = 0; n < BN / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[n][e] = 0.f;
#pragma unroll(HELD ? STEPS : 4)
      for (int d = 0; d < STEPS; ++d) {
        u32 loaded[4];
        if (!HELD) left_operand<Q>(loaded, queries, warp * 16, d, lane);
        const u32(&a)[4] = HELD ? held[HELD ? d : 0] : loaded;
#pragma unroll
        for (int n = 0; n < BN / 16; ++n) {
          u32 b[4];
          key_operands<K>(b, k_tile, 16 * n, d, lane);
          multiply_add(s[2 * n], a, b[0], b[1], TQ());
          multiply_add(s[2 * n + 1], a, b[2], b[3], TQ());
        }
      }
#pragma unroll
      for (int n = 0; n < BN / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int token = token0 + n * 8 + (lane & 3) * 2 + (e & 1), at = position[e >> 1];
          // Also what lies behind `end`: the row of a query that there is not may be further on.
          const bool seen = token < end && token <= at && (window == 0 || at - token < window);
          s[n][e] = seen ? s[n][e] * score_scale : NEG_INF;
        }
      float shrink[2];
      softmax.take(s, shrink);
      add_values<TQ, V, BN / 8, DV>(o, s, shrink, v_tile, 0, lane);
    }
    __syncthreads();  // the next copies may overwrite this stage
    stage ^= 1;
  }
  copies_wait<0>();
  softmax.finish();

  const Result<TQ> result = {out, lse, part_out, part_lse, (int)blockIdx.z, (int)gridDim.z, DV};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = share.first + warp * 16 + (lane >> 2) + r * 8;
    if (at > last_row) continue;
    const i64 row = (i64)(query0 + at / group) * num_heads + head * group + at % group;
#pragma unroll
    for (int n = 0; n < DV / 8; ++n)
      result.write2(row, n * 8 + (lane & 3) * 2, o[n][2 * r], o[n][2 * r + 1], softmax.sum[r], base_of(softmax.top[r]),
                    v_scale ? v_scale[head] : 1.f);
  }
}
