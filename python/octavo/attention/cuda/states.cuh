// Where a finished softmax goes: the output where it is the only part of its row, else a part for `merge_states`.

// Of one query and head: `sum` of the weights, `top` the score of base 2 that was taken off, `value` Σ weight x v.
template <typename T>
struct Result {
  T* out;
  float* lse;
  float* part_out;
  float* part_lse;
  int split, num_splits, dim;

  // Two neighbouring columns, from an even one on.
  __device__ __forceinline__ void write2(i64 row, int d, float low, float high, float sum, float top,
                                         float scale) const {
    if (num_splits == 1) {
      const float factor = sum == 0.f ? 0.f : scale / sum;
      *reinterpret_cast<u32*>(out + row * dim + d) = pack(low * factor, high * factor, T());
      if (d == 0 && lse) lse[row] = sum == 0.f ? NEG_INF : (top + log2f(sum)) * LN_2;
      return;
    }
    const i64 part = row * num_splits + split;
    if (sum != 0.f)
      *reinterpret_cast<float2*>(part_out + part * dim + d) = make_float2(low / sum * scale, high / sum * scale);
    if (d == 0) part_lse[part] = sum == 0.f ? NEG_INF : top + log2f(sum);
  }

  // `row` counts queries and heads. Zero weights: 0 and -inf; a part without weights writes no output.
  __device__ __forceinline__ void write(i64 row, int d, float value, float sum, float top, float scale) const {
    if (num_splits == 1) {
      out[row * dim + d] = from_float<T>(sum == 0.f ? 0.f : value / sum * scale);
      if (d == 0 && lse) lse[row] = sum == 0.f ? NEG_INF : (top + log2f(sum)) * LN_2;
      return;
    }
    const i64 part = row * num_splits + split;
    if (sum != 0.f) part_out[part * dim + d] = value / sum * scale;
    if (d == 0) part_lse[part] = sum == 0.f ? NEG_INF : top + log2f(sum);
  }
};

// What scores lose before the exponential: nothing where there is no score yet, so that -inf - -inf does not occur.
__device__ __forceinline__ float base_of(float top) { return top == NEG_INF ? 0.f : top; }

// What a thread block's warps have found about the same queries, as one result each. In shared memory, one behind the
// other: [WARPS][ROWS] tops, as many sums, and [WARPS][ROWS][DIM] weighted sums; the first `rows` of them are queries.
template <int WARPS, int ROWS, int DIM, typename T>
__device__ __forceinline__ void merge_warps(const Result<T>& result, const float* tops, int rows, i64 first_row,
                                            float scale) {
  const float* sums = tops + WARPS * ROWS;
  const float* accs = sums + WARPS * ROWS;
  for (int i = threadIdx.x; i < rows * DIM; i += WARPS * 32) {
    const int row = i / DIM, d = i % DIM;
    float highest = NEG_INF;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, tops[w * ROWS + row]);
    const float off = base_of(highest);
    float total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float weight = exp2f(tops[w * ROWS + row] - off);
      total += weight * sums[w * ROWS + row];
      value += weight * accs[(w * ROWS + row) * DIM + d];
    }
    result.write(first_row + row, d, value, total, off, scale);
  }
}
