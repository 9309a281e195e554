// The instructions that have no C++: asynchronous copies, and 8 x 8 matrices on tensor cores (PTX ISA,
// chapters 9.7.9.25 "cp.async" and 9.7.15 "warp-level matrix instructions").
#ifdef CUDA_ON_CPU

#define copy_async cuemu::cp_async16
#define copies_commit cuemu::cp_async_commit
template <int KEEP>
inline void copies_wait() {
  cuemu::cp_async_wait(KEEP);
}
#define load_matrices(r, tile, offset) cuemu::ldmatrix_x4(r, (tile) + (offset))
#define load_matrices_transposed(r, tile, offset) cuemu::ldmatrix_x4_trans(r, (tile) + (offset))
inline void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, __half) {
  const u32 b[2] = {b0, b1};
  cuemu::mma_m16n8k16_f16(d, a, b, d);
}
inline void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, __nv_bfloat16) {
  const u32 b[2] = {b0, b1};
  cuemu::mma_m16n8k16_bf16(d, a, b, d);
}

#else

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes of global memory to shared memory; zeros where not `wanted`, and nothing is read.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(wanted ? 16 : 0)
               : "memory");
}
// What was issued since the last commit is one group.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most the KEEP newest groups of this thread are under way.
template <int KEEP>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(KEEP) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements: lane l names row l % 8 of matrix l / 8, 16 aligned bytes of shared memory,
// and gets of each matrix elements [l / 4][2 (l % 4)] and the next one. The tile and the bytes behind its begin are
// apart, so that one register has the tile's address for all of its rows.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], const void* tile, int offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(tile) + offset)
               : "memory");
}
// The same of the transposed matrices: elements [2 (l % 4)][l / 4] and the one below.
__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], const void* tile, int offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(tile) + offset)
               : "memory");
}

// d += a b: a is 16 x 16, b 16 x 8, d 16 x 8 in float. Lane l has of d rows l / 4 and l / 4 + 8, columns 2 (l % 4) and
// the next.
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, __half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, __nv_bfloat16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

// Two floats, rounded, as one operand register.
__device__ __forceinline__ u32 pack(float low, float high, __half) {
  const __half2 two = __floats2half2_rn(low, high);
  u32 r;
  memcpy(&r, &two, 4);
  return r;
}
__device__ __forceinline__ u32 pack(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  u32 r;
  memcpy(&r, &two, 4);
  return r;
}
