#include "profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "support/measure.h"

namespace halflife::bench {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr size_t kNumTop = 60;  // enough to name every kernel of a step

struct Sum {
  int64_t calls = 0;
  double ms = 0;
};

class Counts {
 public:
  explicit Counts(bool on_gpu) : on_gpu_(on_gpu) {}

  void Add(const profiler::KinetoEvent& event) {
    const std::string name = event.name();
    const bool of_gpu = event.deviceType() == at::kCUDA;
    const double ms = static_cast<double>(event.durationNs()) * 1e-6;
    if (of_gpu) {
      device_ms_ += ms;
      if (name.starts_with("Memcpy") || name.starts_with("Memset")) ++copies_;
    } else if (name.starts_with("cudaLaunch") || name.starts_with("cuLaunch")) {
      ++launches_;
    } else if (name.starts_with("cu") && name.find("Synchronize") != std::string::npos) {
      ++synchronisations_;
    }
    if (of_gpu != on_gpu_) return;
    Sum& sum = by_name_[name];
    ++sum.calls;
    sum.ms += ms;
  }

  nlohmann::ordered_json Report(double wall_ms) const {
    nlohmann::ordered_json report = {{"wall_ms", wall_ms}};
    if (on_gpu_)
      report.update({{"launches", launches_},
                     {"copies", copies_},
                     {"synchronisations", synchronisations_},
                     {"device_ms", device_ms_}});
    std::vector<std::pair<std::string, Sum>> names(by_name_.begin(), by_name_.end());
    std::ranges::sort(names, std::greater(), [](const auto& entry) { return entry.second.ms; });
    names.resize(std::min(names.size(), kNumTop));
    nlohmann::ordered_json top = nlohmann::ordered_json::array();
    for (const auto& [name, sum] : names)
      top.push_back({{"name", name}, {"calls", sum.calls}, {"ms", sum.ms}});
    report["top"] = top;
    return report;
  }

  bool saw_gpu() const { return launches_ > 0 && device_ms_ > 0; }

 private:
  bool on_gpu_;
  int64_t launches_ = 0, copies_ = 0, synchronisations_ = 0;
  double device_ms_ = 0;
  std::map<std::string, Sum> by_name_;
};

}  // namespace

nlohmann::ordered_json Profile(at::Device device, const std::function<void()>& run) {
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  Synchronise(device);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  const Stopwatch watch;
  run();
  Synchronise(device);
  const double wall_ms = watch.Seconds() * 1e3;
  const auto result = profiler::disableProfiler();
  Counts counts(device.is_cuda());
  for (const profiler::KinetoEvent& event : result->events()) counts.Add(event);
  HL_CHECK_AS(ExitCode::kEnvironment, !device.is_cuda() || counts.saw_gpu(),
              "LibTorch's profiler saw no kernel; it needs CUPTI (libcupti.so of the torch "
              "package's nvidia folder), and no other profiler around this program");
  return counts.Report(wall_ms);
}

}  // namespace halflife::bench
