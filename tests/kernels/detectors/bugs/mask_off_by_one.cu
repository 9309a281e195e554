// Breaks: the mask of a sequence lets in the slot after its last token
// Input: paged
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int d = threadIdx.x % 8, length = n + 16 * blockIdx.x;
  float sum = 0.f;
  for (int t = 0; t < (length + 15) / 16 * 16; ++t) {
    const long long page = t / 16 * gridDim.x + blockIdx.x;
    const bool in = BUG ? t <= length : t < length;
    if (in) sum += x[(page * 16 + t % 16) * 8 + d] / (float)(1 + t);
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
