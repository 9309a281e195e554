// The shared memory of a block: dynamic, at the launch's wish, and the static arrays of the kernel.
#pragma once
#include "block.h"

namespace cuemu {

// Dynamic shared memory of a worker's blocks, guarded behind its last byte.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  Range range() const { return {first_, bytes_}; }
  // Forgets everything, also in the eyes of ThreadSanitizer.
  void renew();

 private:
  void map();
  unsigned char* first_ = nullptr;
  size_t bytes_, mapped_;
};

// The static __shared__ arrays of the module that has this function, as this worker sees them. With
// CUEMU_STATIC_SHARED they lie among the module's other globals, and the range is the whole of those.
Range static_shared(void (*function)(void*));

}  // namespace cuemu
