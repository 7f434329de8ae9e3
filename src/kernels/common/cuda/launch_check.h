// Optionally makes every launch wait for its kernel, so that an error on the device is reported for
// the kernel that caused it. Without this, a launch only reports that it could not be queued, and
// an error on the device surfaces in some later, unrelated call.
//
//   HALFLIFE_CHECK_LAUNCHES=1 build/cuda/tests/ops/step_kernels_gpu_test
//
//   if (LaunchesAreChecked()) Await(stream);
//
// This is slow, because the host and the device never work at the same time.
#pragma once

#include <atomic>
#include <cstdlib>
#include <string_view>

namespace halflife::kernels {

// Returns true for any value except "0" and the empty string.
inline bool AsksForLaunchChecks(const char* word) {
  return word != nullptr && *word != '\0' && std::string_view(word) != "0";
}

namespace internal {
// Process-wide, like errors on the device. Launches read it, also in places that no context object
// reaches.
inline std::atomic<bool> launches_are_checked{
    AsksForLaunchChecks(std::getenv("HALFLIFE_CHECK_LAUNCHES"))};
}  // namespace internal

inline bool LaunchesAreChecked() {
  return internal::launches_are_checked.load(std::memory_order_relaxed);
}
inline void CheckLaunches(bool on) { internal::launches_are_checked = on; }

}  // namespace halflife::kernels
