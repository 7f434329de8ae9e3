// Profiles one call with LibTorch's profiler: the number of kernels launched, how often the host
// waits for the device, and the distribution of time.
//
//   const nlohmann::ordered_json profile = Profile(at::kCUDA, [&] { bench.Step(); });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace halflife::bench {

// Returns wall_ms, and for a GPU launches, copies (and fills), synchronisations and device_ms (the
// sum over kernels and copies, which may overlap). `top` has the names with the most time, with
// their calls: kernels and copies of a GPU, or LibTorch's operations on the CPU, each including
// those that it calls. Earlier calls must have warmed up. Throws Error kEnvironment if a GPU was
// used and the profiler recorded nothing of it.
nlohmann::ordered_json Profile(at::Device device, const std::function<void()>& run);

}  // namespace halflife::bench
