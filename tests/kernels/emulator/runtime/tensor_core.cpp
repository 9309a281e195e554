#include "tensor_core.h"

namespace cuemu {
namespace {

float widen(uint16_t bits, bool bfloat16) {
  float value;
  if (bfloat16) {
    const uint32_t word = (uint32_t)bits << 16;
    memcpy(&value, &word, 4);
    return value;
  }
  _Float16 half;
  memcpy(&half, &bits, 2);
  return (float)half;
}

}  // namespace

// Lane t belongs to group g = t / 4 and is the c = t % 4 th in it. Of A (16 x 16) it holds rows g and
// g + 8, columns 2c, 2c + 1 and the same plus 8; of B (16 x 8) the rows 2c, 2c + 1 and the same plus 8 of
// column g; of C and D (16 x 8) rows g and g + 8, columns 2c and 2c + 1.
void multiply(Thread* const* lanes, bool bfloat16) {
  float a[16][16], b[16][8], d[16][8];
  for (int t = 0; t < 32; ++t) {
    const int g = t >> 2, c = t & 3;
    uint16_t a_part[8], b_part[4];
    float c_part[4];
    memcpy(a_part, lanes[t]->in, 16);
    memcpy(b_part, lanes[t]->in + 16, 8);
    memcpy(c_part, lanes[t]->in + 24, 16);
    for (int i = 0; i < 8; ++i)
      a[g + ((i >> 1) & 1) * 8][c * 2 + (i & 1) + (i >> 2) * 8] = widen(a_part[i], bfloat16);
    for (int i = 0; i < 4; ++i) b[c * 2 + (i & 1) + (i >> 1) * 8][g] = widen(b_part[i], bfloat16);
    for (int i = 0; i < 4; ++i) d[g + (i >> 1) * 8][c * 2 + (i & 1)] = c_part[i];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
  for (int t = 0; t < 32; ++t) {
    const int g = t >> 2, c = t & 3;
    float part[4];
    for (int i = 0; i < 4; ++i) part[i] = d[g + (i >> 1) * 8][c * 2 + (i & 1)];
    memcpy(lanes[t]->out, part, 16);
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
