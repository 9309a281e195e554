// Breaks: the last thread writes one element past the dynamic shared memory of the launch
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t + BUG] = x[i];
  __syncthreads();
  y[i] = s[t + BUG];
}
