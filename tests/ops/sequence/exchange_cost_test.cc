// The predicted time of state exchanges, and the strategy that is chosen by it.
#include "ops/sequence/exchange_cost.h"

#include <gtest/gtest.h>

namespace halflife::ops {
namespace {

using enum StateStrategy;

// 10 us per message, 1 GB/s. The parts of all ranks arrive at each rank one after the other.
ops::ExchangeCost Network(int ranks) {
  return {.gather_s = 15e-6,
          .gather_s_per_byte = (ranks - 1) * 1e-9,
          .shift_s = 10e-6,
          .shift_s_per_byte = 1e-9};
}

TEST(ExchangeCost, IsTheTimeUntilTheLastRankHasItsState) {
  const ExchangeCost cost = Network(8);
  EXPECT_NEAR(cost.Seconds(kGather, 8, {.state = 1'000'000}), 15e-6 + 7e-3, 1e-12);
  EXPECT_NEAR(cost.Seconds(kRing, 8, {.state = 1'000'000}), 7 * (10e-6 + 1e-3), 1e-12);
  // The first of 4 pieces passes 7 links, and three more pieces follow it.
  EXPECT_NEAR(cost.Seconds(kScan, 8, {.state = 1'000'000}), 10 * (10e-6 + 0.25e-3), 1e-12);
}

TEST(ExchangeCost, OnlyAGatherSendsTransitions) {
  const ExchangeCost cost = Network(8);
  const ExchangeBytes bytes = {.state = 1'000'000, .transition = 500'000};
  EXPECT_NEAR(cost.Seconds(kGather, 8, bytes), 15e-6 + 7 * 1.5e-3, 1e-12);
  for (const StateStrategy strategy : {kRing, kScan})
    EXPECT_EQ(cost.Seconds(strategy, 8, bytes), cost.Seconds(strategy, 8, {.state = bytes.state}));
}

TEST(ExchangeCost, SmallStatesAreGatheredAndLargeOnesGoInPieces) {
  EXPECT_EQ(Network(8).Cheapest(8, {.state = 100}), kGather);
  EXPECT_EQ(Network(8).Cheapest(8, {.state = 100'000'000}), kScan);
  ExchangeCost fast_gather = Network(8);
  fast_gather.gather_s_per_byte = 1e-12;
  EXPECT_EQ(fast_gather.Cheapest(8, {.state = 100'000'000}), kGather);
  // With two ranks, a ring sends one message, pieces are more messages, and a gather delays the
  // first rank.
  EXPECT_EQ(Network(2).Cheapest(2, {.state = 1'000'000}), kRing);
  EXPECT_EQ(fast_gather.Cheapest(2, {.state = 1'000'000}), kRing);
}

// A group of one rank that does nothing. The measured cost is small and not negative.
class NoGroup final : public SegmentGroup {
 public:
  struct Nothing final : Transfer {
    void Wait() override {}
  };
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void Settle() override {}
  double TakeWaitSeconds() override { return 0; }
  at::Tensor AllGather(const at::Tensor& x, const char*) override { return x.unsqueeze(0); }
  at::Tensor ReduceScatter(const at::Tensor& x, const char*) override { return x[0]; }
  std::unique_ptr<Transfer> Shift(const at::Tensor& send, const at::Tensor& received, Direction,
                                  const char*) override {
    EXPECT_FALSE(send.defined());
    EXPECT_FALSE(received.defined());
    return std::make_unique<Nothing>();
  }
};

TEST(ExchangeCost, IsMeasured) {
  NoGroup group;
  const ExchangeCost cost = MeasureExchange(group, at::kCPU);
  for (const double seconds :
       {cost.gather_s, cost.gather_s_per_byte, cost.shift_s, cost.shift_s_per_byte}) {
    EXPECT_GE(seconds, 0);
    EXPECT_LT(seconds, 0.1);
  }
}

}  // namespace
}  // namespace halflife::ops
