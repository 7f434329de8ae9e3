// The fused output layer and cross entropy equal their definition for any block size.
#include "ops/cross_entropy/linear_cross_entropy.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>

#include "ops/cross_entropy/cross_entropy_rows.h"
#include "ops/gradient_check.h"
#include "ops/recording_sink.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;
using torch::autograd::grad;

constexpr int64_t kRows = 5, kDim = 6, kVocab = 7;

at::Tensor Targets() { return at::tensor({3, -100, 0, 6, 2}, at::kLong); }

LinearCrossEntropyInputs MakeInputs(double scale, at::ScalarType dtype = at::kDouble) {
  return {(Normal({kRows, kDim}, 1) * scale).to(dtype), Normal({kVocab, kDim}, 2).to(dtype),
          Targets()};
}

// The definition, computed row by row.
struct Sums {
  double loss = 0, z_loss = 0;
};
Sums Definition(const LinearCrossEntropyInputs& inputs) {
  Sums sums;
  const at::Tensor logits = at::linear(inputs.hidden, inputs.weight).to(at::kDouble);
  const at::Tensor log_p = at::log_softmax(logits, 1);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const auto target = inputs.targets[row].item<int64_t>();
    if (target < 0) continue;
    sums.loss -= log_p[row][target].item<double>();
    const double log_z = at::logsumexp(logits[row], {0}).item<double>();
    sums.z_loss += log_z * log_z;
  }
  return sums;
}

TEST(LinearCrossEntropyTest, IsTheDefinition) {
  for (const double scale : {1.0, 40.0}) {  // Logits up to +-100, so that rows are also peaked.
    const LinearCrossEntropyInputs inputs = MakeInputs(scale);
    const Sums want = Definition(inputs);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const LinearCrossEntropySums got =
          LinearCrossEntropy(MakeInputs(scale, dtype), {.z_loss_weight = 0.25});
      const double tolerance = dtype == at::kDouble ? 1e-13 : 1e-6;
      EXPECT_NEAR(got.loss.item<double>(), want.loss, tolerance * want.loss);
      EXPECT_NEAR(got.z_loss.item<double>(), want.z_loss, tolerance * want.z_loss);
      const double objective = want.loss + 0.25 * want.z_loss;
      EXPECT_NEAR(got.objective.item<double>(), objective, tolerance * objective);
    }
  }
}

// If only the loss uses the weight, its gradient is summed in fp32 to the end. Autograd would round
// it to bf16. If other readers use the weight too, autograd passes all gradients to the sink, once.
TEST(LinearCrossEntropyTest, GivesItsOwnWeightsGradientToTheSinkUnrounded) {
  for (const bool is_own : {true, false}) {
    SCOPED_TRACE(is_own);
    const LinearCrossEntropyInputs in = MakeInputs(1, at::kBFloat16);
    const at::Tensor weight = in.weight.clone().requires_grad_();
    test::RecordingSink::Log log(weight, 0);
    log.Attach(weight);
    LinearCrossEntropy({in.hidden, weight, in.targets}, {.weight_is_own = is_own})
        .objective.mul(0.3)
        .backward();
    EXPECT_EQ(log.written, 1);
    EXPECT_FALSE(weight.grad().defined());
    const at::Tensor wide = in.weight.to(at::kDouble).requires_grad_();
    const at::Tensor loss =
        LinearCrossEntropy({in.hidden.to(at::kDouble), wide, in.targets}, {}).objective;
    const at::Tensor want = grad({loss * 0.3}, {wide})[0];
    const double error =
        (log.sum - want).abs().max().item<double>() / want.abs().max().item<double>();
    // Sums of five terms in fp32, or half a unit of bf16's eighth bit.
    EXPECT_EQ(error < 1e-6, is_own) << error;
  }
}

TEST(LinearCrossEntropyTest, LogitsAreThoseOfTheLoss) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const LinearCrossEntropyInputs in = MakeInputs(1, dtype);
    const at::Tensor got = LinearLogits(in.hidden.view({1, kRows, kDim}), in.weight);
    EXPECT_EQ(got.sizes(), at::IntArrayRef({1, kRows, kVocab}));
    EXPECT_EQ(got.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor want = at::linear(in.hidden.to(at::kDouble), in.weight.to(at::kDouble));
    EXPECT_TRUE(test::Close(got[0], want, dtype == at::kDouble ? 1e-14 : 1e-6));
  }
}

TEST(LinearCrossEntropyTest, GradientsAreFiniteDifferences) {
  for (const double z_loss_weight : {0.0, 0.3}) {
    test::ExpectFiniteDifferences(
        [&](const std::vector<at::Tensor>& in) {
          return 0.7 * LinearCrossEntropy({in[0], in[1], Targets()},
                                          {.z_loss_weight = z_loss_weight, .rows_per_block = 2})
                           .objective;
        },
        {MakeInputs(2).hidden, MakeInputs(2).weight});
  }
}

// A weight multiplies the loss of its row and its gradient.
TEST(LinearCrossEntropyTest, RowWeights) {
  const at::Tensor weights = at::tensor({0.5f, 7.0f, -2.0f, 0.0f, 1.5f});
  for (const int64_t num_targets : {-1, 2}) {  // With 2, the rows of the targets are chosen.
    at::Tensor targets = Targets();
    if (num_targets > 0) targets.narrow(0, 3, 2).fill_(-100);
    const auto loss = [&](const std::vector<at::Tensor>& in) {
      return LinearCrossEntropy({in[0], in[1], targets, weights},
                                {.rows_per_block = 2, .num_targets = num_targets == 2 ? 2 : -1});
    };
    const LinearCrossEntropyInputs in = MakeInputs(2);
    test::ExpectFiniteDifferences(
        [&](const std::vector<at::Tensor>& leaves) { return loss(leaves).objective; },
        {in.hidden, in.weight});
    const at::Tensor of_rows = LinearTokenCrossEntropy({in.hidden, in.weight, targets});
    EXPECT_NEAR(loss({in.hidden, in.weight}).loss.item<double>(),
                (of_rows * weights).sum().item<double>(), 1e-12);
  }
  EXPECT_HL_ERROR(
      LinearCrossEntropy({MakeInputs(1).hidden, MakeInputs(1).weight, Targets(), weights},
                         {.z_loss_weight = 0.1}),
      ExitCode::kInternal, "row weights need a z_loss_weight of 0, not 0.1");
}

TEST(LinearCrossEntropyTest, FusedRowsMatchFp64) {
  test::ExpectFloatMatchesDouble(
      [](const std::vector<at::Tensor>& in) {
        return LinearCrossEntropy({in[0], in[1], Targets()}, {.z_loss_weight = 0.3}).objective;
      },
      {MakeInputs(2).hidden, MakeInputs(2).weight}, 1e-6);
}

TEST(LinearCrossEntropyTest, RowsWithoutATargetGetNoGradient) {
  LinearCrossEntropyInputs inputs = MakeInputs(1, at::kFloat);
  inputs.hidden.requires_grad_();
  const at::Tensor dhidden =
      grad({LinearCrossEntropy(inputs, {.z_loss_weight = 1}).objective}, {inputs.hidden})[0];
  EXPECT_TRUE((dhidden[1] == 0).all().item<bool>());
  EXPECT_FALSE((dhidden[0] == 0).any().item<bool>());
}

// Blocks have up to 64 MiB of fp32 logits on the CPU and 512 MiB on a GPU. The number of rows is a
// power of two, at least 64 for any vocabulary, and at most the number of rows that exist.
TEST(LinearCrossEntropyTest, BlocksFitTheirDevice) {
  constexpr int64_t kMany = 1 << 20;
  EXPECT_EQ(CrossEntropyRowsPerBlock(kMany, 1 << 15, false), 512);
  EXPECT_EQ(CrossEntropyRowsPerBlock(kMany, 1 << 15, true), 4096);
  EXPECT_EQ(CrossEntropyRowsPerBlock(kMany, (1 << 15) + 1, true), 2048);
  EXPECT_EQ(CrossEntropyRowsPerBlock(kMany, 1 << 28, false), 64);
  EXPECT_EQ(CrossEntropyRowsPerBlock(kMany, 1 << 28, true), 64);
  EXPECT_EQ(CrossEntropyRowsPerBlock(1000, 1 << 15, true), 1000);
  EXPECT_EQ(CrossEntropyRowsPerBlock(0, 1 << 15, true), 1);
}

// The bytes of tensors that exist at the same time.
TEST(LinearCrossEntropyTest, BytesAreThoseOfTheTensors) {
  constexpr int64_t kN = 10'000, kD = 8, kV = 1 << 15;
  const double gradients = 4.0 * (kN * kD + kV * kD), cpu = 512.0 * kV, gpu = 4096.0 * kV;
  EXPECT_EQ(LinearCrossEntropyBytes(kN, kV, kD, {}), gradients + 4 * cpu);
  EXPECT_EQ(LinearCrossEntropyBytes(kN, kV, kD, {.bf16 = true}),
            gradients + 4 * cpu + 4.0 * kV * kD);
  EXPECT_EQ(LinearCrossEntropyBytes(kN, kV, kD, {.gpu = true}), gradients + 4 * gpu);
  EXPECT_EQ(LinearCrossEntropyBytes(kN, kV, kD, {.bf16 = true, .gpu = true}), gradients + 4 * gpu);
}

// Blocks only change the order of the sums of the weight's gradient.
TEST(LinearCrossEntropyTest, AnyBlockSize) {
  const at::Tensor hidden = Normal({300, 16}, 3, at::kFloat).requires_grad_(),
                   weight = Normal({50, 16}, 4, at::kFloat).requires_grad_(),
                   targets = at::randint(-1, 50, {300}, at::kLong);
  const auto run = [&](int64_t rows) {
    const auto sums = LinearCrossEntropy({hidden, weight, targets}, {.rows_per_block = rows});
    auto results = grad({sums.objective}, {hidden, weight});
    results.push_back(sums.loss);
    return results;
  };
  const auto whole = run(300);
  for (const int64_t rows : {1, 7, 64, 299, 1000}) {
    const auto parts = run(rows);
    for (size_t i = 0; i < parts.size(); ++i)
      EXPECT_TRUE(test::Close(parts[i], whole[i], 1e-6)) << rows << " rows, result " << i;
  }
}

// Rows without a target add exact zeros to every sum. Without them, only the weight's gradient
// changes, by the order of its sum: 60 fp32 products below 1.
TEST(LinearCrossEntropyTest, RowsWithoutATargetMayBeLeftOut) {
  const at::Tensor hidden = Normal({240, 16}, 3, at::kFloat).requires_grad_(),
                   weight = Normal({50, 16}, 4, at::kFloat).requires_grad_();
  at::Tensor targets = at::randint(0, 50, {240}, at::kLong);
  targets.view({60, 4}).narrow(1, 1, 3).fill_(-100);
  const auto run = [&](int64_t num_targets) {
    const auto sums = LinearCrossEntropy(
        {hidden, weight, targets},
        {.z_loss_weight = 0.1, .rows_per_block = 32, .num_targets = num_targets});
    auto results = grad({sums.objective}, {hidden, weight});
    results.push_back(sums.loss);
    results.push_back(sums.z_loss);
    return results;
  };
  const auto all = run(-1), chosen = run(60);
  for (size_t i = 0; i < all.size(); ++i)
    EXPECT_TRUE(test::Close(chosen[i], all[i], 1e-6)) << "result " << i;
  EXPECT_TRUE((chosen[0][1] == 0).all().item<bool>()) << "no gradient without a target";

  const at::Tensor losses = LinearTokenCrossEntropy({hidden, weight, targets});
  const at::Tensor same = LinearTokenCrossEntropy({hidden, weight, targets}, {.num_targets = 60});
  EXPECT_TRUE(test::Close(same, losses, 1e-6));
  EXPECT_HL_ERROR(run(59), ExitCode::kInternal, "60 targets, but num_targets is 59");
  targets.fill_(-100);
  EXPECT_EQ(run(0)[2].item<float>(), 0) << "a micro-batch of padding";
}

TEST(LinearCrossEntropyTest, ScoresAreRightWhereTheTargetHasTheLargestLogit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    LinearCrossEntropyInputs inputs = MakeInputs(1, dtype);
    const at::Tensor best = at::linear(inputs.hidden, inputs.weight).argmax(1);
    inputs.targets = best.clone();
    inputs.targets[0] = (best[0] + 1) % kVocab;
    inputs.targets[2] = -100;
    for (const int64_t num_targets : {-1, 4}) {
      const TokenScores scores =
          LinearTokenScores(inputs, {.rows_per_block = 2, .num_targets = num_targets});
      EXPECT_TRUE(scores.correct.equal(at::tensor({0, 1, 0, 1, 1}, scores.correct.options())));
      EXPECT_TRUE(scores.loss.equal(LinearTokenCrossEntropy(inputs, {.rows_per_block = 2})));
    }
  }
}

TEST(LinearCrossEntropyTest, Bf16FormsLogitsInFp32) {
  const LinearCrossEntropyInputs narrow = MakeInputs(20, at::kBFloat16);
  const LinearCrossEntropyInputs wide = {narrow.hidden.to(at::kFloat), narrow.weight.to(at::kFloat),
                                         Targets()};
  EXPECT_EQ(LinearCrossEntropy(narrow, {}).loss.item<float>(),
            LinearCrossEntropy(wide, {}).loss.item<float>());
}

TEST(LinearCrossEntropyTest, TokensSumToTheLoss) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const LinearCrossEntropyInputs inputs = MakeInputs(1, dtype);
    const at::Tensor tokens = LinearTokenCrossEntropy(inputs, {.rows_per_block = 2});
    EXPECT_EQ(tokens[1].item<double>(), 0);
    EXPECT_NEAR(tokens.sum().item<double>(), Definition(inputs).loss, 1e-5);
  }
}

TEST(LinearCrossEntropyTest, NoRowsAndNanLogits) {
  LinearCrossEntropyInputs inputs = MakeInputs(1, at::kFloat);
  const LinearCrossEntropyInputs none = {inputs.hidden.narrow(0, 0, 0), inputs.weight,
                                         inputs.targets.narrow(0, 0, 0)};
  EXPECT_EQ(LinearCrossEntropy(none, {}).loss.item<float>(), 0);
  const at::Tensor weight = inputs.weight.clone().requires_grad_();
  const auto sums = LinearCrossEntropy({none.hidden, weight, none.targets}, {});
  EXPECT_TRUE(grad({sums.objective}, {weight})[0].eq(0).all().item<bool>());
  inputs.hidden[0][0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(LinearCrossEntropy(inputs, {}).loss.item<float>()));
}

TEST(LinearCrossEntropyTest, BadInput) {
  LinearCrossEntropyInputs inputs = MakeInputs(1, at::kFloat);
  inputs.targets = inputs.targets + 1;
  EXPECT_HL_ERROR(LinearTokenCrossEntropy(inputs), ExitCode::kData, "target token 7",
                  "vocabulary of 7 tokens");
  EXPECT_HL_ERROR(LinearCrossEntropy(inputs, {}), ExitCode::kData, "target token 7");
  const auto expect = [](const auto& change, ExitCode code, const std::string& message) {
    LinearCrossEntropyInputs changed = MakeInputs(1, at::kFloat);
    change(changed);
    EXPECT_HL_ERROR(LinearCrossEntropy(changed, {}), code, message);
    EXPECT_HL_ERROR(LinearTokenCrossEntropy(changed), code, message);
  };
  const ExitCode internal = ExitCode::kInternal;
  expect([](auto& in) { in.weight = in.weight.to(at::kBFloat16); }, internal, "of one dtype");
  expect([](auto& in) { in.weight = in.weight.narrow(1, 0, kDim - 1); }, internal,
         "hidden [5, 6] fp32 on cpu, weight [7, 5] fp32 on cpu, targets [5] int64 on cpu");
  expect([](auto& in) { in.weight = in.weight.to(at::kMeta); }, internal, "on one device");
  expect([](auto& in) { in.targets = in.targets.narrow(0, 0, kRows - 1); }, internal,
         "targets [4]");
  expect([](auto& in) { in.targets = in.targets.to(at::kInt); }, internal, "targets [5] int32");
  expect([](auto& in) { in.targets = in.targets.to(at::kMeta); }, internal, "int64 on meta");
  expect(
      [](auto& in) {
        in.hidden = in.hidden.to(at::kHalf);
        in.weight = in.weight.to(at::kHalf);
      },
      ExitCode::kUsage, "cross entropy does not support fp16. Use fp32, bf16 or fp64.");
}

TEST(CrossEntropyRowsTest, BadInput) {
  const at::Tensor logits = Normal({kRows, kVocab}, 1, at::kFloat);
  const auto reduce = [](at::Tensor of, const at::Tensor& targets,
                         const internal::CrossEntropyRows& out) {
    internal::ReduceRows(of, targets, 0, internal::LogitGradient::kFp32, out);
  };
  const auto out = internal::EmptyRows(kRows, logits.options());
  const ExitCode code = ExitCode::kInternal;
  EXPECT_HL_ERROR(reduce(logits, Targets().narrow(0, 0, 4), out), code,
                  "cross entropy got logits [5, 7] fp32 on cpu with targets [4] int64 on cpu",
                  "targets [R] int64");
  EXPECT_HL_ERROR(reduce(logits, Targets().to(at::kInt), out), code, "targets [5] int32");
  EXPECT_HL_ERROR(reduce(logits, Targets(), out.Narrow(0, 4)), code, "loss [4]");
  EXPECT_HL_ERROR(reduce(logits, Targets(), internal::EmptyRows(kRows, at::kDouble)), code,
                  "loss [5] fp64", "of the logits' dtype");
  EXPECT_HL_ERROR(reduce(logits.t().contiguous().t(), Targets(), out), code, "all contiguous");
  EXPECT_HL_ERROR(reduce(logits.to(at::kHalf), Targets(), out), code, "logits [5, 7] fp16");
  EXPECT_HL_ERROR(reduce(logits.to(at::kMeta), Targets(), out), code, "logits [5, 7] fp32 on meta");
  at::Tensor own = logits.clone();
  EXPECT_HL_ERROR(internal::ReduceRows(own, Targets(), 0, internal::LogitGradient::kBf16, out),
                  code,
                  "logits [5, 7] fp32 on cpu for a gradient in bf16. Use fp32 logits on a GPU.");
}

}  // namespace
}  // namespace halflife::ops
