#include "report.h"

#include <cstdio>
#include <set>
#include <tuple>

namespace cuemu {
namespace {

const char* doing(const Thread& thread) {
  if (thread.state == Wait::Block) return "__syncthreads";
  if (thread.state == Wait::Done) return "exited";
  if (thread.state != Wait::Warp) return "running";
  switch (thread.collective) {
    case Collective::None:
      break;
    case Collective::Sync:
      return "__syncwarp";
    case Collective::Shuffle:
      return "shuffle";
    case Collective::Vote:
      return "vote";
    case Collective::MmaFloat16:
    case Collective::MmaBfloat16:
      return "mma";
    case Collective::Matrix:
    case Collective::MatrixTransposed:
      return "ldmatrix";
  }
  return "warp collective";
}

}  // namespace

void fail(const std::string& message) {
  Thread& thread = *running();
  Block& block = *thread.owner;
  block.failed = true;
  block.error = message;
  switch_fiber(*thread.fiber, block.worker);
  __builtin_unreachable();
}

void trap(Site at) {
  Thread& thread = *running();
  thread.at = at;
  fail("__trap\n" + where(thread));
}

std::string where(const Thread& thread) {
  const uint3 b = thread.owner->index;
  char line[512];
  snprintf(line, sizeof line, "  block (%u,%u,%u) thread %d [warp %d lane %d]: %s at %s:%d", b.x, b.y, b.z,
           thread.linear, thread.warp, thread.lane, doing(thread), thread.at.file ? thread.at.file : "?",
           thread.at.line);
  std::string text = line;
  if (thread.state == Wait::Warp) {
    snprintf(line, sizeof line, " mask %08x", thread.mask);
    text += line;
  }
  return text + "\n";
}

std::string stuck(const Block& block) {
  std::string text = "deadlock: no thread of the block can run\n";
  std::set<std::tuple<int, Wait, uint32_t>> seen;
  for (const auto& thread : block.threads)
    if (seen.emplace(thread->at.line, thread->state, thread->mask).second) text += where(*thread);
  return text;
}

}  // namespace cuemu
