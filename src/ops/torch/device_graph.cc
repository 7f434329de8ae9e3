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

// Returns the recording stream of the device. It must not be the default stream, which cannot be
// recorded. It is reused because cuBLAS keeps a workspace for every stream that it has run on.
// Kernels of a graph keep its priority, so it has that of the stream that computes.
c10::cuda::CUDAStream RecordingStream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  const int priority = c10::cuda::getCurrentCUDAStream(device).priority();
  return streams.emplace(device, c10::cuda::getStreamFromPool(priority, device)).first->second;
}

class CapturedLaunches {
 public:
  CapturedLaunches(at::Device device, const GraphMemory& memory, const std::function<void()>& run) {
    const c10::cuda::CUDAGuard on_device(device);
    // Waits for all queued work, because the recording must not include it, and returns cached
    // blocks to the device, because the graph's private pool may need the memory.
    c10::cuda::device_synchronize();
    c10::cuda::CUDACachingAllocator::emptyCache();
    const c10::cuda::CUDAStreamGuard on_stream(RecordingStream(device.index()));
    // Other threads (checkpoint writers, watchdogs) may call CUDA during the capture.
    graph_->capture_begin({memory.id.first, memory.id.second}, cudaStreamCaptureModeThreadLocal);
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
  // Ends a capture that failed. The original exception is reported, and an error from ending the
  // capture is ignored. The graph object stays alive because the allocator keeps querying it for
  // its capture state.
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

GraphMemory GraphMemory::New() { return {at::cuda::graph_pool_handle()}; }

// Checked launches synchronize after every kernel, which a capture does not allow.
bool DeviceGraph::IsOn(at::Device device) {
  return device.is_cuda() && !kernels::LaunchesAreChecked();
}

void DeviceGraph::Record(at::Device device, const std::function<void()>& run) {
  if (device.is_cpu()) {
    replay_ = run;
    return;
  }
  HL_CHECK(IsOn(device), "cannot record a graph on ", device.str(),
           ": every launch is checked there. Unset HALFLIFE_CHECK_LAUNCHES.");
  if (is_recorded()) {
    const c10::cuda::CUDAGuard on_device(device);
    c10::cuda::device_synchronize();  // the last replay may still be running
    replay_ = nullptr;
  }
  replay_ = [launches = std::make_shared<CapturedLaunches>(device, memory_, run)] {
    launches->Replay();
  };
}

#else

GraphMemory GraphMemory::New() { return {}; }

bool DeviceGraph::IsOn(at::Device) { return false; }

void DeviceGraph::Record(at::Device device, const std::function<void()>& run) {
  HL_CHECK(device.is_cpu(), "cannot record a graph on ", device.str(),
           ": this build has no CUDA. Use a CUDA build.");
  replay_ = run;
}

#endif

void DeviceGraph::Replay() {
  HL_CHECK(is_recorded(), "the graph was not recorded. Call Record() before Replay().");
  replay_();
}

}  // namespace halflife::ops
