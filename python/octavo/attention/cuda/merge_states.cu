// One attention result from those over parts of the context.
#include "common.cuh"

// A thread block for each row, one query and head. Part s of row r is at r * row_stride + s * part_stride of `parts`,
// and likewise of `part_lse`; `to_log2` turns these logarithms into those of base 2. Where a part's is -inf its output
// is not read.
template <typename TO, typename TP>
__global__ void __launch_bounds__(128)
    merge_states(TO* __restrict__ out, float* __restrict__ lse, const TP* __restrict__ parts,
                 const float* __restrict__ part_lse, float to_log2, int num_parts, int dim, i64 row_stride,
                 i64 part_stride, i64 lse_row_stride, i64 lse_part_stride) {
  const i64 row = blockIdx.x;
  const float* logs = part_lse + row * lse_row_stride;
  float top = NEG_INF;
  for (int s = 0; s < num_parts; ++s) top = fmaxf(top, logs[s * lse_part_stride] * to_log2);
  const float base = top == NEG_INF ? 0.f : top;
  float sum = 0.f;
  for (int s = 0; s < num_parts; ++s) sum += exp2f(logs[s * lse_part_stride] * to_log2 - base);
  for (int d = threadIdx.x; d < dim; d += blockDim.x) {
    float total = 0.f;
    for (int s = 0; s < num_parts; ++s) {
      const float weight = exp2f(logs[s * lse_part_stride] * to_log2 - base);
      if (weight != 0.f) total = fmaf(weight, to_float(parts[row * row_stride + s * part_stride + d]), total);
    }
    out[row * dim + d] = from_float<TO>(sum == 0.f ? 0.f : total / sum);
  }
  if (threadIdx.x == 0 && lse) lse[row] = sum == 0.f ? NEG_INF : (base + log2f(sum)) * LN_2;
}
