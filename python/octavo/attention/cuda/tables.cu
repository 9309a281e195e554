// Block tables in their forms. Grid: row.
#include "common.cuh"
#include "pages.cuh"

// The slots of a row's last tokens, as many as it has queries; -1 for the queries of a row without tokens.
extern "C" __global__ void slots_from_tables(i64* __restrict__ slots, const int* __restrict__ block_tables,
                                             const int* __restrict__ seq_lens, const int* __restrict__ query_start,
                                             int block_size, i64 table_stride) {
  const int row = blockIdx.x, begin = query_start[row], count = query_start[row + 1] - begin;
  const int* table = block_tables + row * table_stride;
  const int first = seq_lens[row] - count;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    if (first + i < 0) {
      slots[begin + i] = -1;
      continue;
    }
    const Place at = place_of(table, first + i, block_size);
    slots[begin + i] = (i64)at.block * block_size + at.slot;
  }
}

// Of each query its row, and the tokens that it sees: those up to its own. Queries behind the last row's see none: what
// an earlier call left there may name rows that are no more.
extern "C" __global__ void expand_queries(int* __restrict__ rows, int* __restrict__ lens,
                                          const int* __restrict__ query_start, const int* __restrict__ seq_lens,
                                          int num_queries) {
  const int row = blockIdx.x, begin = query_start[row], count = query_start[row + 1] - begin;
  if (row == (int)gridDim.x - 1)
    for (int i = begin + count + threadIdx.x; i < num_queries; i += blockDim.x) rows[i] = lens[i] = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    rows[begin + i] = row;
    lens[begin + i] = max(0, seq_lens[row] - count + i + 1);
  }
}

extern "C" __global__ void tables_to_csr(int* __restrict__ indices, int* __restrict__ last_page_len,
                                         const int* __restrict__ indptr, const int* __restrict__ block_tables,
                                         const int* __restrict__ seq_lens, int block_size, i64 table_stride) {
  const int row = blockIdx.x, begin = indptr[row], count = indptr[row + 1] - begin;
  for (int i = threadIdx.x; i < count; i += blockDim.x) indices[begin + i] = block_tables[row * table_stride + i];
  if (threadIdx.x == 0) last_page_len[row] = seq_lens[row] - max(count - 1, 0) * block_size;
}

// Unused entries become 0.
extern "C" __global__ void csr_to_tables(int* __restrict__ block_tables, int* __restrict__ seq_lens,
                                         const int* __restrict__ indptr, const int* __restrict__ indices,
                                         const int* __restrict__ last_page_len, int block_size, int width) {
  const int row = blockIdx.x, begin = indptr[row], count = indptr[row + 1] - begin;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    block_tables[(i64)row * width + i] = i < count ? indices[begin + i] : 0;
  if (threadIdx.x == 0) seq_lens[row] = count > 0 ? (count - 1) * block_size + last_page_len[row] : 0;
}
