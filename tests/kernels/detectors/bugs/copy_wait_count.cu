// Breaks: a pipeline of two stages leaves one copy too many under way
// Shared: 1024
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x, turns = n / (int)blockDim.x;
  const auto load = [&](int turn) {
    if (turn < turns && t % 4 == 0) cuemu::cp_async16(s + turn % 2 * 128 + t, x + turn * blockDim.x + t);
    cuemu::cp_async_commit();
  };
  float sum = 0.f;
  load(0);
  for (int turn = 0; turn < turns; ++turn) {
    load(turn + 1);
    cuemu::cp_async_wait(BUG ? 2 : 1);
    __syncthreads();
    sum += s[turn % 2 * 128 + 127 - t];
    __syncthreads();
  }
  cuemu::cp_async_wait(0);
  y[blockIdx.x * blockDim.x + t] = sum;
}
