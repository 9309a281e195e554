// What is done to the keys and the values of all layers in one launch: bytes, whatever they mean.
#include "common.cuh"

// The keys or the values of a layer: where they begin, and bytes between blocks, slots and heads, and of a head.
struct Plane {
  i64 address, block, slot, head, bytes;
};

__device__ __forceinline__ uint4* vector_of(const Plane& p, i64 block, int slot, int head, int at) {
  return reinterpret_cast<uint4*>(p.address + block * p.block + slot * p.slot + head * p.head) + at;
}

// Grid: pair, plane. Each of `copies` is (source, target, tokens): no target is a source.
extern "C" __global__ void copy_blocks(const i64* __restrict__ planes, const int* __restrict__ copies, int heads) {
  const Plane p = reinterpret_cast<const Plane*>(planes)[blockIdx.y];
  const int source = copies[3 * blockIdx.x], target = copies[3 * blockIdx.x + 1], tokens = copies[3 * blockIdx.x + 2];
  const int vectors = (int)(p.bytes / 16), per_slot = heads * vectors;
  for (int i = threadIdx.x; i < tokens * per_slot; i += blockDim.x) {
    const int slot = i / per_slot, head = i % per_slot / vectors, at = i % vectors;
    *vector_of(p, target, slot, head, at) = *vector_of(p, source, slot, head, at);
  }
}

// Grid: row x entry of its table. Marks the slots that rows own.
extern "C" __global__ void mark_used(unsigned char* __restrict__ used, const int* __restrict__ block_tables,
                                     const int* __restrict__ seq_lens, int block_size, int width, i64 table_stride) {
  const int row = blockIdx.x / width, entry = blockIdx.x % width,
            tokens = min(block_size, seq_lens[row] - entry * block_size);
  if (tokens <= 0) return;
  const i64 block = block_tables[row * table_stride + entry];
  for (int slot = threadIdx.x; slot < tokens; slot += blockDim.x) used[block * block_size + slot] = 1;
}

// Grid: block, plane. `pattern` is a NaN of the memory's type, repeated to 4 bytes; `used` may be null: no slot is.
extern "C" __global__ void poison(const i64* __restrict__ planes, const unsigned char* __restrict__ used,
                                  unsigned pattern, int heads, int block_size) {
  const Plane p = reinterpret_cast<const Plane*>(planes)[blockIdx.y];
  const int vectors = (int)(p.bytes / 16), per_slot = heads * vectors;
  const i64 block = blockIdx.x;
  for (int i = threadIdx.x; i < block_size * per_slot; i += blockDim.x) {
    const int slot = i / per_slot, head = i % per_slot / vectors, at = i % vectors;
    if (used && used[block * block_size + slot]) continue;
    *vector_of(p, block, slot, head, at) = make_uint4(pattern, pattern, pattern, pattern);
  }
}
