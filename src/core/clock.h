// Monotonic time. No decision of the program uses wall-clock time.
#pragma once

#include <chrono>

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

}  // namespace halflife
