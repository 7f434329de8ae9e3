// Monotonic time; the wall clock is for people, and no decision of the program uses it.
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
  // Seconds since the start or the last Lap, and starts the next one.
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
