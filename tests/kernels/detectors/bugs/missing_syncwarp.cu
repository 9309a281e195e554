// Breaks: lanes exchange through shared memory with a shuffle between, which orders nothing
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t] = x[i];
  const float one = __shfl_xor_sync(0xffffffffu, 1.f, 1);
  if (!BUG) __syncwarp();
  y[i] = s[t ^ 1] * one;
}
