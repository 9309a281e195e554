// Breaks: the offset of a page beyond 2^31 elements is worked out in 32 bits
// Input: sparse
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int page = n / 2048, size = 2048;
  const long long offset = BUG ? (page + 1) * size : (long long)(page + 1) * size;
  y[blockIdx.x * blockDim.x + threadIdx.x] = x[offset + threadIdx.x];
}
