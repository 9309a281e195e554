// Breaks: ldmatrix is given rows that are not aligned to their 16 bytes
// Shared: 520
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  unsigned* s = (unsigned*)cuemu::dyn_smem();
  const int t = threadIdx.x;
  s[t] = __float_as_uint(x[t]);
  if (t < 2) s[128 + t] = 0;
  __syncthreads();
  unsigned f[4];
  cuemu::ldmatrix_x4(f, s + (t & 31) * 4 + (BUG ? 2 : 0));
  y[blockIdx.x * blockDim.x + t] = (float)(f[t / 32] >> 24);
}
