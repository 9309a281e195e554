// Tiles of keys and values in shared memory, as the tensor cores read them.

// A tile of TOKENS x DIM: rows of 16-byte chunks, an odd number of them, so that eight rows at one column lie in
// different banks.
template <typename T, int TOKENS, int DIM>
struct Tile {
  static constexpr int CHUNKS = DIM * (int)sizeof(T) / 16;
  static constexpr int ROW = (CHUNKS | 1) * 16;
  static constexpr int BYTES = TOKENS * ROW;
  static_assert(DIM * sizeof(T) % 16 == 0, "rows of whole chunks");

  static __device__ __forceinline__ int offset(int token, int chunk) { return token * ROW + chunk * 16; }
  static __device__ __forceinline__ unsigned char* at(unsigned char* tile, int token, int chunk) {
    return tile + offset(token, chunk);
  }
};

// fp8 as the type that the tensor cores multiply: exactly, one row of the tile after the other, by THREADS threads.
template <typename T, int TOKENS, int DIM, int THREADS>
__device__ __forceinline__ void convert_tile(unsigned char* to, unsigned char* from, int thread) {
  using From = Tile<__nv_fp8_e4m3, TOKENS, DIM>;
  using To = Tile<T, TOKENS, DIM>;
  for (int i = thread; i < TOKENS * From::CHUNKS; i += THREADS) {
    const int token = i / From::CHUNKS, chunk = i % From::CHUNKS;
    const uint4 u = *reinterpret_cast<const uint4*>(From::at(from, token, chunk));
    const u32 w[4] = {u.x, u.y, u.z, u.w};
    u32 r[8];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float2 f = __half22float2(halves_of_fp8((w[e >> 1] >> (16 * (e & 1))) & 0xffffu));
      r[e] = pack(f.x, f.y, T());
    }
    uint4* target = reinterpret_cast<uint4*>(To::at(to, token, 2 * chunk));
    target[0] = make_uint4(r[0], r[1], r[2], r[3]);
    target[1] = make_uint4(r[4], r[5], r[6], r[7]);
  }
}

// Rows `row` … `row` + 15 of a tile, columns 16 `step` …: the left operand.
template <typename Shape>
__device__ __forceinline__ void left_operand(u32 (&a)[4], unsigned char* tile, int row, int step, int lane) {
  load_matrices(a, tile, Shape::offset(row + (lane & 15), 2 * step + (lane >> 4)));
}
// Scores: 16 tokens from `token` on, columns 16 `step` …, as two right operands: {b[0], b[1]} of the first 8 tokens.
template <typename Shape>
__device__ __forceinline__ void key_operands(u32 (&b)[4], unsigned char* tile, int token, int step, int lane) {
  load_matrices(b, tile, Shape::offset(token + (lane & 7) + (lane >> 4) * 8, 2 * step + ((lane >> 3) & 1)));
}
// Weighted sums: 16 tokens from `token` on, 16 columns from 16 `columns` on: {b[0], b[1]} of the first 8 columns.
template <typename Shape>
__device__ __forceinline__ void value_operands(u32 (&b)[4], unsigned char* tile, int token, int columns, int lane) {
  load_matrices_transposed(b, tile, Shape::offset(token + (lane & 15), 2 * columns + (lane >> 4)));
}

// Of two rows of 16 queries the running softmax, spread over the four lanes of a row.
struct Softmax {
  float top[2] = {NEG_INF, NEG_INF};
  float sum[2] = {0.f, 0.f};

  // Scores of NT x 8 tokens become weights; `shrink` is what earlier sums are worth now.
  template <int NT>
  __device__ __forceinline__ void take(float (&s)[NT][4], float (&shrink)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = top[r];
#pragma unroll
      for (int n = 0; n < NT; ++n) highest = fmaxf(highest, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
      const float off = base_of(highest);
      shrink[r] = exp2f(top[r] - off);
      top[r] = highest;
      sum[r] *= shrink[r];
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[n][2 * r + e] = exp2f(s[n][2 * r + e] - off);
          sum[r] += s[n][2 * r + e];
        }
    }
  }

  // The sums of the four lanes, at the end.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 1);
      sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], 2);
    }
  }
};

// o += weights x values, for 16 rows of queries, NT x 8 tokens of a tile and DIM columns.
template <typename T, typename Shape, int NT, int DIM>
__device__ __forceinline__ void add_values(float (&o)[DIM / 8][4], const float (&weights)[NT][4],
                                           const float (&shrink)[2], unsigned char* tile, int token, int lane) {
#pragma unroll
  for (int n = 0; n < DIM / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) o[n][e] *= shrink[e >> 1];
#pragma unroll
  for (int t = 0; t < NT / 2; ++t) {
    const u32 a[4] = {pack(weights[2 * t][0], weights[2 * t][1], T()), pack(weights[2 * t][2], weights[2 * t][3], T()),
                      pack(weights[2 * t + 1][0], weights[2 * t + 1][1], T()),
                      pack(weights[2 * t + 1][2], weights[2 * t + 1][3], T())};
#pragma unroll
    for (int c = 0; c < DIM / 16; ++c) {
      u32 b[4];
      value_operands<Shape>(b, tile, token + 16 * t, c, lane);
      multiply_add(o[2 * c], a, b[0], b[1], T());
      multiply_add(o[2 * c + 1], a, b[2], b[3], T());
    }
  }
}
