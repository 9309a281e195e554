"""ldmatrix and mma.sync against a plain product of matrices."""

import ml_dtypes
import numpy as np
import pytest

TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}

# The fragments are filled element by element, from the tables of the PTX ISA.
MMA = """
__global__ void product(float* d, const unsigned short* a, const unsigned short* b,
                        const float* c) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  unsigned fa[4], fb[2];
  float fc[4], fd[4];
  const int a_row[4] = {g, g + 8, g, g + 8}, a_column[4] = {2 * t, 2 * t, 2 * t + 8, 2 * t + 8};
  for (int i = 0; i < 4; ++i)
    fa[i] = a[a_row[i] * 16 + a_column[i]] | (unsigned)a[a_row[i] * 16 + a_column[i] + 1] << 16;
  for (int i = 0; i < 2; ++i)
    fb[i] = b[(2 * t + 8 * i) * 8 + g] | (unsigned)b[(2 * t + 8 * i + 1) * 8 + g] << 16;
  for (int i = 0; i < 4; ++i) fc[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  cuemu::mma_m16n8k16_KIND(fd, fa, fb, fc);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fd[i];
}
"""
# As a kernel does it: A and the transpose of B (that is, B as K by N) come through ldmatrix.
LOADED = """
__global__ void product(float* d, const unsigned short* a, const unsigned short* b,
                        const float* c) {
  unsigned short* sa = (unsigned short*)cuemu::dyn_smem();
  unsigned short* sb = sa + 16 * 16;
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32) sa[i] = a[i];
  for (int i = lane; i < 128; i += 32) sb[i] = b[i], sb[i + 128] = 0x7fff;
  __syncwarp();
  unsigned fa[4], fb[4];
  float fc[4] = {0.f, 0.f, 0.f, 0.f};
  cuemu::ldmatrix_x4(fa, sa + (lane & 15) * 16 + (lane >> 4) * 8);
  cuemu::ldmatrix_x4_trans(fb, sb + lane * 8);
  const unsigned upper[2] = {fb[0], fb[1]};
  for (int i = 0; i < 4; ++i) fc[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  cuemu::mma_m16n8k16_KIND(fc, fa, upper, fc);
  for (int i = 0; i < 4; ++i) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = fc[i];
}
"""
LDMATRIX = """
__global__ void load(unsigned* out, const unsigned short* rows) {
  unsigned short* s = (unsigned short*)cuemu::dyn_smem();
  for (int i = 0; i < 8; ++i) s[threadIdx.x * 8 + i] = rows[threadIdx.x * 8 + i];
  __syncwarp();
  unsigned fragments[4];
  cuemu::LOAD(fragments, s + threadIdx.x * 8);
  for (int i = 0; i < 4; ++i) out[i * 32 + threadIdx.x] = fragments[i];
}
"""
PARAMS = "*float32 d, const *uint16 a, const *uint16 b, const *float32 c"


@pytest.mark.parametrize("text", [MMA, LOADED], ids=["by_hand", "by_ldmatrix"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("order", ["forward", "random:1"])
def test_product_of_matrices(emulate, rng, text, kind, order):
    a, b = (rng.standard_normal(shape).astype(TYPES[kind]) for shape in ((16, 16), (16, 8)))
    c, d = rng.standard_normal((16, 8)).astype(np.float32), np.full((16, 8), np.nan, np.float32)
    args = [d, a.view(np.uint16), b.view(np.uint16), c]
    emulate(text.replace("KIND", kind), "product", PARAMS, args, shared=1024, order=order)
    np.testing.assert_allclose(d, a.astype(float) @ b.astype(float) + c, rtol=0, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_lanes_get_neighbours_of_each_matrix(emulate, rng, transposed):
    rows = rng.integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((4, 32, 2), np.uint16)
    text = LDMATRIX.replace("LOAD", "ldmatrix_x4_trans" if transposed else "ldmatrix_x4")
    emulate(
        text, "load", "*uint32 out, const *uint16 rows", [out.view(np.uint32), rows], shared=512
    )
    for matrix in range(4):
        m = rows[matrix].T if transposed else rows[matrix]
        assert np.array_equal(out[matrix], m.reshape(32, 2))
