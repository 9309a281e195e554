// Breaks: the last thread of the grid reads one element past its array
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[BUG ? i + 1 : (i + 1) % n];
}
