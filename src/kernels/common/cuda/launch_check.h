// Whether every launch waits for its kernel, so that a fault on the device is met at the kernel
// that made it, and named. Without it a launch only sees that it could not be queued: what fails on
// the device shows at some later call, whose words are about something else.
//
//   HALFLIFE_CHECK_LAUNCHES=1 build/cuda/tests/kernels/step_kernels_gpu_test
//
//   if (LaunchesAreChecked()) Await(stream);
//
// Slow: the host and the device never work at the same time.
#pragma once

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace halflife::kernels {

// Any word but 0 does; none, or an empty one, does not.
inline bool AsksForLaunchChecks(const char* word) {
  return word != nullptr && *word != '\0' && std::string_view(word) != "0";
}

namespace internal {
// Process-wide, as a fault on the device is; read by launches, below any object that could hand it
// down.
inline std::atomic<bool> launches_are_checked{
    AsksForLaunchChecks(std::getenv("HALFLIFE_CHECK_LAUNCHES"))};
}  // namespace internal

inline bool LaunchesAreChecked() {
  return internal::launches_are_checked.load(std::memory_order_relaxed);
}
inline void CheckLaunches(bool on) { internal::launches_are_checked = on; }

}  // namespace halflife::kernels
