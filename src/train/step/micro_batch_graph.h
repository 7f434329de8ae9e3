// Replays forward and backward of micro-batches from one recorded graph (train.cuda_graphs). The
// step time of a small model is then not limited by kernel launches. Micro-batches are replayed if
// each row is one document, and the numbers of rows, tokens and targets equal those of the previous
// micro-batch. All others run normally.
//
//   MicroBatchGraph graph(device, [&](const eval::BatchTensors& batch) { return SumsOf(batch); });
//   const at::Tensor sums = graph.Run(tensors);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "eval/batch_tensors.h"
#include "ops/torch/device_graph.h"

namespace halflife::train {

class MicroBatchGraph {
 public:
  // Must read only the tensors of a micro-batch, and nothing else that changes between
  // micro-batches. Must not upload anything or read anything back. May be called with another batch
  // than the one given to Run.
  using Compute = std::function<at::Tensor(const eval::BatchTensors& batch)>;

  MicroBatchGraph(at::Device device, Compute compute)
      : device_(device), compute_(std::move(compute)) {}

  // The first micro-batch of a form runs normally and fills the caches that later ones use: kernel
  // tables, workspaces of matrix products. The next one is recorded.
  at::Tensor Run(const eval::BatchTensors& batch);
  int64_t num_replays() const { return num_replays_; }

 private:
  bool HasForm(const eval::BatchTensors& batch) const;

  at::Device device_;
  Compute compute_;
  std::optional<eval::BatchTensors> batch_;  // The inputs of the recorded graph.
  at::Tensor result_;                        // The output of the recording.
  ops::DeviceGraph graph_;
  bool is_recorded_ = false;  // The current form is recorded.
  int64_t num_replays_ = 0;
  bool logged_ = false;  // The message about document boundaries was logged.
};

}  // namespace halflife::train
