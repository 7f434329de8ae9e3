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

// The larger of two errors; NaN where one is, which std::max may pass over.
double Worse(double a, double b);

// ||got - want|| / ||want|| in fp64, on the CPU; NaN where one is in either. Equal shapes, `want`
// fp64 and not all zero.
double RelativeRms(const at::Tensor& got, const at::Tensor& want);

// "cpu" or "cuda" (the current GPU). Error: exit 4 without a GPU or in a build without CUDA, exit 2
// for another name.
at::Device FindDevice(const std::string& name);

// Of what `run` does, or enqueues: wall time on the CPU, between events on the current stream of a
// GPU, the pauses included in which the GPU waits for the host. For one long call; Timer is for
// what may be short.
double Milliseconds(at::Device device, const std::function<void()>& run);

// Waits until the device has done what is enqueued.
void Synchronise(at::Device device);

// Times of calls of one kind. On a GPU of the device's work alone: a kernel that only spins goes
// ahead, so that the host has enqueued all of `run` when the device begins it. A call whose spin
// was too short has the host's pauses in its time; it counts as late, and the next call spins twice
// as long. Warm-up calls so find the length, and their times are to be thrown away.
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
  void StartCounting() { calls_ = late_ = 0; }
  // Of the calls since StartCounting, those in which the GPU waited for the host: all of them where
  // `run` itself waits for the GPU. 0 on the CPU.
  double late_share() const { return calls_ == 0 ? 0 : static_cast<double>(late_) / calls_; }

 private:
  at::Device device_;
  double spin_ms_ = 0.1;
  int calls_ = 0, late_ = 0;
};

// Memory that LibTorch's allocator has handed out on a GPU, at most since ForgetPeakBytes and now.
int64_t PeakBytes(at::Device device);
void ForgetPeakBytes(at::Device device);

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
