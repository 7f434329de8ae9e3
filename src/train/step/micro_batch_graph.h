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
  // Reads of a micro-batch only the tensors, and nothing else that changes between micro-batches;
  // uploads nothing, reads nothing back. May be called with another batch than Run was given.
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
  std::optional<eval::BatchTensors> batch_;  // of the form: what the recording reads
  at::Tensor result_;                        // what it writes
  ops::DeviceGraph graph_;
  bool is_recorded_ = false;  // the form
  int64_t num_replays_ = 0;
  bool told_ = false;  // that documents were met
};

}  // namespace halflife::train
