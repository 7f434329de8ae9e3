// Counts how often each rank scans its tokens, with the decayed sum s_t = a s_(t-1) + x_t as the
// scan. The results equal the sum over whole rows.
#include "ops/sequence/segment_scan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "dist/local_communicator.h"
#include "model/sequence_parallel.h"
#include "ops/gradient_check.h"
#include "ops/torch/autograd.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using dist::Communicator;
using dist::LocalWorld;
using test::Close;
using test::Normal;

constexpr int64_t kRows = 2, kChannels = 3;
constexpr double kLogDecay = -0.1;

struct Counts {
  std::atomic<int> runs = 0, summaries = 0, gradients_before = 0;
};

// Scans x [N, T, C] from the state [N, C].
ScannedSegment Sums(const at::Tensor& x, const SegmentState& before) {
  at::Tensor sum =
      before.values.empty() ? at::zeros({kRows, kChannels}, x.options()) : before.values[0];
  Tensors sums;
  for (int64_t t = 0; t < x.size(1); ++t) {
    sum = sum * std::exp(kLogDecay) + x.select(1, t);
    sums.push_back(sum);
  }
  return {.outputs = {at::stack(sums, 1)}, .after = {.values = {sum}}};
}

SegmentScan CountedScan(const at::Tensor& x, Counts& counts) {
  const auto state_like = [x](double value) {
    return at::zeros({kRows, kChannels}, x.options().requires_grad(false)) + value;
  };
  return {.name = "Sums",
          .inputs = {x},
          .run =
              [&counts](const Tensors& inputs, const SegmentState& before) {
                ++counts.runs;
                return Sums(inputs[0], before);
              },
          .summarise = [x, state_like, &counts]() -> SegmentSummary {
            ++counts.summaries;
            return {.own = Sums(x.detach(), {}).after,
                    .log_transition = state_like(kLogDecay * static_cast<double>(x.size(1)))};
          },
          // A reader would see NaN.
          .nothing = [state_like]() -> SegmentSummary {
            return {.own = {.values = {state_like(std::nan(""))}},
                    .log_transition = state_like(std::nan(""))};
          }};
}

struct OfRank {
  at::Tensor out, dx;
};

// Splits rows into slices of the given lengths, one per rank.
std::vector<OfRank> OverRanks(const std::vector<int64_t>& lengths, const at::Tensor& x,
                              StateStrategy strategy, std::vector<Counts>& counts,
                              bool with_gradient_before = false) {
  std::vector<OfRank> ranks(lengths.size());
  LocalWorld::Run(static_cast<int>(lengths.size()), [&](Communicator& comm) {
    RowSegment row = {.group = model::MakeSegmentGroup(comm),
                      .lengths = lengths,
                      .first_position = {},
                      .strategy = strategy};
    const at::Tensor own =
        x.narrow(1, row.begin(), lengths[comm.rank()]).clone().requires_grad_(true);
    Counts& count = counts[comm.rank()];
    SegmentScan scan = CountedScan(own, count);
    if (with_gradient_before) {
      scan.gradient_before = [&count](const SegmentState& before, const Tensors& outputs,
                                      const Tensors& douts) -> Tensors {
        ++count.gradients_before;
        at::Tensor gradient = at::zeros_like(before.values[0]);
        for (int64_t t = 0; t < outputs[0].size(1); ++t)
          gradient += std::exp(kLogDecay * static_cast<double>(t + 1)) * douts[0].select(1, t);
        return {gradient};
      };
    }
    const at::Tensor out = RunSegment(scan, row)[0];
    const at::Tensor dout = 2 * out.detach();
    ranks[comm.rank()] = {.out = out.detach(), .dx = Differentiate({out}, {dout}, {own}, false)[0]};
    row.group->Settle();
  });
  return ranks;
}

class SegmentScanTest : public testing::TestWithParam<StateStrategy> {};

TEST_P(SegmentScanTest, OnlyRanksBetweenOthersSumUp) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{12}, {7, 5}, {4, 3, 5}, {3, 1, 4, 2, 2}}) {
    const auto last = static_cast<int>(lengths.size()) - 1;
    std::vector<Counts> counts(lengths.size());
    OverRanks(lengths, Normal({kRows, 12, kChannels}, 1, at::kDouble), GetParam(), counts, true);
    for (int rank = 0; rank <= last; ++rank) {
      const int between = rank > 0 && rank < last ? 1 : 0;
      EXPECT_EQ(counts[rank].runs, 1) << rank << " of " << lengths.size();
      EXPECT_EQ(counts[rank].summaries, between) << rank << " of " << lengths.size();
      EXPECT_EQ(counts[rank].gradients_before, between) << rank << " of " << lengths.size();
    }
  }
}

TEST_P(SegmentScanTest, GivesWhatWholeRowsGive) {
  const at::Tensor x = Normal({kRows, 12, kChannels}, 2, at::kDouble);
  const at::Tensor whole = x.clone().requires_grad_(true);
  const at::Tensor want = Sums(whole, {}).outputs[0];
  const at::Tensor want_dx = Differentiate({want}, {2 * want.detach()}, {whole}, false)[0];
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{12}, {7, 5}, {4, 3, 5}, {3, 1, 4, 2, 2}}) {
    for (const bool with_gradient_before : {false, true}) {
      std::vector<Counts> counts(lengths.size());
      Tensors out, dx;
      for (const OfRank& rank : OverRanks(lengths, x, GetParam(), counts, with_gradient_before)) {
        out.push_back(rank.out);
        dx.push_back(rank.dx);
      }
      // Sums of twelve terms of order 1 in fp64.
      EXPECT_TRUE(Close(at::cat(out, 1), want.detach(), 1e-14)) << lengths.size();
      EXPECT_TRUE(Close(at::cat(dx, 1), want_dx, 1e-14)) << lengths.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, SegmentScanTest,
                         testing::Values(StateStrategy::kGather, StateStrategy::kRing,
                                         StateStrategy::kScan));

// For any number of channels, each one and its gradient are computed once and in order.
TEST(InPiecesTest, CoverAllChannels) {
  for (const auto& [channels, want_pieces] :
       std::vector<std::pair<int64_t, int>>{{1, 1}, {31, 1}, {32, 2}, {50, 3}, {768, 4}}) {
    const at::Tensor x = Normal({kRows, 2, channels}, 4, at::kDouble).requires_grad_(true);
    const at::Tensor factor = Normal({channels}, 5, at::kDouble).requires_grad_(true);
    int pieces = 0;
    const auto run = [&](const Piece& piece) {
      ++pieces;
      return piece.tensors[0] * piece.tensors[1];
    };
    const std::vector<Cuttable> all = {{.tensor = x, .of_tokens = true},
                                       {.tensor = factor, .of_tokens = false}};
    const at::Tensor joined = InPieces(all, 16, RowSegment(), x, run);
    EXPECT_EQ(pieces, want_pieces) << channels;
    RowSegment on_gpus;
    on_gpus.threads = 0;
    InPieces(all, 16, on_gpus, x, run);
    EXPECT_EQ(pieces, want_pieces + 1) << channels;
    EXPECT_TRUE(joined.equal(x * factor)) << channels;
    const at::Tensor dy = Normal({kRows, 2, channels}, 6, at::kDouble);
    const Tensors got = Differentiate({joined}, {dy}, {x, factor}, false);
    EXPECT_TRUE(got[0].equal(dy * factor.detach())) << channels;
    // Sums of four terms in fp64.
    EXPECT_TRUE(Close(got[1], (dy * x.detach()).flatten(0, 1).sum(0), 1e-15)) << channels;
  }
}

// Doubles heads of three channels with a kernel that writes to a given place.
TEST(InPiecesTest, WhatIsWrittenInItsPlaceIsNotCopied) {
  const at::Tensor x = Normal({kRows, 5, 10, 3}, 7, at::kDouble).requires_grad_(true);
  at::Tensor out, dx;  // Those of the first piece.
  const auto run = [&](const Piece& piece) {
    const auto doubled = [](const at::Tensor& y, const ColumnSlice& place) {
      return place.EmptyLike(y.flatten(2)).view(y.sizes()).copy_(2 * y);
    };
    const auto backward = [&, place = piece.gradients[0]](const BackwardCall& call) -> Tensors {
      dx = doubled(call.grads[0], place);  // Backward starts with the last piece.
      return {dx};
    };
    const auto forward = [&]() -> Forwarded {
      const at::Tensor y = doubled(piece.tensors[0].detach(), piece.output);
      if (!out.defined()) out = y;
      return {.outputs = {y}, .saved = {}, .backward = backward};
    };
    return Apply({.name = "Double", .inputs = {piece.tensors[0]}, .forward = forward})[0];
  };
  const at::Tensor joined =
      InPieces({{.tensor = x, .of_tokens = true}}, 3, RowSegment(), x.detach(), run);
  EXPECT_TRUE(joined.equal(2 * x));
  EXPECT_EQ(joined.const_data_ptr(), out.const_data_ptr());
  const at::Tensor got = Differentiate({joined}, {x.detach()}, {x}, false)[0];
  EXPECT_TRUE(got.equal(2 * x.detach()));
  EXPECT_EQ(got.const_data_ptr(), dx.const_data_ptr());
}

TEST(SegmentScanTest, RefusesAFirstStateOfAnotherForm) {
  const at::Tensor x = Normal({kRows, 4, kChannels}, 3, at::kDouble);
  Counts counts;
  LocalWorld::Run(1, [&](Communicator& comm) {
    SegmentScan scan = CountedScan(x, counts);
    scan.nothing = []() -> SegmentSummary {
      return {.own = {.values = {at::zeros({kRows, kChannels + 1}, at::kDouble)}},
              .log_transition = at::zeros({kRows, kChannels}, at::kDouble)};
    };
    EXPECT_HL_ERROR(
        RunSegment(scan,
                   {.group = model::MakeSegmentGroup(comm), .lengths = {4}, .first_position = {}}),
        ExitCode::kInternal, "Sums: a state after the first segment of another form");
  });
}

}  // namespace
}  // namespace halflife::ops
