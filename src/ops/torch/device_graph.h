// Work of many small kernels recorded once and started again as one: a CUDA graph. For work that is
// the same each time, shapes and addresses too: what changes is in the tensors that it reads.
//
//   DeviceGraph graph;
//   y = Step(x);                                       // once, for what is made but once
//   graph.Record(x.device(), [&] { y = Step(x); });    // computes nothing
//   x.copy_(next);
//   graph.Replay();                                    // y is that of next
//
// On the CPU a replay runs it again, so that what records can be tried there.
#pragma once

#include <c10/core/Device.h>

#include <functional>

namespace halflife::ops {

class DeviceGraph {
 public:
  // Whether graphs save this device the launches: not the CPU, nor where each launch is checked
  // (HALFLIFE_CHECK_LAUNCHES).
  static bool IsOn(at::Device device);

  DeviceGraph() = default;
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  // What `run` starts on the device's current stream, in place of what was recorded before. It must
  // have run before, must read nothing back and upload nothing, and what it reads and writes must
  // live as long as the graph; tensors that it makes lie in the graph's memory, and the next replay
  // writes them anew. Passes on what `run` throws, and is then empty.
  void Record(at::Device device, const std::function<void()>& run);
  bool is_recorded() const { return replay_ != nullptr; }
  // On the device's current stream, without waiting.
  void Replay();

 private:
  std::function<void()> replay_;  // null: nothing was recorded
};

}  // namespace halflife::ops
