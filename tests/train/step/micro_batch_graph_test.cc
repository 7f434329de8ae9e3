// Checks which micro-batches are replayed and which tensors a replay reads. On the CPU, a replay
// runs the recorded function again.
#include "train/step/micro_batch_graph.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

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

TEST_F(MicroBatchGraphTest, OtherFormsAreComputedAsTheyAre) {
  EXPECT_EQ(Run(BatchOf(1, {0, 2, 4, 8})), Want(1));  // A document starts within a row.
  EXPECT_EQ(Run(BatchOf(2)), Want(2));
  EXPECT_EQ(Run(BatchOf(3, {0, 4, 7, 8})), Want(3));
  eval::BatchTensors few = BatchOf(4);
  few.num_targets = 3;
  EXPECT_EQ(Run(few), Want(4));
  eval::BatchTensors short_one = BatchOf(5);
  short_one.inputs = short_one.inputs.narrow(0, 0, 1);
  EXPECT_EQ(Run(short_one), Want(5) - 4 * 5);
  EXPECT_EQ(Run(BatchOf(6)), Want(6));
  EXPECT_EQ(graph_.num_replays(), 0);
  EXPECT_EQ(Run(BatchOf(7)), Want(7));
  EXPECT_EQ(graph_.num_replays(), 1);
  EXPECT_EQ(addresses_.back(), addresses_[addresses_.size() - 2]);
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
