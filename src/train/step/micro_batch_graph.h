// Replays forward and backward of micro-batches from one recorded graph (train.cuda_graphs). The
// step time of a small model is then not limited by kernel launches. A micro-batch is replayed if
// its form equals that of the recorded one. All others run normally.
//
//   MicroBatchGraph graph(device, [&](const eval::BatchTensors& batch) { return SumsOf(batch); });
//   const at::Tensor sums = graph.Run(tensors);
//
// Rows may hold several documents. Everything that depends on where they start is then data in
// tensors at fixed addresses: positions, documents, starts, and a chunk table that has entries for
// more documents than the recorded micro-batch had (kernels/common/chunks/chunk_table.h). Kernels
// skip its unused entries. A micro-batch with still more documents is recorded anew.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
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

  // `fixed_documents` names what makes launches depend on where documents start
  // (LanguageModel::LayerOfFixedDocuments). If it is not empty, only micro-batches whose rows are
  // one document each are replayed.
  MicroBatchGraph(at::Device device, Compute compute, std::string fixed_documents = "")
      : device_(device), compute_(std::move(compute)), fixed_(std::move(fixed_documents)) {}

  // The first micro-batch of a form runs normally and fills the caches that later ones use: kernel
  // tables, workspaces of matrix products. The next one is recorded.
  at::Tensor Run(const eval::BatchTensors& batch);
  int64_t num_replays() const { return num_replays_; }

 private:
  // What the launches of a micro-batch depend on.
  struct Form {
    int64_t batch = 0, seq_len = 0;
    int64_t num_loss_rows = 0;  // the head computes only tokens with a target if these are few
    bool packed = false;        // documents start within rows
    bool operator==(const Form&) const = default;
  };
  static Form FormOf(const eval::BatchTensors& batch);
  bool CanRecord(const eval::BatchTensors& batch, const Form& form);
  // Makes `batch` the one whose tensors a recording reads, with room for more documents.
  void Keep(const eval::BatchTensors& batch);
  void Fill(const eval::BatchTensors& batch);
  std::shared_ptr<ops::SequenceChunks> ChunksOf(const eval::BatchTensors& batch) const;
  at::Tensor ComputeKept() const;

  at::Device device_;
  Compute compute_;
  std::string fixed_;
  Form form_;                                // of batch_
  std::optional<eval::BatchTensors> batch_;  // the inputs of the recorded graph
  // Documents that may start within the rows of batch_, and their chunks.
  int64_t max_starts_ = 0;
  std::shared_ptr<ops::SequenceChunks> chunks_;
  at::Tensor result_;  // the output of the recording
  ops::DeviceGraph graph_;
  bool is_recorded_ = false;  // the current form is recorded
  int64_t num_replays_ = 0;
  bool logged_ = false;  // the message about document boundaries was logged
};

}  // namespace halflife::train
