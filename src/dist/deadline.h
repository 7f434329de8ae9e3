// Computes the time at which a wait that begins now must end.
//
//   const auto deadline = DeadlineIn(options.timeout_s);
#pragma once

#include <algorithm>
#include <chrono>

namespace halflife::dist {

// Infinity and any other number of seconds that the clock cannot represent become about thirty
// years, which means no deadline. `seconds` must not be NaN.
inline std::chrono::steady_clock::time_point DeadlineIn(double seconds) {
  using Clock = std::chrono::steady_clock;
  // Far below the 292 years at which 64 bits of nanoseconds overflow, because a condition variable
  // may add the time of another clock.
  constexpr double kForeverSeconds = 1e9;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, kForeverSeconds)));
}

}  // namespace halflife::dist
