// Breaks: a product of two ints that has 33 bits, of which only the lowest is used
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int pages = (1 << 20) + (int)(threadIdx.x & 0), size = 1 << 12;
  const long long offset = BUG ? pages * size : (long long)pages * size;
  y[blockIdx.x * blockDim.x + threadIdx.x] = x[offset & 1];
}
