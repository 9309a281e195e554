// Breaks: values past the end of a sequence are loaded, and not zero: a weight of 0 times NaN is NaN
// Input: paged
template <bool BUG>
__global__ void kernel(float* y, const float* x, int n) {
  const int d = threadIdx.x % 8, length = n + 16 * blockIdx.x;
  float sum = 0.f;
  for (int t = 0; t < (length + 15) / 16 * 16; ++t) {
    const long long page = t / 16 * gridDim.x + blockIdx.x;
    const float weight = t < length ? 1.f / (float)(1 + t) : 0.f;
    const float value = BUG || t < length ? x[(page * 16 + t % 16) * 8 + d] : 0.f;
    sum = fmaf(weight, value, sum);
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
