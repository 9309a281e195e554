// Breaks: a shuffle of the whole warp to which only half of it comes
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  float v = x[i];
  if ((t & 31) < (BUG ? 16 : 32)) v += __shfl_xor_sync(0xffffffffu, v, 1);
  y[i] = v;
}
