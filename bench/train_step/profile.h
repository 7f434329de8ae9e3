// One call under LibTorch's profiler: how many kernels it launches, how often the host waits for
// the device, and where the time goes.
//
//   const nlohmann::ordered_json profile = Profile(at::kCUDA, [&] { bench.Step(); });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json.hpp>

namespace halflife::bench {

// wall_ms, and of a GPU launches, copies (and fills), synchronisations, device_ms (the sum over
// kernels and copies, which may overlap). `top`: the names with the most time, with their calls: of
// a GPU kernels and copies; of the CPU LibTorch's operations, each with those that it calls. Calls
// before this one must have warmed up. Error kEnvironment where a GPU was used and the profiler saw
// nothing of it.
nlohmann::ordered_json Profile(at::Device device, const std::function<void()>& run);

}  // namespace halflife::bench
