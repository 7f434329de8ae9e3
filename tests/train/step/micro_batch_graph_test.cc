// Checks which micro-batches are replayed and which tensors a replay reads. On the CPU, a replay
// runs the recorded function again.
#include "train/step/micro_batch_graph.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/expect_error.h"

namespace halflife::train {
namespace {

eval::BatchTensors BatchOf(int32_t token, std::vector<int32_t> starts = {0, 4, 8}) {
  data::Batch batch{.batch_size = 2, .seq_len = 4, .cu_seqlens = std::move(starts)};
  batch.inputs.assign(8, token);
  batch.targets.assign(8, token);
  batch.samples = {static_cast<uint64_t>(token), 100};
  batch.num_targets = 8;
  return eval::ToTensors(batch, at::kCPU);
}

class MicroBatchGraphTest : public testing::Test {
 protected:
  double Run(const eval::BatchTensors& batch) { return graph_.Run(batch).item<double>(); }

  std::vector<const void*> addresses_;  // Addresses of the inputs of each computation.
  MicroBatchGraph graph_{
      at::kCPU, [this](const eval::BatchTensors& batch) {
        addresses_.push_back(batch.inputs.const_data_ptr());
        return (batch.inputs.sum() + 10 * batch.targets.sum() + 1000 * batch.samples.sum())
            .to(at::kDouble);
      }};
  static double Want(int token) { return 8 * token + 80 * token + 1000 * (token + 100); }
};

TEST_F(MicroBatchGraphTest, ReplaysReadOtherTokensAtTheFirstOnesAddresses) {
  for (int token = 1; token <= 4; ++token) EXPECT_EQ(Run(BatchOf(token)), Want(token)) << token;
  EXPECT_EQ(graph_.num_replays(), 3);
  for (const void* address : addresses_) EXPECT_EQ(address, addresses_[0]);
}

TEST_F(MicroBatchGraphTest, ResultsOutliveTheNextReplay) {
  Run(BatchOf(1));
  const at::Tensor second = graph_.Run(BatchOf(2));
  Run(BatchOf(3));
  EXPECT_EQ(second.item<double>(), Want(2));
}

// The numbers of targets do not matter while the head computes all tokens.
TEST_F(MicroBatchGraphTest, OtherFormsAreComputedAsTheyAre) {
  EXPECT_EQ(Run(BatchOf(3)), Want(3));
  eval::BatchTensors few = BatchOf(4);
  few.num_targets = 3;
  EXPECT_EQ(Run(few), Want(4));
  eval::BatchTensors short_one = BatchOf(5);
  short_one.inputs = short_one.inputs.narrow(0, 0, 1);
  EXPECT_EQ(Run(short_one), Want(5) - 4 * 5);
  EXPECT_EQ(Run(BatchOf(6)), Want(6));
  EXPECT_EQ(graph_.num_replays(), 0);
  eval::BatchTensors most = BatchOf(7);
  most.num_targets = 5;
  EXPECT_EQ(Run(most), Want(7));
  EXPECT_EQ(graph_.num_replays(), 1);
  EXPECT_EQ(addresses_.back(), addresses_[addresses_.size() - 2]);
}

// Starts of documents at 1, 2, ...
std::vector<int32_t> FirstStarts(int32_t count) {
  std::vector<int32_t> starts(count);
  std::iota(starts.begin(), starts.end(), 1);
  return starts;
}

// Rows with documents: two of `seq_len` tokens.
class PackedMicroBatchGraph : public testing::Test {
 protected:
  // `starts` are those within the rows.
  static eval::BatchTensors BatchOf(int64_t seq_len, const std::vector<int32_t>& starts) {
    data::Batch batch{.batch_size = 2, .seq_len = seq_len, .cu_seqlens = starts};
    for (const int64_t start : {int64_t{0}, seq_len, 2 * seq_len})
      batch.cu_seqlens.push_back(static_cast<int32_t>(start));
    std::ranges::sort(batch.cu_seqlens);
    batch.inputs.assign(2 * seq_len, static_cast<int32_t>(starts.size()));
    batch.targets = batch.inputs;
    batch.samples = {0, 1};
    batch.num_targets = 2 * seq_len;
    return eval::ToTensors(batch, at::kCPU);
  }
  // Returns a value that depends on everything that follows from the documents.
  static at::Tensor ReadDocuments(const eval::BatchTensors& batch) {
    const model::SequenceSlice& slice = batch.slice;
    double sum = batch.inputs.sum().item<double>() + slice.positions.square().sum().item<double>();
    if (slice.has_boundaries())
      sum += slice.documents.sum().item<double>() + 7 * slice.starts.sum().item<double>();
    const int32_t* const begin = slice.chunks->sequence_begin();
    for (int row = 0; row < 2; ++row)
      for (int i = begin[row]; i < begin[row + 1]; ++i)
        sum += (i + 1) * slice.chunks->chunks()[i].length + 100 * row;
    sum += slice.chunks->runs().begin.sum().item<double>();
    const auto table = slice.rotary->Of(slice.positions, 2, 10000);
    return at::full({1}, sum, at::kDouble) + table.cos.index({table.rows.flatten()}).sum();
  }
  void ExpectAsWithoutGraph(const eval::BatchTensors& batch) {
    const at::Tensor want = ReadDocuments(batch);
    EXPECT_TRUE(graph_.Run(batch).equal(want));
  }
  MicroBatchGraph graph_{at::kCPU, [this](const eval::BatchTensors& batch) {
                           addresses_.push_back(batch.slice.chunks->chunks());
                           num_chunks_.push_back(batch.slice.chunks->num_chunks());
                           return ReadDocuments(batch);
                         }};
  std::vector<const void*> addresses_;
  std::vector<int> num_chunks_;
};

TEST_F(PackedMicroBatchGraph, DocumentsAreDataAtFixedAddresses) {
  for (const std::vector<int32_t>& starts :
       {std::vector<int32_t>{5}, {1, 2, 90}, {70, 71, 72, 73}, {33}})
    ExpectAsWithoutGraph(BatchOf(50, starts));
  EXPECT_EQ(graph_.num_replays(), 3);
  for (const void* address : addresses_) EXPECT_EQ(address, addresses_[0]);
  for (const int num_chunks : num_chunks_) EXPECT_EQ(num_chunks, 2 * 2 + 16);
}

TEST_F(PackedMicroBatchGraph, MoreDocumentsAreRecordedAnew) {
  const std::vector<int32_t> many = FirstStarts(20);
  ExpectAsWithoutGraph(BatchOf(50, {5}));
  ExpectAsWithoutGraph(BatchOf(50, {6}));
  ExpectAsWithoutGraph(BatchOf(50, many));  // above 16
  EXPECT_EQ(graph_.num_replays(), 1);
  EXPECT_EQ(num_chunks_.back(), 2 * 2 + 32);
  ExpectAsWithoutGraph(BatchOf(50, {7}));  // the room stays
  ExpectAsWithoutGraph(BatchOf(50, many));
  EXPECT_EQ(graph_.num_replays(), 3);
}

TEST_F(PackedMicroBatchGraph, TooManyDocumentsAreLaunched) {
  for (int time = 0; time < 2; ++time) ExpectAsWithoutGraph(BatchOf(200, FirstStarts(129)));
  EXPECT_EQ(graph_.num_replays(), 0);
  // No room is kept for more documents than a recording may have.
  for (int time = 0; time < 2; ++time) ExpectAsWithoutGraph(BatchOf(200, FirstStarts(120)));
  EXPECT_EQ(graph_.num_replays(), 1);
  EXPECT_EQ(num_chunks_.back(), 2 * 7 + 128);
}

TEST_F(PackedMicroBatchGraph, RowsOfOneDocumentHaveTheirOwnRecording) {
  for (const int32_t start : {5, 300, 6})
    for (const auto& starts : {std::vector<int32_t>{start}, {}})
      ExpectAsWithoutGraph(BatchOf(200, starts));
  EXPECT_EQ(graph_.num_replays(), 4);
}

// Each micro-batch has another number of targets, and few.
TEST_F(PackedMicroBatchGraph, FormsThatChangeAllTheTimeAreLaunched) {
  const auto run = [&](int64_t num_targets) {
    eval::BatchTensors batch = BatchOf(50, {5});
    batch.num_targets = num_targets;
    EXPECT_TRUE(graph_.Run(batch).equal(ReadDocuments(batch)));
    return num_chunks_.back() == 2 * 2 + 16;  // read from a kept table
  };
  for (int64_t i = 1; i <= 8; ++i) EXPECT_TRUE(run(i)) << i;
  for (int64_t i = 9; i <= 12; ++i) EXPECT_FALSE(run(i)) << i;
  EXPECT_TRUE(run(8));
  EXPECT_EQ(graph_.num_replays(), 1);
  EXPECT_TRUE(run(9));  // is kept again after a replay
}

TEST_F(PackedMicroBatchGraph, AMixerWithFixedDocumentsIsLaunched) {
  MicroBatchGraph graph(at::kCPU, ReadDocuments, "the mixer of layer 0, leap,");
  for (const int32_t start : {5, 6}) {
    const eval::BatchTensors batch = BatchOf(50, {start});
    EXPECT_TRUE(graph.Run(batch).equal(ReadDocuments(batch)));
  }
  EXPECT_EQ(graph.num_replays(), 0);
  for (int time = 0; time < 2; ++time) graph.Run(BatchOf(50, {}));
  EXPECT_EQ(graph.num_replays(), 1);
}

TEST(DeviceGraph, OnTheCpuAReplayRunsAgain) {
  EXPECT_FALSE(ops::DeviceGraph::IsOn(at::kCPU));
  ops::DeviceGraph graph;
  EXPECT_HL_ERROR(graph.Replay(), ExitCode::kInternal, "not recorded");
  int runs = 0;
  graph.Record(at::kCPU, [&] { ++runs; });
  EXPECT_EQ(runs, 0);
  graph.Replay();
  graph.Replay();
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace halflife::train
