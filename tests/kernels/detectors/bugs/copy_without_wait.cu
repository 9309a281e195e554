// Breaks: an asynchronous copy is read before it was waited for
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  if (t % 4 == 0) cuemu::cp_async16(s + t, x + i);
  cuemu::cp_async_commit();
  if (!BUG) cuemu::cp_async_wait(0);
  __syncthreads();
  y[i] = s[t];
  __syncthreads();
  cuemu::cp_async_wait(0);
}
