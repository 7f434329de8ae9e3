// What the benchmarks share: order statistics, errors, a device's clock, and how fast the machine
// moves memory.
//
//   const at::Device device = FindDevice("cuda");
//   const double ms = Milliseconds(device, [&] { y = RmsNorm(x, weight, 1e-6); });
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace halflife::bench {

double Quantile(std::vector<double> values, double q);
inline double Median(const std::vector<double>& values) { return Quantile(values, 0.5); }

// ||got - want|| / ||want|| in fp64, on the CPU; NaN where one is in either. Equal shapes, `want`
// fp64 and not all zero.
double RelativeRms(const at::Tensor& got, const at::Tensor& want);

// "cpu" or "cuda" (the current GPU). Error: exit 4 without a GPU or in a build without CUDA, exit 2
// for another name.
at::Device FindDevice(const std::string& name);

// Of what `run` does, or enqueues: wall time on the CPU, between events on the current stream of a
// GPU.
double Milliseconds(at::Device device, const std::function<void()>& run);

// Size of a GPU's L2 cache, and its name; 0 and "cpu" for the CPU.
int64_t CacheBytes(at::Device device);
std::string DeviceName(at::Device device);

// How fast the machine moves memory with nothing to compute: from one half of so many bytes to the
// other or, in place, through half as many, which no line has to be fetched for in vain. Bytes read
// and written count.
class MemoryCeiling {
 public:
  enum class Kind { kCopy, kInPlace };
  MemoryCeiling(at::Device device, int64_t bytes, Kind kind);
  double GigabytesPerSecond();

 private:
  Kind kind_;
  at::Tensor from_, to_;  // fp32
};

}  // namespace halflife::bench
