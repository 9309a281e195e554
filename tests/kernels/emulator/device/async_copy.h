// cp.async: copies of 16 bytes from global to shared memory that land when they are waited for.
//
// From its issue until then the target holds all ones, NaN in every floating-point type: who reads too
// early finds out. A copy whose predicate is false reads nothing and fills with zeros.
#pragma once
#include "collectives.h"

namespace cuemu {
inline void cp_async16(void* to, const void* from, bool predicate = true, CUEMU_AT) {
  copy_issue(to, predicate ? from : nullptr, at);
}
inline void cp_async_commit() { copy_commit(); }
inline void cp_async_wait(int keep) { copy_wait(keep); }
}  // namespace cuemu
