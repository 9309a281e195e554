// Breaks: the first threads of all blocks add to one element without an atomic
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  if (threadIdx.x != 0) return;
  if (BUG) y[0] += 1.f;
  else atomicAdd(&y[0], 1.f);
}
