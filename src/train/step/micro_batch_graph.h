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
// skip its unused entries. A micro-batch with still more documents is recorded anew. Rows of one
// document each have a second recording.
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

  // Runs or replays a micro-batch. The first one of a form runs normally and fills the caches that
  // later ones use: kernel tables, workspaces of matrix products. The next one is recorded.
  at::Tensor Run(const eval::BatchTensors& batch);
  int64_t num_replays() const { return num_replays_; }

 private:
  // The launches of a micro-batch depend only on these properties.
  struct Form {
    int64_t batch = 0, seq_len = 0;
    int64_t num_loss_rows = 0;  // the head computes only tokens with a target if these are few
    bool packed = false;        // documents start within rows
    bool operator==(const Form&) const = default;
  };
  // The last kept micro-batch of one kind of rows.
  struct Recording {
    explicit Recording(ops::GraphMemory memory) : graph(memory) {}
    bool Fits(const eval::BatchTensors& other, const Form& other_form) const;

    Form form;                                // of `batch`
    std::optional<eval::BatchTensors> batch;  // the inputs of the recorded graph
    // Documents that may start within the rows of `batch`, and their chunks.
    int64_t max_starts = 0;
    std::shared_ptr<ops::SequenceChunks> chunks;
    at::Tensor result;  // the output of the recording
    ops::DeviceGraph graph;
    bool is_recorded = false;
    int num_kept = 0;  // micro-batches kept since the last replay
  };

  static Form FormOf(const eval::BatchTensors& batch);
  bool CanRecord(const eval::BatchTensors& batch, const Form& form, const Recording& recording);
  void LogLaunches(const std::string& reason);
  // Makes `batch` the one whose tensors the recording reads, with room for more documents.
  static void Keep(const eval::BatchTensors& batch, const Form& form, Recording& recording);
  static void Fill(const eval::BatchTensors& batch, Recording& recording);
  at::Tensor ComputeKept(const Recording& recording) const;

  at::Device device_;
  Compute compute_;
  std::string fixed_;
  // Rows with one document each have kernels of their own, and so a recording of their own. The two
  // are never replayed at the same time.
  ops::GraphMemory memory_ = ops::GraphMemory::New();
  Recording rows_of_one_{memory_}, packed_rows_{memory_};
  int64_t num_replays_ = 0;
  bool logged_ = false;
};

}  // namespace halflife::train
