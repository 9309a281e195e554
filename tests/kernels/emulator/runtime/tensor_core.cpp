#include "tensor_core.h"

namespace cuemu {
namespace {

// The columns of B and D at once.
typedef float Row __attribute__((vector_size(32)));

// COUNT neighbours of a fragment, in float.
template <int COUNT>
void widen(float* to, const unsigned char* from, bool bfloat16) {
  if (bfloat16) {
    uint16_t bits[COUNT];
    memcpy(bits, from, sizeof bits);
    uint32_t words[COUNT];
    for (int i = 0; i < COUNT; ++i) words[i] = (uint32_t)bits[i] << 16;
    memcpy(to, words, sizeof words);
  } else {
    _Float16 halves[COUNT];
    memcpy(halves, from, sizeof halves);
    for (int i = 0; i < COUNT; ++i) to[i] = (float)halves[i];
  }
}

}  // namespace

// Lane t belongs to group g = t / 4 and is the c = t % 4 th in it. Of A (16 x 16) it holds rows g and
// g + 8, columns 2c, 2c + 1 and the same plus 8; of B (16 x 8) the rows 2c, 2c + 1 and the same plus 8 of
// column g; of C and D (16 x 8) rows g and g + 8, columns 2c and 2c + 1.
void multiply(Thread* const* lanes, bool bfloat16) {
  float a[16][16];
  Row b[16], d[16];
  for (int t = 0; t < 32; ++t) {
    const int g = t >> 2, c = (t & 3) * 2;
    float part[8];
    widen<8>(part, lanes[t]->in, bfloat16);
    for (int i = 0; i < 8; ++i) a[g + (i >> 1 & 1) * 8][c + (i & 1) + (i >> 2) * 8] = part[i];
    widen<4>(part, lanes[t]->in + 16, bfloat16);
    for (int i = 0; i < 4; ++i) b[c + (i & 1) + (i >> 1) * 8][g] = part[i];
    memcpy(reinterpret_cast<float*>(&d[g]) + c, lanes[t]->in + 24, 8);
    memcpy(reinterpret_cast<float*>(&d[g + 8]) + c, lanes[t]->in + 32, 8);
  }
  for (int row = 0; row < 16; ++row) {
    Row sum = d[row];
    for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k];
    d[row] = sum;
  }
  for (int t = 0; t < 32; ++t) {
    const int g = t >> 2, c = (t & 3) * 2;
    memcpy(lanes[t]->out, reinterpret_cast<float*>(&d[g]) + c, 8);
    memcpy(lanes[t]->out + 8, reinterpret_cast<float*>(&d[g + 8]) + c, 8);
  }
}

// Lane t gets two neighbours of each matrix: elements (t / 4, 2 (t % 4)) and the one to its right, or,
// transposed, elements (2 (t % 4), t / 4) and the one below.
void hand_out_matrices(Thread* const* lanes, bool transposed) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t m[8][8];
    for (int row = 0; row < 8; ++row) memcpy(m[row], lanes[matrix * 8 + row]->in, 16);
    for (int t = 0; t < 32; ++t) {
      const int g = t >> 2, c = (t & 3) * 2;
      const uint16_t pair[2] = {transposed ? m[c][g] : m[g][c], transposed ? m[c + 1][g] : m[g][c + 1]};
      memcpy(lanes[t]->out + matrix * 4, pair, 4);
    }
  }
}

}  // namespace cuemu
