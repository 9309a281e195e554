// Where a token lies in paged memory.

// Elements between blocks, slots and heads of keys or values: one kernel serves both layouts.
struct Strides {
  i64 block, slot, head;
};

// A token of a row: its block, and its slot there.
struct Place {
  int block, slot;
};

__device__ __forceinline__ Place place_of(const int* __restrict__ table, int token, int block_size) {
  const unsigned entry = (unsigned)token / (unsigned)block_size;
  return {table[entry], token - (int)(entry * (unsigned)block_size)};
}

// 64 bits before the product: from 2^31 elements on a 32-bit offset reads other memory.
__device__ __forceinline__ i64 offset_of(Place at, Strides s) { return at.block * s.block + at.slot * s.slot; }

// --- the part of a row that a query sees, and the share of it that one split has ----------------------------------

struct Range {
  int begin, end;
};

// Fewer tokens are not worth a split of their own.
constexpr int LEAST_SPLIT = 128;

// Of tokens `first` … `end` - 1: `split_tokens` in each split, or with 0 even shares in whole groups of 16.
__device__ __forceinline__ Range split_of(int first, int end, int split_tokens, int split, int num_splits) {
  int share = split_tokens;
  if (share == 0) {
    share = (end - first + num_splits - 1) / num_splits;
    share = max(LEAST_SPLIT, (share + 15) & ~15);
  }
  // In 64 bits: the last splits of a fixed size may begin beyond 2^31.
  const i64 from = first + (i64)split * share, to = from + share;
  return {(int)(from < end ? from : end), (int)(to < end ? to : end)};
}

// The first token that the query at the end of so many tokens sees.
__device__ __forceinline__ int first_seen(int length, int window) { return window > 0 ? max(0, length - window) : 0; }
