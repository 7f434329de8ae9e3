// Records a sequence of small kernels once and launches it as one CUDA graph. The work must be
// identical each time, including shapes and addresses; only the contents of the tensors that it
// reads may change.
//
//   DeviceGraph graph;
//   y = Step(x);                                       // makes what later calls reuse
//   graph.Record(x.device(), [&] { y = Step(x); });    // computes nothing
//   x.copy_(next);
//   graph.Replay();                                    // y is that of next
//
// On the CPU, Replay() calls the function again, so that code that records graphs can be tested
// there.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <utility>

namespace halflife::ops {

// Graphs with one memory use the same bytes in turn, and so need only those of the largest. They
// must be replayed one after the other on one stream. Nothing that a recording created may be read
// after another graph was replayed. A default value gives each graph memory of its own.
struct GraphMemory {
  static GraphMemory New();
  std::pair<uint64_t, uint64_t> id;
};

class DeviceGraph {
 public:
  // Returns true if graphs reduce launch overhead on this device. False on the CPU, and if each
  // launch is checked (HALFLIFE_CHECK_LAUNCHES).
  static bool IsOn(at::Device device);

  explicit DeviceGraph(GraphMemory memory = {}) : memory_(memory) {}
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // Records the work that `run` launches on the device's current stream and replaces any earlier
  // recording. Requirements: `run` has been called before; it neither reads values back to the host
  // nor uploads any; every tensor that it reads or writes outlives the graph. Tensors that it
  // creates live in the graph's memory and are overwritten by each replay. An exception from `run`
  // is rethrown and leaves the graph empty.
  void Record(at::Device device, const std::function<void()>& run);
  bool is_recorded() const { return replay_ != nullptr; }
  // Launches the recording on the device's current stream without waiting for it.
  void Replay();

 private:
  GraphMemory memory_;
  std::function<void()> replay_;  // null: nothing is recorded
};

}  // namespace halflife::ops
