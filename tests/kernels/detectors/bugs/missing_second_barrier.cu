// Breaks: no barrier at the end of a loop's turn: the next one overwrites what slow threads still read
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  float* s = (float*)cuemu::dyn_smem();
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  float sum = 0.f;
  for (int turn = 0; turn < 3; ++turn) {
    s[t] = x[(i + turn) % n] * (float)(turn + 1);
    __syncthreads();
    sum += s[(t + 33) % blockDim.x];
    if (!BUG) __syncthreads();
  }
  y[i] = sum;
}
