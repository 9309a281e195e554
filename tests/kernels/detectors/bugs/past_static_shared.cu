// Breaks: twice as many threads as the static shared array has elements
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  __shared__ float s[BUG ? 64 : 128];
  float* p = s;
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  p[t] = x[i];
  __syncthreads();
  y[i] = p[t];
}
