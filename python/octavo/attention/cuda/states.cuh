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
