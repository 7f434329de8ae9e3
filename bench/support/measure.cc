#include "support/measure.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/clock.h"
#include "core/error.h"
#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#endif

namespace halflife::bench {
namespace {

#ifdef HALFLIFE_WITH_CUDA
double CudaMilliseconds(const std::function<void()>& run) {
  c10::cuda::CUDAEvent before(cudaEventDefault), after(cudaEventDefault);
  before.record();
  run();
  after.record();
  after.synchronize();
  return before.elapsed_time(after);
}

// Enqueues a kernel that spins for this time at the highest clock, and for longer at a lower one.
void Spin(double ms) {
  int kilohertz = 0;
  const cudaError_t status =
      cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, c10::cuda::current_device());
  HL_CHECK_AS(ExitCode::kEnvironment, status == cudaSuccess,
              "cannot read the GPU's clock: ", cudaGetErrorString(status));
  at::cuda::sleep(static_cast<int64_t>(ms * kilohertz));
}

struct SpunTime {
  double ms = 0;
  bool late = false;  // The spin ended before the host was done.
};
SpunTime MillisecondsAfterSpin(double spin_ms, const std::function<void()>& run) {
  c10::cuda::CUDAEvent before(cudaEventDefault), after(cudaEventDefault);
  Spin(spin_ms);
  before.record();
  run();
  after.record();
  const bool late = before.query();
  after.synchronize();
  return {before.elapsed_time(after), late};
}
// Starts a profiler that is attached. An error is ignored, so that the benchmark also runs without
// one.
void StartCudaProfiler() {
  if (cudaProfilerStart() != cudaSuccess) cudaGetLastError();  // forgets the error
}
void CudaSynchronise() { c10::cuda::device_synchronize(); }
int64_t CudaPeakBytes() {
  using c10::CachingAllocator::StatType;
  return c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device())
      .allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)]
      .peak;
}
void ForgetCudaPeakBytes() {
  c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device());
}
void RequireGpu() {
  HL_CHECK_AS(ExitCode::kEnvironment, c10::cuda::device_count() > 0,
              "skipped: no CUDA device was found; nvidia-smi would list one");
}
int64_t CudaCacheBytes() { return at::cuda::getCurrentDeviceProperties()->l2CacheSize; }
std::string CudaName() { return at::cuda::getCurrentDeviceProperties()->name; }
#else
[[noreturn]] void RequireGpu() {
  HL_FAIL(ExitCode::kEnvironment, "skipped: this build has no CUDA; cmake --preset cuda makes one");
}
[[noreturn]] double CudaMilliseconds(const std::function<void()>&) { RequireGpu(); }
struct SpunTime {
  double ms = 0;
  bool late = false;
};
[[noreturn]] SpunTime MillisecondsAfterSpin(double, const std::function<void()>&) { RequireGpu(); }
[[noreturn]] void StartCudaProfiler() { RequireGpu(); }
[[noreturn]] void CudaSynchronise() { RequireGpu(); }
[[noreturn]] int64_t CudaPeakBytes() { RequireGpu(); }
[[noreturn]] void ForgetCudaPeakBytes() { RequireGpu(); }
[[noreturn]] int64_t CudaCacheBytes() { RequireGpu(); }
[[noreturn]] std::string CudaName() { RequireGpu(); }
#endif

// LibTorch's copy has no streaming stores, which double the speed beyond the cache.
void CopyOnCpu(const at::Tensor& from, const at::Tensor& to) {
  constexpr int64_t kGrain = int64_t{1} << 20;
  const auto* const source = from.const_data_ptr<float>();
  auto* const target = to.mutable_data_ptr<float>();
  at::parallel_for(0, from.numel(), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(target + begin, source + begin, (end - begin) * sizeof(float));
  });
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

double Worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double RelativeRms(const at::Tensor& got, const at::Tensor& want) {
  HL_CHECK(got.sizes() == want.sizes(), "a result of shape ", got.sizes(), ", not ", want.sizes());
  const at::Tensor wide = got.detach().to(want.device(), at::kDouble);
  return wide.sub(want).norm().item<double>() / want.norm().item<double>();
}

at::Device FindDevice(const std::string& name) {
  HL_CHECK_AS(ExitCode::kUsage, name == "cpu" || name == "cuda", "unknown device '", name,
              "'. Use cpu or cuda.");
  if (name == "cpu") return at::kCPU;
  RequireGpu();
  return at::kCUDA;
}

double Milliseconds(at::Device device, const std::function<void()>& run) {
  if (device.is_cuda()) return CudaMilliseconds(run);
  const Stopwatch watch;
  run();
  return watch.Seconds() * 1e3;
}

void StartProfiler(at::Device device) {
  if (device.is_cuda()) StartCudaProfiler();
}

void Synchronise(at::Device device) {
  if (device.is_cuda()) CudaSynchronise();
}

void Timer::StartCounting() {
  calls_ = late_ = 0;
  StartProfiler(device_);
}

double Timer::Milliseconds(const std::function<void()>& run) {
  ++calls_;
  if (!device_.is_cuda()) return bench::Milliseconds(device_, run);
  // Longer than any call needs to be enqueued. A call that is still late waits for the GPU.
  constexpr double kLongestSpinMs = 50;
  const auto [ms, late] = MillisecondsAfterSpin(spin_ms_, run);
  if (late) {
    ++late_;
    spin_ms_ = std::min(2 * spin_ms_, kLongestSpinMs);
  }
  return ms;
}

int64_t PeakBytes(at::Device device) {
  HL_CHECK(device.is_cuda(), "the allocator of the CPU counts nothing");
  return CudaPeakBytes();
}
void ForgetPeakBytes(at::Device device) {
  HL_CHECK(device.is_cuda(), "the allocator of the CPU counts nothing");
  ForgetCudaPeakBytes();
}

int64_t CacheBytes(at::Device device) { return device.is_cuda() ? CudaCacheBytes() : 0; }
std::string DeviceName(at::Device device) { return device.is_cuda() ? CudaName() : "cpu"; }

MemoryCeiling::MemoryCeiling(at::Device device, int64_t bytes, Kind kind)
    : kind_(kind),
      from_(at::empty({bytes / 8}, at::TensorOptions(device).dtype(at::kFloat)).fill_(1)),
      to_(at::empty_like(from_).fill_(0)) {}

double MemoryCeiling::GigabytesPerSecond() {
  const double ms = Milliseconds(from_.device(), [&] {
    if (kind_ == Kind::kInPlace) {
      from_.neg_();
    } else if (from_.is_cpu()) {
      CopyOnCpu(from_, to_);
    } else {
      to_.copy_(from_);
    }
  });
  return 8e-6 * static_cast<double>(from_.numel()) / ms;
}

}  // namespace halflife::bench
