#include "ops/sequence/exchange_cost.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "core/clock.h"
#include "core/error.h"

namespace halflife::ops {
namespace {

constexpr int64_t kSmall = 4 << 10, kLarge = 1 << 20;  // bytes

// Returns the median time of five runs. One run before them connects the ranks.
template <typename Run>
double Median(SegmentGroup& group, Run run) {
  std::array<double, 5> seconds;
  run();
  group.Settle();
  for (double& s : seconds) {
    const Stopwatch watch;
    run();
    group.Settle();
    s = watch.Seconds();
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

// Returns the line through the times of the two sizes: {seconds at 0 bytes, seconds per byte}.
std::array<double, 2> Line(double small, double large) {
  const double slope = std::max(0.0, (large - small) / static_cast<double>(kLarge - kSmall));
  return {std::max(0.0, small - slope * static_cast<double>(kSmall)), slope};
}

}  // namespace

double ExchangeCost::Seconds(StateStrategy strategy, int ranks, const ExchangeBytes& bytes) const {
  const auto size = static_cast<double>(bytes.state);
  switch (strategy) {
    case StateStrategy::kGather:
      return gather_s + gather_s_per_byte * static_cast<double>(bytes.state + bytes.transition);
    case StateStrategy::kRing:
      return (ranks - 1) * (shift_s + shift_s_per_byte * size);
    case StateStrategy::kScan:
      return (ranks - 2 + kScanPieces) * (shift_s + shift_s_per_byte * size / kScanPieces);
    case StateStrategy::kCheapest:
      break;
  }
  HL_FAIL(ExitCode::kInternal, "the cheapest strategy has no cost of its own");
}

StateStrategy ExchangeCost::Cheapest(int ranks, const ExchangeBytes& bytes) const {
  if (ranks == 2) return StateStrategy::kRing;
  return std::ranges::min({StateStrategy::kGather, StateStrategy::kRing, StateStrategy::kScan}, {},
                          [&](StateStrategy strategy) { return Seconds(strategy, ranks, bytes); });
}

ExchangeCost MeasureExchange(SegmentGroup& group, at::Device device) {
  const auto bytes = [&](int64_t count) {
    return at::zeros({count}, at::TensorOptions(at::kByte).device(device));
  };
  const auto gather = [&](int64_t count) {
    return Median(group, [&, part = bytes(count)] { group.AllGather(part, "exchange cost"); });
  };
  const bool first = group.rank() == 0, last = group.rank() == group.size() - 1;
  const auto shift = [&](int64_t count) {
    return Median(group, [&, sent = bytes(count), received = bytes(count)] {
      group
          .Shift(last ? at::Tensor() : sent, first ? at::Tensor() : received,
                 SegmentGroup::Direction::kToNext, "exchange cost")
          ->Wait();
    });
  };
  const auto gathers = Line(gather(kSmall), gather(kLarge));
  const auto shifts = Line(shift(kSmall), shift(kLarge));
  const at::Tensor own =
      at::tensor({gathers[0], gathers[1], shifts[0], shifts[1]}, at::TensorOptions(at::kDouble));
  const at::Tensor of_ranks = group.AllGather(own.to(device), "exchange cost");
  group.Settle();  // has a deadline, unlike the copy from the GPU below
  const at::Tensor slowest = of_ranks.cpu().amax(0);
  const auto value = [&](int64_t i) { return slowest[i].item<double>(); };
  return {.gather_s = value(0),
          .gather_s_per_byte = value(1),
          .shift_s = value(2),
          .shift_s_per_byte = value(3)};
}

}  // namespace halflife::ops
