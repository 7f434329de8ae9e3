// Properties of the exchange of states with dense transitions. The recurrence is the delta rule,
//
//   S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  o_t = S_t^T q_t.
//
// A row that is split anywhere over any number of ranks gives the outputs and gradients of the
// whole row.
#include "ops/sequence/state_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "dist/local_communicator.h"
#include "model/sequence_parallel.h"
#include "ops/gradient_check.h"
#include "ops/sequence/exchange_cost.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/autograd.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using dist::Communicator;
using dist::LocalWorld;
using test::Close;
using test::Normal;

constexpr int64_t kRows = 2, kHeads = 3, kTokens = 23;

const std::vector<std::vector<int64_t>> kSplits = {
    {23}, {11, 12}, {1, 22}, {8, 0, 15}, {5, 6, 1, 11}, {3, 1, 4, 0, 9, 2, 4}};

struct Problem {
  Tensors inputs;  // q, k [N, T, C, K], v [N, T, C, V], beta [N, T, C]
  Tensors Narrow(int64_t begin, int64_t length) const {
    Tensors parts;
    for (const at::Tensor& x : inputs) parts.push_back(x.narrow(1, begin, length));
    return parts;
  }
};

Problem MakeProblem(at::ScalarType dtype, int64_t dim_k = 5, int64_t dim_v = 4) {
  const auto normal = [&](int64_t dim, uint64_t seed) {
    return Normal({kRows, kTokens, kHeads, dim}, seed);
  };
  const at::Tensor k = normal(dim_k, 2);
  const Tensors wide = {normal(dim_k, 1), k / k.square().sum(-1, true).sqrt(), normal(dim_v, 3),
                        at::sigmoid(normal(1, 4).squeeze(-1))};
  Problem problem;
  for (const at::Tensor& x : wide) problem.inputs.push_back(x.to(dtype));
  return problem;
}

// (I - beta k k^T) S for S [N, C, K, *].
at::Tensor Erase(const at::Tensor& k, const at::Tensor& beta, const at::Tensor& s) {
  const at::Tensor read = at::matmul(k.unsqueeze(-2), s);  // [N, C, 1, *]
  return s - (beta.unsqueeze(-1) * k).unsqueeze(-1) * read;
}

ScannedSegment DeltaRule(const Tensors& inputs, const SegmentState& before) {
  const at::Tensor &q = inputs[0], &k = inputs[1], &v = inputs[2], &beta = inputs[3];
  at::Tensor s = before.values.empty()
                     ? at::zeros({kRows, kHeads, k.size(3), v.size(3)}, v.options())
                     : before.values[0];
  Tensors outputs;
  for (int64_t t = 0; t < q.size(1); ++t) {
    const at::Tensor kt = k.select(1, t), bt = beta.select(1, t);
    s = Erase(kt, bt, s) + (bt.unsqueeze(-1) * kt).unsqueeze(-1) * v.select(1, t).unsqueeze(-2);
    outputs.push_back(at::matmul(q.select(1, t).unsqueeze(-2), s).squeeze(-2));
  }
  if (outputs.empty()) return {.outputs = {at::zeros(v.sizes(), v.options())}, .after = {{s}}};
  return {.outputs = {at::stack(outputs, 1)}, .after = {{s}}};
}

SegmentSummary Summary(const Tensors& inputs) {
  const at::Tensor &k = inputs[1], &beta = inputs[3];
  at::Tensor a = at::eye(k.size(3), k.options()).repeat({kRows, kHeads, 1, 1});
  for (int64_t t = 0; t < k.size(1); ++t) a = Erase(k.select(1, t), beta.select(1, t), a);
  return {.own = DeltaRule(inputs, {}).after, .transition_matrix = a};
}

// Returns the output, then the gradients of all inputs, for dL/d(output) = 2 output.
Tensors WholeRows(const Problem& problem) {
  Tensors leaves;
  for (const at::Tensor& x : problem.inputs) leaves.push_back(x.detach().requires_grad_(true));
  const at::Tensor out = DeltaRule(leaves, {}).outputs[0];
  Tensors results = Differentiate({out}, {2 * out.detach()}, leaves, false);
  results.insert(results.begin(), out.detach());
  return results;
}

Tensors OverRanks(const Problem& problem, const std::vector<int64_t>& lengths,
                  StateStrategy strategy) {
  std::vector<Tensors> ranks(lengths.size());
  LocalWorld::Run(static_cast<int>(lengths.size()), [&](Communicator& comm) {
    RowSegment row = {.group = model::MakeSegmentGroup(comm),
                      .lengths = lengths,
                      .first_position = {},
                      .strategy = strategy};
    if (strategy == StateStrategy::kCheapest)
      row.cost = std::make_shared<const ExchangeCost>(MeasureExchange(*row.group, at::kCPU));
    Tensors leaves, detached;
    for (const at::Tensor& x : problem.Narrow(row.begin(), lengths[comm.rank()])) {
      leaves.push_back(x.clone().requires_grad_(true));
      detached.push_back(leaves.back().detach());
    }
    const auto summarise = [&] { return Summary(detached); };
    const at::Tensor out = RunSegment({.name = "DeltaRule",
                                       .inputs = leaves,
                                       .run = DeltaRule,
                                       .summarise = summarise,
                                       .nothing = summarise},
                                      row)[0];
    ranks[comm.rank()] = Differentiate({out}, {2 * out.detach()}, leaves, false);
    ranks[comm.rank()].insert(ranks[comm.rank()].begin(), out.detach());
    row.group->Settle();
  });
  Tensors joined;
  for (size_t i = 0; i < ranks[0].size(); ++i) {
    Tensors parts;
    for (const Tensors& rank : ranks) parts.push_back(rank[i]);
    joined.push_back(at::cat(parts, 1));
  }
  return joined;
}

class DenseTransition : public testing::TestWithParam<StateStrategy> {};

INSTANTIATE_TEST_SUITE_P(Strategies, DenseTransition,
                         testing::Values(StateStrategy::kGather, StateStrategy::kRing,
                                         StateStrategy::kScan, StateStrategy::kCheapest));

TEST_P(DenseTransition, SplitAnywhereIsTheWhole) {
  const Problem problem = MakeProblem(at::kDouble);
  const Tensors want = WholeRows(problem);
  for (const std::vector<int64_t>& lengths : kSplits) {
    const Tensors got = OverRanks(problem, lengths, GetParam());
    // Sums of a few hundred terms of order 1 in fp64.
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(Close(got[i], want[i], 1e-13)) << "tensor " << i << ", " << lengths.size();
  }
}

TEST_P(DenseTransition, Fp32IsFp64ToRounding) {
  const Tensors want = WholeRows(MakeProblem(at::kDouble));
  const Problem narrow = MakeProblem(at::kFloat);
  for (const std::vector<int64_t>& lengths : kSplits) {
    const Tensors got = OverRanks(narrow, lengths, GetParam());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].scalar_type(), at::kFloat);
      EXPECT_TRUE(Close(got[i], want[i], 3e-6)) << "tensor " << i << ", " << lengths.size();
    }
  }
}

// Heads that are large enough for a library's blocked matrix products.
TEST_P(DenseTransition, StrategiesGiveTheSameBits) {
  for (const auto& [dim_k, dim_v] : std::vector<std::pair<int64_t, int64_t>>{{5, 4}, {64, 48}}) {
    const Problem problem = MakeProblem(at::kFloat, dim_k, dim_v);
    const Tensors want = OverRanks(problem, {5, 6, 1, 11}, StateStrategy::kGather),
                  got = OverRanks(problem, {5, 6, 1, 11}, GetParam());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(got[i].equal(want[i])) << "tensor " << i << ", K = " << dim_k;
  }
}

// Returns a summary with values [N, C, K, V] and [N, C, K], and a dense or a diagonal transition.
SegmentSummary MakeSummary(bool dense) {
  const at::Tensor log = -Normal({kRows, kHeads, 5}, 7).square();
  SegmentSummary summary = {
      .own = {.values = {Normal({kRows, kHeads, 5, 4}, 8), Normal({kRows, kHeads, 5}, 9)}}};
  (dense ? summary.transition_matrix : summary.log_transition) =
      dense ? log.exp().diag_embed() : log;
  return summary;
}
SegmentState StateBeforeIt() {
  return {.values = {Normal({kRows, kHeads, 5, 4}, 10), Normal({kRows, kHeads, 5}, 11)}};
}

TEST(PassThroughTest, ADiagonalMatrixIsADiagonalTransition) {
  const SegmentState got = PassThrough(MakeSummary(true), StateBeforeIt()).after,
                     want = PassThrough(MakeSummary(false), StateBeforeIt()).after;
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(Close(got.values[i], want.values[i], 1e-15)) << i;
}

TEST(PassThroughTest, NothingPassesADocumentStart) {
  RowSegment row;
  row.has_start = at::zeros({kRows}, at::kBool);
  row.has_start[1].fill_(true);
  SegmentSummary summary = MakeSummary(true);
  summary.transition_matrix = CutMatrixByStarts(summary.transition_matrix, row);
  SegmentState before = StateBeforeIt();
  for (at::Tensor& x : before.values) x.fill_(std::nan(""));
  const SegmentState after = PassThrough(summary, before).after;
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(after.values[i][1].equal(summary.own.values[i][1])) << i;
    EXPECT_TRUE(after.values[i][0].isnan().all().item<bool>()) << i;
  }
}

TEST(PassThroughTest, RefusesALogScaleWithADenseTransition) {
  SegmentSummary summary = MakeSummary(true);
  SegmentState before = StateBeforeIt();
  summary.own.log_scale = before.log_scale = at::zeros({kRows, kHeads}, at::kDouble);
  EXPECT_HL_ERROR(PassThrough(summary, before), ExitCode::kInternal,
                  "a state with a log scale and a dense transition", "Use log_transition");
}

}  // namespace
}  // namespace halflife::ops
