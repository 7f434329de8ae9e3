#include "kernels/cross_entropy/cross_entropy.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "kernels/gradient_check.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

using test::Normal;

const at::Tensor& Targets() {
  static const at::Tensor targets = at::tensor({3, -100, 0, 6, 2}, at::kLong);
  return targets;
}

// The definition, row by row.
struct Sums {
  double loss = 0, z_loss = 0;
};
Sums Definition(const at::Tensor& logits) {
  Sums sums;
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), 1);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const auto target = Targets()[row].item<int64_t>();
    if (target < 0) continue;
    sums.loss -= log_p[row][target].item<double>();
    const double log_z = at::logsumexp(logits[row].to(at::kDouble), {0}).item<double>();
    sums.z_loss += log_z * log_z;
  }
  return sums;
}

TEST(CrossEntropyTest, IsTheDefinition) {
  for (const double scale : {1.0, 80.0}) {  // peaked rows too
    const at::Tensor logits = Normal({5, 7}, 1) * scale;
    const Sums want = Definition(logits);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      const CrossEntropySums got = CrossEntropy(logits.to(dtype).clone(), Targets());
      const double tolerance = dtype == at::kDouble ? 1e-13 : 1e-6;
      EXPECT_NEAR(got.loss.item<double>(), want.loss, tolerance * want.loss);
      EXPECT_NEAR(got.z_loss.item<double>(), want.z_loss, tolerance * want.z_loss);
    }
  }
}

TEST(CrossEntropyTest, GradientsOfBothSums) {
  const at::Tensor logits = Normal({5, 7}, 1) * 3;
  const auto both = [](const at::Tensor& x) {
    const CrossEntropySums sums = CrossEntropy(x, Targets());
    return 0.7 * sums.loss + 0.3 * sums.z_loss;
  };
  test::ExpectFiniteDifferences([&](const auto& in) { return both(in[0]); }, {logits});
  const at::Tensor leaf = logits.clone().requires_grad_();
  const at::Tensor want = torch::autograd::grad({both(leaf)}, {leaf})[0];
  const at::Tensor narrow = logits.to(at::kFloat).requires_grad_();
  // taken over by the call, so it gets a copy
  const at::Tensor got = torch::autograd::grad({both(narrow.clone())}, {narrow})[0];
  EXPECT_TRUE(test::Close(got, want, 1e-6));
  EXPECT_TRUE((got[1] == 0).all().item<bool>()) << "a row without a target";
}

TEST(CrossEntropyTest, LossAloneLeavesZLossOut) {
  const at::Tensor narrow = Normal({5, 7}, 1, at::kFloat).requires_grad_();
  const at::Tensor got =
      torch::autograd::grad({CrossEntropy(narrow.clone(), Targets()).loss}, {narrow})[0];
  // rows of softmax - onehot sum to zero
  EXPECT_TRUE(test::Close(got.sum(1), at::zeros({5}), 1e-6));
  EXPECT_LT(got[0][3].item<float>(), 0);
}

TEST(CrossEntropyTest, TokensSumToTheLossAndLeaveTheLogitsAlone) {
  const at::Tensor logits = Normal({5, 7}, 1, at::kFloat), copy = logits.clone();
  const at::Tensor tokens = TokenCrossEntropy(logits, Targets());
  EXPECT_TRUE(test::BitEqual(logits, copy));
  EXPECT_EQ(tokens[1].item<float>(), 0);
  EXPECT_NEAR(tokens.sum().item<double>(), Definition(logits).loss, 1e-5);
  EXPECT_TRUE(test::Close(TokenCrossEntropy(logits.to(at::kDouble), Targets()), tokens, 1e-6));
}

TEST(CrossEntropyTest, TargetOutsideTheVocabulary) {
  const at::Tensor logits = Normal({5, 6}, 1, at::kFloat);
  EXPECT_HL_ERROR(TokenCrossEntropy(logits, Targets()), ExitCode::kData, "target token 6",
                  "vocabulary of 6 tokens");
  EXPECT_HL_ERROR(CrossEntropy(logits, Targets()), ExitCode::kData, "target token 6");
}

}  // namespace
}  // namespace halflife::kernels
