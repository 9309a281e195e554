// ldmatrix and mma.sync, with the fragments that the PTX ISA gives for each.
#pragma once
#include "collectives.h"

namespace cuemu {
inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                             CUEMU_AT) {
  warp_mma(Half::Float16, d, a, b, c, at);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                              CUEMU_AT) {
  warp_mma(Half::Bfloat16, d, a, b, c, at);
}

// The load is made here, in the kernel's own code, so that the sanitizers see it.
inline void load_matrices(uint32_t (&fragments)[4], const void* row, bool transposed, Site at) {
  check_shared(row, 16, "ldmatrix", at);
  const uint4 mine = *static_cast<const uint4*>(row);
  warp_matrix(fragments, mine, transposed, at);
}
// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l & 7 of matrix l >> 3.
inline void ldmatrix_x4(uint32_t (&fragments)[4], const void* row, CUEMU_AT) {
  load_matrices(fragments, row, false, at);
}
inline void ldmatrix_x4_trans(uint32_t (&fragments)[4], const void* row, CUEMU_AT) {
  load_matrices(fragments, row, true, at);
}
}  // namespace cuemu
