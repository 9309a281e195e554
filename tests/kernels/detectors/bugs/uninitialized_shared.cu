// Breaks: half of the shared memory that is read was never written
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x;
  if (t < (BUG ? 64 : 128)) s[t] = x[t];
  __syncthreads();
  y[blockIdx.x * blockDim.x + t] = s[t];
}
