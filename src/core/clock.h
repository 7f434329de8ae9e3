// Monotonic and wall-clock time. The wall clock is for display and records only; no decision of the
// program depends on it.
#pragma once

#include <chrono>
#include <cstdint>

namespace halflife {

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void Restart() { start_ = std::chrono::steady_clock::now(); }
  // Returns the seconds since the start or the last Lap or Restart, and starts the next lap.
  double Lap() {
    const double seconds = Seconds();
    Restart();
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline int64_t UnixMicroseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}
inline int64_t UnixMilliseconds() { return UnixMicroseconds() / 1000; }

}  // namespace halflife
