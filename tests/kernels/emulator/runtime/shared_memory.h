// The shared memory of a block: dynamic, at the launch's wish, and the static arrays of the kernel.
#pragma once
#include "block.h"

namespace cuemu {

struct Range {
  unsigned char* first = nullptr;
  size_t bytes = 0;
  bool holds(const void* address, size_t size) const {
    const auto at = (uintptr_t)address, from = (uintptr_t)first;
    return at >= from && at + size <= from + bytes;
  }
};

// Dynamic shared memory of a worker's blocks, guarded behind its last byte.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  unsigned char* first() const { return first_; }
  // Forgets everything, also in the eyes of ThreadSanitizer.
  void renew();

 private:
  void map();
  unsigned char* first_ = nullptr;
  size_t bytes_, mapped_;
};

// The static __shared__ arrays as this worker sees them. With CUEMU_STATIC_SHARED they lie among the other
// globals of the kernel's module, and the range is the whole of those.
Range static_shared();

}  // namespace cuemu
