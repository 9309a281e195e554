// cp.async: what has been issued, committed, and lands.
#include "report.h"
#include "shared_memory.h"

namespace cuemu {

void copy_issue(void* to, const void* from, Site at) {
  check_shared(to, 16, "cp.async", at);
  Thread& thread = *running();
  thread.at = at;
  if ((uintptr_t)from % 16) fail("cp.async: the source is not aligned to 16 bytes\n" + where(thread));
  race::write16(to);
  memset(to, 0xff, 16);
  thread.copies.push_back({to, from, thread.committed});
}

void copy_commit() { ++running()->committed; }

void copy_wait(int keep) {
  Thread& thread = *running();
  auto copy = thread.copies.begin();
  // The last `keep` groups that were committed may stay under way, and so may what is not committed.
  for (; copy != thread.copies.end() && copy->group + (unsigned)keep < thread.committed; ++copy) {
    race::write16(copy->to);
    if (copy->from) {
      race::read16(copy->from);
      memcpy(copy->to, copy->from, 16);
    } else {
      memset(copy->to, 0, 16);
    }
  }
  thread.copies.erase(thread.copies.begin(), copy);
}

}  // namespace cuemu
