// Breaks: the threads of a block add to one element without an atomic
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  if (BUG) y[blockIdx.x] += 1.f;
  else atomicAdd(&y[blockIdx.x], 1.f);
}
