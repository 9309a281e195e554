// Breaks: half of the lanes read from a lane that their mask does not have
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  const unsigned mask = t & 16 ? 0xffff0000u : 0x0000ffffu;
  y[i] = __shfl_sync(mask, x[i], BUG ? 0 : t & 16);
}
