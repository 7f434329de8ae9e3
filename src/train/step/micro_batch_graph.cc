#include "train/step/micro_batch_graph.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/log.h"
#include "kernels/common/chunks/chunk_table.h"
#include "ops/cross_entropy/linear_cross_entropy.h"

namespace halflife::train {
namespace {

// With more documents, the unused entries of a chunk table would cost more than launches do.
constexpr int64_t kMaxStartsOfRow = 64;
constexpr int64_t kMinStarts = 16;

// The number of documents that start within a row.
int64_t NumStarts(const eval::BatchTensors& batch) {
  return static_cast<int64_t>(batch.slice.document_starts.size()) - batch.slice.batch;
}

// A quarter more than now, because other micro-batches have other numbers.
int64_t RoomFor(int64_t starts) {
  const auto wanted = static_cast<uint64_t>(std::max(kMinStarts, starts + starts / 4));
  return static_cast<int64_t>(std::bit_ceil(wanted));
}

}  // namespace

MicroBatchGraph::Form MicroBatchGraph::FormOf(const eval::BatchTensors& batch) {
  return {.batch = batch.inputs.size(0),
          .seq_len = batch.inputs.size(1),
          .num_loss_rows = ops::NumLossRows(batch.num_targets, batch.inputs.numel()),
          .packed = batch.slice.has_boundaries()};
}

// Rows with one document each have kernels of their own, so a recording of packed rows cannot
// replay them. It is kept, because in packed text they are rare.
bool MicroBatchGraph::CanRecord(const eval::BatchTensors& batch, const Form& form) {
  if (!form.packed) return !form_.packed;
  if (fixed_.empty()) return NumStarts(batch) <= kMaxStartsOfRow * form.batch;
  if (!std::exchange(logged_, true))
    HL_INFO("train",
            "train.cuda_graphs: micro-batches in which a document starts within a row are launched "
            "normally, because ",
            fixed_, " does not support recorded documents");
  return false;
}

std::shared_ptr<ops::SequenceChunks> MicroBatchGraph::ChunksOf(
    const eval::BatchTensors& batch) const {
  const model::SequenceSlice& slice = batch.slice;
  const int64_t chunk_size = slice.chunks->chunk_size;
  return ops::MakeSequenceChunks(
      {.batch = slice.batch,
       .seq_len = slice.seq_len,
       .chunk_size = chunk_size,
       .document_starts = slice.document_starts,
       .capacity = kernels::MaxNumChunks(slice.batch, slice.seq_len, chunk_size,
                                         slice.batch + max_starts_)},
      slice.positions.device());
}

void MicroBatchGraph::Keep(const eval::BatchTensors& batch) {
  form_ = FormOf(batch);
  batch_ = batch;
  is_recorded_ = false;
  if (!form_.packed) return;
  max_starts_ = RoomFor(NumStarts(batch));
  batch_->slice.chunks = chunks_ = ChunksOf(batch);
}

void MicroBatchGraph::Fill(const eval::BatchTensors& batch) {
  batch_->inputs.copy_(batch.inputs);
  batch_->targets.copy_(batch.targets);
  batch_->samples.copy_(batch.samples);
  model::SequenceSlice& slice = batch_->slice;
  if (slice.given_position_ids.defined())
    slice.given_position_ids.copy_(batch.slice.given_position_ids);
  if (!form_.packed) return;
  slice.positions.copy_(batch.slice.positions);
  slice.documents.copy_(batch.slice.documents);
  slice.starts.copy_(batch.slice.starts);
  slice.document_starts = batch.slice.document_starts;
  chunks_->Assign(*ChunksOf(batch));
}

at::Tensor MicroBatchGraph::ComputeKept() const {
  eval::BatchTensors batch = *batch_;
  if (form_.packed || batch.slice.given_position_ids.defined()) {
    // Positions differ between micro-batches, so their tables are part of the recorded work.
    batch.slice.rotary = std::make_shared<ops::RotaryTables>();
    batch.slice.of_positions = std::make_shared<model::PositionTensors>();
  }
  return compute_(batch);
}

at::Tensor MicroBatchGraph::Run(const eval::BatchTensors& batch) {
  const Form form = FormOf(batch);
  if (!CanRecord(batch, form)) return compute_(batch);
  if (!batch_.has_value() || form != form_ || (form.packed && NumStarts(batch) > max_starts_)) {
    Keep(batch);
    result_ = ComputeKept();
    return result_.clone();
  }
  Fill(batch);
  if (!std::exchange(is_recorded_, true))
    graph_.Record(device_, [this] { result_.copy_(ComputeKept()); });
  graph_.Replay();
  ++num_replays_;
  return result_.clone();  // the next replay overwrites it
}

}  // namespace halflife::train
