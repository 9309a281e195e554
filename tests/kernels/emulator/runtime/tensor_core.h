// The arithmetic of the tensor-core collectives, for a warp whose lanes have all brought their part.
#pragma once
#include "block.h"

namespace cuemu {

// mma.sync.aligned.m16n8k16.row.col with float accumulators. In: A, B, C fragments; out: D.
void multiply(Thread* const* lanes, bool bfloat16);
// ldmatrix.sync.aligned.m8n8.x4.b16. In: the row that the lane addressed; out: four fragments.
void hand_out_matrices(Thread* const* lanes, bool transposed);

}  // namespace cuemu
