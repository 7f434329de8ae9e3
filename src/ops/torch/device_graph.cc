#include "ops/torch/device_graph.h"

#include "core/error.h"

#ifdef HALFLIFE_WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <memory>
#include <mutex>

#include "kernels/common/cuda/launch_check.h"
#endif

namespace halflife::ops {

#ifdef HALFLIFE_WITH_CUDA

namespace {

// One a device, and not the default one, which cannot be recorded. cuBLAS keeps memory for each
// stream that it has ever been on.
c10::cuda::CUDAStream RecordingStream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device))
      .first->second;
}

class CapturedLaunches {
 public:
  CapturedLaunches(at::Device device, const std::function<void()>& run) {
    const c10::cuda::CUDAGuard on_device(device);
    // What was queued before is done, wherever: nothing is recorded of it. What it left with the
    // allocator the graph's own memory may need.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    const c10::cuda::CUDAStreamGuard on_stream(RecordingStream(device.index()));
    // Other threads, of savers and watchdogs, may call CUDA meanwhile.
    graph_->capture_begin(/*pool=*/{0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      run();
    } catch (...) {
      End();
      throw;
    }
    graph_->capture_end();
  }
  void Replay() { graph_->replay(); }

 private:
  // A recording that failed: its own error counts, and not that CUDA dislikes the end. After that
  // the allocator goes on asking the graph which streams are recorded, so it stays.
  void End() noexcept {
    try {
      graph_->capture_end();
    } catch (const std::exception&) {
      static_cast<void>(graph_.release());
    }
  }
  std::unique_ptr<at::cuda::CUDAGraph> graph_ = std::make_unique<at::cuda::CUDAGraph>();
};

}  // namespace

// Checked launches are waited for one by one, which a recording cannot be.
bool DeviceGraph::IsOn(at::Device device) {
  return device.is_cuda() && !kernels::LaunchesAreChecked();
}

void DeviceGraph::Record(at::Device device, const std::function<void()>& run) {
  if (device.is_cpu()) {
    replay_ = run;
    return;
  }
  HL_CHECK(IsOn(device), "a graph of launches on ", device.str(), ", where each one is checked");
  if (is_recorded()) {
    c10::cuda::device_synchronize();  // its last replay may still run
    replay_ = nullptr;
  }
  replay_ = [launches = std::make_shared<CapturedLaunches>(device, run)] { launches->Replay(); };
}

#else

bool DeviceGraph::IsOn(at::Device) { return false; }

void DeviceGraph::Record(at::Device device, const std::function<void()>& run) {
  HL_CHECK(device.is_cpu(), "a graph of launches on ", device.str(), " in a build for the CPU");
  replay_ = run;
}

#endif

void DeviceGraph::Replay() {
  HL_CHECK(is_recorded(), "a replay of a graph that was not recorded");
  replay_();
}

}  // namespace halflife::ops
