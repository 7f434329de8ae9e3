// A recomputed forward receives what the first one exchanged, even if the reader changed it in
// place, and sends nothing. A different request is an error.
#include "ops/sequence/segment_tape.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using Direction = SegmentGroup::Direction;

// The second of two ranks. Its fake neighbour counts how often it was reached.
class FakeGroup final : public SegmentGroup {
 public:
  int times = 0;

  int rank() const override { return 1; }
  int size() const override { return 2; }
  void Settle() override {}
  double TakeWaitSeconds() override { return 0; }
  at::Tensor AllGather(const at::Tensor&, const char*) override { return Told(); }
  at::Tensor ReduceScatter(const at::Tensor&, const char*) override { return Told(); }
  std::unique_ptr<Transfer> Shift(const at::Tensor&, const at::Tensor& received, Direction,
                                  const char*) override {
    return std::make_unique<Late>(received, Told());
  }

 private:
  // Arrives when it is waited for.
  class Late final : public Transfer {
   public:
    Late(at::Tensor received, at::Tensor value)
        : received_(std::move(received)), value_(std::move(value)) {}
    void Wait() override {
      if (received_.defined()) received_.copy_(value_);
    }

   private:
    at::Tensor received_, value_;
  };
  at::Tensor Told() { return at::full({2}, ++times); }
};

class SegmentTapeTest : public testing::Test {
 protected:
  std::shared_ptr<FakeGroup> group_ = std::make_shared<FakeGroup>();
  SegmentTape tape_{group_};

  // Returns the sum of all received values, each of which is first doubled in place.
  double Exchange() {
    double sum = 0;
    at::Tensor gathered = tape_.AllGather(at::full({2}, 0.0), "gather");
    at::Tensor scattered = tape_.ReduceScatter(at::full({2}, 0.0), "scatter");
    at::Tensor received = at::empty({2});
    const auto nothing = tape_.Shift(at::full({2}, 0.0), {}, Direction::kToNext, "send");
    const auto transfer = tape_.Shift({}, received, Direction::kToNext, "receive");
    nothing->Wait();
    transfer->Wait();
    for (at::Tensor* x : {&gathered, &scattered, &received}) sum += x->mul_(2).sum().item<double>();
    return sum;
  }
};

TEST_F(SegmentTapeTest, ReplaysWhatTheFirstRunReceived) {
  for (int run = 0; run < 3; ++run) {
    double sum = 0;
    tape_.Run([&] { sum = Exchange(); });
    EXPECT_EQ(sum, 2 * 2 * (1 + 2 + 4));
    EXPECT_EQ(group_->times, 4);
  }
}

TEST_F(SegmentTapeTest, PassesOnWhatIsOutsideOfRuns) {
  tape_.Run([&] { Exchange(); });
  EXPECT_EQ(Exchange(), 2 * 2 * (5 + 6 + 8));
  tape_.Run([&] { Exchange(); });
  EXPECT_EQ(Exchange(), 2 * 2 * (9 + 10 + 12));
}

TEST_F(SegmentTapeTest, NotesOnceWhatWasAsked) {
  for (int run = 0; run < 2; ++run) tape_.Run([&] { tape_.RecordRead(3); });
  EXPECT_EQ(group_->num_reads(), 1);
  EXPECT_EQ(group_->reaches(), std::set<int64_t>{3});
  EXPECT_EQ(tape_.num_reads(), 2);
}

TEST_F(SegmentTapeTest, RefusesARunThatAsksForSomethingElse) {
  const auto gather = [&] { tape_.AllGather(at::full({2}, 0.0), "gather"); };
  tape_.Run(gather);
  EXPECT_HL_ERROR(tape_.Run([&] { tape_.ReduceScatter(at::full({2}, 0.0), "scatter"); }),
                  ExitCode::kInternal, "asks for scatter as exchange 1, the first one for gather");
  EXPECT_HL_ERROR(tape_.Run([] {}), ExitCode::kInternal, "made 0 exchanges, the first one 1");
  const auto twice = [&] {
    gather();
    gather();
  };
  EXPECT_HL_ERROR(tape_.Run(twice), ExitCode::kInternal, "as exchange 2, the first one made 1");
}

}  // namespace
}  // namespace halflife::ops
