// Breaks: a 16-byte load from an address that is aligned to 4
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const float4 v = *reinterpret_cast<const float4*>(x + (BUG ? 1 : 4));
  y[blockIdx.x * blockDim.x + threadIdx.x] = v.x;
}
