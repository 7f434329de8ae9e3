// Threads of our own. A system that gives none is nobody's fault of the program's.
#pragma once

#include <functional>
#include <thread>

namespace halflife {

// Error kEnvironment where no thread is to be had: of a limit on threads, or of memory for a stack.
std::thread StartThread(std::function<void()> run);

}  // namespace halflife
