// Shared by the benchmarks: order statistics, errors, a device's clock, and the memory bandwidth of
// the machine.
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

// Returns the larger of two errors, and NaN if either is NaN, which std::max may ignore.
double Worse(double a, double b);

// Returns ||got - want|| / ||want|| in fp64, on the CPU. NaN if either contains NaN. The shapes
// must be equal, and `want` must be fp64 and not all zero.
double RelativeRms(const at::Tensor& got, const at::Tensor& want);

// `name` is "cpu" or "cuda" (the current GPU). Throws Error: exit 4 without a GPU or in a build
// without CUDA, exit 2 for another name.
at::Device FindDevice(const std::string& name);

// Returns the milliseconds that `run` takes: wall time on the CPU, and on a GPU the time between
// events on the current stream, including pauses in which the GPU waits for the host. It is for one
// long call. Use Timer for short ones.
double Milliseconds(at::Device device, const std::function<void()>& run);

// Starts recording in a profiler that was started with recording off (`ncu --profile-from-start
// off`). Without a profiler, and on the CPU, this does nothing.
void StartProfiler(at::Device device);

// Waits until the device has finished everything that is enqueued.
void Synchronise(at::Device device);

// Times calls of one kind. On a GPU it measures only the device's work: a kernel that spins runs
// first, so that the host has enqueued all of `run` when the device begins it. If the spin was too
// short, the time contains pauses of the host. The call then counts as late, and the next call
// spins twice as long. Warm-up calls find the right length in this way, and their times must be
// discarded.
//
//   Timer timer(device);
//   for (int i = -10; i < 50; ++i) {
//     if (i == 0) timer.StartCounting();
//     const double ms = timer.Milliseconds([&] { y = RmsNorm(x, weight, 1e-6); });
//   }
class Timer {
 public:
  explicit Timer(at::Device device) : device_(device) {}
  double Milliseconds(const std::function<void()>& run);
  // Ends the warm-up. A profiler records from here on (StartProfiler).
  void StartCounting();
  // Share of the calls since StartCounting in which the GPU waited for the host. 1 if `run` itself
  // waits for the GPU, 0 on the CPU.
  double late_share() const { return calls_ == 0 ? 0 : static_cast<double>(late_) / calls_; }

 private:
  at::Device device_;
  double spin_ms_ = 0.1;
  int calls_ = 0, late_ = 0;
};

// Returns the peak memory from LibTorch's allocator on a GPU since ForgetPeakBytes.
int64_t PeakBytes(at::Device device);
void ForgetPeakBytes(at::Device device);

// Returns the size of a GPU's L2 cache, and its name; 0 and "cpu" for the CPU.
int64_t CacheBytes(at::Device device);
std::string DeviceName(at::Device device);

// Measures memory bandwidth without computation: copies from one half of the bytes to the other, or
// updates half as many bytes in place, so that no cache line is fetched only to be overwritten.
// Bytes read and written both count.
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
