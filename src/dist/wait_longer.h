// A wait for ranks that may be slow without being stuck.
#pragma once

#include <chrono>
#include <thread>

#include "core/clock.h"
#include "dist/communicator.h"

namespace halflife::dist {

// Waits up to `seconds` without a deadline, and only then until the deadline of the communicator.
inline void WaitLonger(Work& work, double seconds) {
  const Stopwatch stopwatch;
  while (!work.Done() && stopwatch.Seconds() < seconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  work.WaitHost();
}

}  // namespace halflife::dist
