#include "train/step/micro_batch_graph.h"

#include <utility>

#include "core/log.h"

namespace halflife::train {
namespace {

// The tables of documents have one entry per document, so other batches differ in form.
bool IsOneDocumentARow(const eval::BatchTensors& batch) { return !batch.slice.has_boundaries(); }

}  // namespace

// The number of targets must match, because the head computes only the tokens that have a target if
// these are few.
bool MicroBatchGraph::HasForm(const eval::BatchTensors& batch) const {
  return batch.inputs.sizes() == batch_->inputs.sizes() && batch.num_targets == batch_->num_targets;
}

at::Tensor MicroBatchGraph::Run(const eval::BatchTensors& batch) {
  if (!IsOneDocumentARow(batch)) {
    if (!std::exchange(logged_, true))
      HL_INFO("train",
              "train.cuda_graphs: micro-batches in which a document starts within a row are "
              "launched normally");
    return compute_(batch);
  }
  if (!batch_.has_value() || !HasForm(batch)) {
    batch_ = batch;
    is_recorded_ = false;
    result_ = compute_(*batch_);
    return result_.clone();
  }
  batch_->inputs.copy_(batch.inputs);
  batch_->targets.copy_(batch.targets);
  batch_->samples.copy_(batch.samples);
  if (!std::exchange(is_recorded_, true))
    graph_.Record(device_, [this] { result_.copy_(compute_(*batch_)); });
  graph_.Replay();
  ++num_replays_;
  return result_.clone();  // The next replay overwrites it.
}

}  // namespace halflife::train
