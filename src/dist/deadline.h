// When a wait that begins now has lasted long enough.
//
//   const auto deadline = DeadlineIn(options.timeout_s);
#pragma once

#include <algorithm>
#include <chrono>

namespace halflife::dist {

// Infinity, like any number of seconds that a clock cannot count, is some thirty years: a wait
// without a deadline. `seconds` is no NaN.
inline std::chrono::steady_clock::time_point DeadlineIn(double seconds) {
  using Clock = std::chrono::steady_clock;
  // Far from the 292 years after which 64 bits of nanoseconds run over, as a condition variable may
  // add the time of another clock.
  constexpr double kForeverSeconds = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, kForeverSeconds)));
}

}  // namespace halflife::dist
