#include "train/step/micro_batch_graph.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/concat.h"
#include "core/log.h"
#include "kernels/common/chunks/chunk_table.h"
#include "ops/cross_entropy/linear_cross_entropy.h"

namespace halflife::train {
namespace {

// With more documents, the unused entries of a chunk table would cost more than launches do.
constexpr int64_t kMaxStartsOfRow = 64;
constexpr int64_t kMinStarts = 16;
// After this many consecutive micro-batches without a replay, no further one is kept, because
// keeping one has a cost.
constexpr int kMaxKept = 8;

// Returns the number of documents that start within a row.
int64_t NumStarts(const eval::BatchTensors& batch) {
  return static_cast<int64_t>(batch.slice.document_starts.size()) - batch.slice.batch;
}

// Returns the number of starts to allocate: a quarter more than now, because other micro-batches
// have more documents.
int64_t RoomFor(int64_t starts, int64_t batch) {
  const auto wanted = static_cast<uint64_t>(std::max(kMinStarts, starts + starts / 4));
  return std::min(static_cast<int64_t>(std::bit_ceil(wanted)), kMaxStartsOfRow * batch);
}

std::shared_ptr<ops::SequenceChunks> ChunksOf(const eval::BatchTensors& batch, int64_t max_starts) {
  const model::SequenceSlice& slice = batch.slice;
  const int64_t chunk_size = slice.chunks->chunk_size;
  return ops::MakeSequenceChunks(
      {.batch = slice.batch,
       .seq_len = slice.seq_len,
       .chunk_size = chunk_size,
       .document_starts = slice.document_starts,
       .capacity =
           kernels::MaxNumChunks(slice.batch, slice.seq_len, chunk_size, slice.batch + max_starts)},
      slice.positions.device());
}

}  // namespace

MicroBatchGraph::Form MicroBatchGraph::FormOf(const eval::BatchTensors& batch) {
  return {.batch = batch.inputs.size(0),
          .seq_len = batch.inputs.size(1),
          .num_loss_rows = ops::NumLossRows(batch.num_targets, batch.inputs.numel()),
          .packed = batch.slice.has_boundaries()};
}

bool MicroBatchGraph::Recording::Fits(const eval::BatchTensors& other,
                                      const Form& other_form) const {
  return batch.has_value() && other_form == form &&
         (!form.packed || NumStarts(other) <= max_starts);
}

void MicroBatchGraph::LogLaunches(const std::string& reason) {
  if (!std::exchange(logged_, true))
    HL_INFO("train", "train.cuda_graphs: some micro-batches are launched normally, because ",
            reason);
}

bool MicroBatchGraph::CanRecord(const eval::BatchTensors& batch, const Form& form,
                                const Recording& recording) {
  if (form.packed && !fixed_.empty()) {
    LogLaunches(fixed_ + " does not support recorded documents");
    return false;
  }
  if (form.packed && NumStarts(batch) > kMaxStartsOfRow * form.batch) {
    LogLaunches(Concat("more than ", kMaxStartsOfRow, " documents start in a row"));
    return false;
  }
  if (recording.num_kept < kMaxKept || recording.Fits(batch, form)) return true;
  LogLaunches("their forms change all the time (sizes, numbers of targets or of documents)");
  return false;
}

void MicroBatchGraph::Keep(const eval::BatchTensors& batch, const Form& form,
                           Recording& recording) {
  recording.form = form;
  recording.batch = batch;
  recording.is_recorded = false;
  ++recording.num_kept;
  if (!form.packed) return;
  recording.max_starts = RoomFor(NumStarts(batch), form.batch);
  recording.batch->slice.chunks = recording.chunks = ChunksOf(batch, recording.max_starts);
}

void MicroBatchGraph::Fill(const eval::BatchTensors& batch, Recording& recording) {
  recording.batch->inputs.copy_(batch.inputs);
  recording.batch->targets.copy_(batch.targets);
  recording.batch->samples.copy_(batch.samples);
  model::SequenceSlice& slice = recording.batch->slice;
  if (slice.given_position_ids.defined())
    slice.given_position_ids.copy_(batch.slice.given_position_ids);
  if (!recording.form.packed) return;
  slice.positions.copy_(batch.slice.positions);
  slice.documents.copy_(batch.slice.documents);
  slice.starts.copy_(batch.slice.starts);
  slice.document_starts = batch.slice.document_starts;
  recording.chunks->Assign(*ChunksOf(batch, recording.max_starts));
}

at::Tensor MicroBatchGraph::ComputeKept(const Recording& recording) const {
  eval::BatchTensors batch = *recording.batch;
  if (recording.form.packed || batch.slice.given_position_ids.defined()) {
    // Positions differ between micro-batches, so their tables are part of the recorded work.
    batch.slice.rotary = std::make_shared<ops::RotaryTables>();
    batch.slice.of_positions = std::make_shared<model::PositionTensors>();
  }
  return compute_(batch);
}

at::Tensor MicroBatchGraph::Run(const eval::BatchTensors& batch) {
  const Form form = FormOf(batch);
  Recording& recording = form.packed ? packed_rows_ : rows_of_one_;
  if (!CanRecord(batch, form, recording)) return compute_(batch);
  if (!recording.Fits(batch, form)) {
    Keep(batch, form, recording);
    recording.result = ComputeKept(recording);
    return recording.result.clone();
  }
  Fill(batch, recording);
  if (!std::exchange(recording.is_recorded, true))
    recording.graph.Record(device_, [&] { recording.result.copy_(ComputeKept(recording)); });
  recording.graph.Replay();
  recording.num_kept = 0;
  ++num_replays_;
  return recording.result.clone();  // the next replay overwrites it
}

}  // namespace halflife::train
