// Breaks: half of a warp goes to the barrier of the block, the other half to that of the warp
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  if (threadIdx.x < (BUG ? 48 : 64)) __syncthreads();
  else if (BUG) __syncwarp();
  else __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = x[0];
}
