// Remembers how many bytes of dynamic shared memory each kernel may use on each device. A kernel
// must be allowed to use more than the default before its launch. That call takes about a
// microsecond, a noticeable part of a launch, so it is made once per kernel and device.
#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace halflife::kernels {

class SharedBytesLimits {
 public:
  // Calls raise() unless an earlier call allowed the kernel at least as many bytes on the device.
  // If raise() throws, nothing is remembered. Thread-safe.
  template <typename Raise>
  void Ensure(const void* kernel, int device, int bytes, const Raise& raise) {
    const std::lock_guard lock(mutex_);
    int& allowed = allowed_[{kernel, device}];
    if (bytes <= allowed) return;
    raise();
    allowed = bytes;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<const void*, int>, int> allowed_;
};

namespace internal {
// Process-wide, like the attributes of kernels.
inline SharedBytesLimits shared_bytes_limits;
}  // namespace internal

}  // namespace halflife::kernels
