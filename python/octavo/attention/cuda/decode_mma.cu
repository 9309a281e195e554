// Decode attention on tensor cores: for groups of more than 4 query heads to a KV head, and for fp8 memory.
//
// Up to 16 query heads of a KV head are the 16 rows of a matrix. A thread block has them, one query, and one split of
// the context; each of its warps has tiles of 16 tokens of its own, which asynchronous copies bring in STAGES ahead.
#include "common.cuh"
#include "pages.cuh"
#include "ptx.cuh"
#include "states.cuh"
#include "tiles.cuh"

// Grid: query, KV head x tile of 16 query heads, split. Shared bytes: those of the catalogue.
template <typename TQ, typename TKV, int D, int DV, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    decode_mma(TQ* __restrict__ out, float* __restrict__ lse, float* __restrict__ part_out,
               float* __restrict__ part_lse, const TQ* __restrict__ q, const TKV* __restrict__ keys,
               const TKV* __restrict__ values, const int* __restrict__ block_tables, const int* __restrict__ lens,
               const int* __restrict__ rows, const float* __restrict__ k_scale, const float* __restrict__ v_scale,
               float scale, int group, int block_size, int window, int split_tokens, i64 q_token, i64 table_stride,
               i64 k_block, i64 k_slot, i64 k_head, i64 v_block, i64 v_slot, i64 v_head) {
  constexpr int T = 16;
  constexpr bool FP8 = sizeof(TKV) == 1;
  using KStage = Tile<TKV, T, D>;
  using VStage = Tile<TKV, T, DV>;
  using K = Tile<TQ, T, D>;
  using V = Tile<TQ, T, DV>;
  constexpr int STAGE = KStage::BYTES + VStage::BYTES;
  constexpr int CONVERTED = FP8 ? K::BYTES + V::BYTES : 0;
  constexpr int STEPS = D / 16;
  // Queries stay in registers while these suffice.
  constexpr bool HELD = D <= 128;

  const int query = blockIdx.x, tiles = (group + T - 1) / T;
  const int head = blockIdx.y / tiles, first = (blockIdx.y % tiles) * T, heads = min(T, group - first);
  const int num_heads = (int)gridDim.y / tiles * group, head0 = head * group + first;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const Strides ks = {k_block, k_slot, k_head}, vs = {v_block, v_slot, v_head};
  const int* table = block_tables + (rows ? rows[query] : query) * table_stride;
  const int length = lens[query];
  const Range range = split_of(first_seen(length, window), length, split_tokens, blockIdx.z, gridDim.z);
  const float score_scale = scale * LOG2_E * (k_scale ? k_scale[head] : 1.f);

  SHARED_BYTES(raw);
  unsigned char* queries = raw;
  unsigned char* mine = raw + K::BYTES + warp * (STAGES * STAGE + CONVERTED);
  unsigned char* converted = mine + STAGES * STAGE;

  // Rows without a head are zero.
  for (int i = threadIdx.x; i < T * K::CHUNKS; i += WARPS * 32) {
    const int row = i / K::CHUNKS, chunk = i % K::CHUNKS;
    uint4 u = make_uint4(0, 0, 0, 0);
    if (row < heads) u = *reinterpret_cast<const uint4*>(q + query * q_token + (i64)(head0 + row) * D + chunk * 8);
    *reinterpret_cast<uint4*>(K::at(queries, row, chunk)) = u;
  }
  __syncthreads();
  u32 held[HELD ? STEPS : 1][4];
  if (HELD)
#pragma unroll
    for (int s = 0; s < STEPS; ++s) left_operand<K>(held[HELD ? s : 0], queries, 0, s, lane);

  // Every lane looks up one token's place; the 16-byte chunks of a tile then get theirs from it.
  auto fetch = [&](int token0, int stage) {
    unsigned char* k_tile = mine + stage * STAGE;
    unsigned char* v_tile = k_tile + KStage::BYTES;
    Place at = {0, 0};
    if (lane < T && token0 + lane < range.end) at = place_of(table, token0 + lane, block_size);
    auto copy = [&](unsigned char* tile, const TKV* pages, Strides strides, auto shape) {
      using Shape = decltype(shape);
      constexpr int COUNT = T * Shape::CHUNKS;
#pragma unroll 4
      for (int i = 0; i < (COUNT + 31) / 32; ++i) {
        const int at_chunk = i * 32 + lane, row = at_chunk / Shape::CHUNKS % T, chunk = at_chunk % Shape::CHUNKS;
        const Place place = {__shfl_sync(ALL_LANES, at.block, row), __shfl_sync(ALL_LANES, at.slot, row)};
        const bool wanted = token0 + row < range.end;
        const TKV* from = pages + offset_of(place, strides) + head * strides.head + chunk * Vector<TKV>::N;
        if (COUNT % 32 == 0 || at_chunk < COUNT) copy_async(Shape::at(tile, row, chunk), wanted ? from : pages, wanted);
      }
    };
    copy(k_tile, keys, ks, KStage());
    copy(v_tile, values, vs, VStage());
  };

  float o[DV / 8][4];
#pragma unroll
  for (int n = 0; n < DV / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) o[n][e] = 0.f;
  Softmax softmax;

  const int step = WARPS * T, begin = range.begin + warp * T;
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (begin + s * step < range.end) fetch(begin + s * step, s);
    copies_commit();
  }
  int stage = 0;
  for (int token0 = begin; token0 < range.end; token0 += step) {
    const int ahead = token0 + (STAGES - 1) * step;
    if (ahead < range.end) fetch(ahead, (stage + STAGES - 1) % STAGES);
    copies_commit();
    copies_wait<STAGES - 1>();
    __syncwarp();
    unsigned char* k_tile = mine + stage * STAGE;
    unsigned char* v_tile = k_tile + KStage::BYTES;
    if (FP8) {
      convert_tile<TQ, T, D, 32>(converted, k_tile, lane);
      convert_tile<TQ, T, DV, 32>(converted + K::BYTES, v_tile, lane);
      __syncwarp();
      k_tile = converted;
      v_tile = converted + K::BYTES;
    }

    float s[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll(HELD ? STEPS : 4)
    for (int d = 0; d < STEPS; ++d) {
      u32 b[4], loaded[4];
      key_operands<K>(b, k_tile, 0, d, lane);
      if (!HELD) left_operand<K>(loaded, queries, 0, d, lane);
      const u32(&a)[4] = HELD ? held[HELD ? d : 0] : loaded;
      multiply_add(s[0], a, b[0], b[1], TQ());
      multiply_add(s[1], a, b[2], b[3], TQ());
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool there = token0 + n * 8 + (lane & 3) * 2 + (e & 1) < range.end;
        s[n][e] = there ? s[n][e] * score_scale : NEG_INF;
      }
    float shrink[2];
    softmax.take(s, shrink);
    add_values<TQ, V, 2, DV>(o, s, shrink, v_tile, 0, lane);
    __syncwarp();  // the next copies may overwrite this stage
    stage = (stage + 1) % STAGES;
  }
  copies_wait<0>();
  softmax.finish();

  // The warps into one state; what was queries and tiles is now [WARPS][16] tops and sums, and [WARPS][16][DV] values.
  __syncthreads();
  float* tops = reinterpret_cast<float*>(raw);
  float* sums = tops + WARPS * T;
  float* accs = sums + WARPS * T;
  const int row = lane >> 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int at = warp * T + row + r * 8;
    if ((lane & 3) == 0) {
      tops[at] = softmax.top[r];
      sums[at] = softmax.sum[r];
    }
#pragma unroll
    for (int n = 0; n < DV / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) accs[at * DV + n * 8 + (lane & 3) * 2 + e] = o[n][2 * r + e];
  }
  __syncthreads();
  const Result<TQ> result = {out, lse, part_out, part_lse, (int)blockIdx.z, (int)gridDim.z, DV};
  merge_warps<WARPS, T, DV>(result, tops, heads, (i64)query * num_heads + head0, v_scale ? v_scale[head] : 1.f);
}
