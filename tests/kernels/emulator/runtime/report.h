// What went wrong, in words, with the thread and the line of the kernel.
#pragma once
#include <string>

#include "block.h"

namespace cuemu {

// Ends the block, and with it the launch; the message is what the launcher's error says.
[[noreturn]] void fail(const std::string& message);
// One line: which thread, what it does or waits for, where.
std::string where(const Thread& thread);
// Nothing can run: one line for each place where threads wait.
std::string stuck(const Block& block);

}  // namespace cuemu
