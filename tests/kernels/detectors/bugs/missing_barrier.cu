// Breaks: no barrier between writing dynamic shared memory and reading what others wrote
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t] = x[i];
  if (!BUG) __syncthreads();
  y[i] = s[blockDim.x - 1 - t];
}
