// Linear layers of a few rows use the products of rows in inference. Their results are those of the
// separate operations, in bits.
#include "ops/linear/row_products.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <functional>

#include "ops/linear/linear.h"
#include "ops/random_tensors.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/swiglu.h"
#include "ops/torch/host_waits.h"
#include "support/expect_error.h"
#ifndef HL_EMULATE
#include "ops/cross_entropy/linear_cross_entropy.h"
#endif

namespace halflife::ops {
namespace {

using test::Normal;

class RowProductsTest : public testing::Test {
 protected:
  static at::Tensor Bf16Normal(std::vector<int64_t> shape, uint64_t seed) {
    return Normal(std::move(shape), seed, at::kBFloat16);
  }
  static int64_t CountKernels(const std::function<void()>& run) {
    HostWaits waits;
    run();
    int64_t count = 0;
    for (const auto& [phase, counts] : waits.Take()) count += counts.num_kernels();
    return count;
  }
#ifndef HL_EMULATE
  const RowProductsEverywhere everywhere_;
#endif
  const at::Tensor x_ = Bf16Normal({8, 40}, 1);
  const std::vector<at::Tensor> weights_ = {Bf16Normal({5, 40}, 2), Bf16Normal({9, 40}, 3),
                                            Bf16Normal({1, 40}, 4)};
};

TEST_F(RowProductsTest, LinearLayersOfAFewRowsUseOneLaunch) {
  const c10::InferenceMode inference;
  std::vector<at::Tensor> ys;
  EXPECT_EQ(CountKernels([&] { ys = SharedInputLinear(x_.view({4, 2, 40}), weights_); }), 1);
  ASSERT_EQ(ys.size(), 3u);
  for (size_t i = 0; i < ys.size(); ++i) {
    const at::Tensor own = RowProducts({.x = x_}, {{.weight = weights_[i]}}).ys[0];
    EXPECT_TRUE(test::BitEqual(ys[i].reshape(own.sizes()), own));
    EXPECT_TRUE(test::BitEqual(Linear(x_, weights_[i]), own));
    // One rounding of the result to 8 bits; the inputs are exact, and sums of 40 are fp32.
    EXPECT_TRUE(
        test::Close(own, at::linear(x_.to(at::kDouble), weights_[i].to(at::kDouble)), 0x1p-8));
  }
#ifndef HL_EMULATE
  const at::Tensor logits = LinearLogits(x_, weights_[1]);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_TRUE(test::BitEqual(logits.to(at::kBFloat16), ys[1].reshape({8, 9})));
#endif
}

TEST_F(RowProductsTest, OthersAreMultipliedAsBefore) {
  EXPECT_FALSE(HasRowProducts(x_, weights_)) << "outside of inference";
  const c10::InferenceMode inference;
  EXPECT_TRUE(HasRowProducts(x_, weights_));
  EXPECT_FALSE(HasRowProducts(Bf16Normal({9, 40}, 1), weights_)) << "9 rows";
  EXPECT_FALSE(HasRowProducts(x_.to(at::kFloat), {weights_[0].to(at::kFloat)})) << "fp32";
  EXPECT_FALSE(HasRowProducts(Bf16Normal({2, 36}, 1), {Bf16Normal({3, 36}, 2)})) << "4.5 packs";
  EXPECT_FALSE(HasRowProducts(x_, {Bf16Normal({5, 48}, 2).narrow(1, 0, 40)})) << "strided weight";
  const at::Tensor shifted = at::empty({5 * 40 + 1}, x_.options()).narrow(0, 1, 200).view({5, 40});
  EXPECT_FALSE(HasRowProducts(x_, {shifted})) << "not aligned";
  const at::Tensor wide = Bf16Normal({1, 4104}, 1), weight = Bf16Normal({2, 4104}, 2);
  EXPECT_TRUE(HasRowProducts(wide, {weight}));
  EXPECT_FALSE(HasNormedRowProducts({.x = wide, .norm = RowNorm{at::ones({4104})}}, {weight}));
  const auto norms = [&](int64_t width) {
    return HasNormedRowProducts({.x = x_, .norm = RowNorm{at::ones({width})}}, weights_);
  };
  EXPECT_TRUE(norms(40));
  EXPECT_TRUE(norms(8));
  EXPECT_FALSE(norms(10)) << "heads that are not a multiple of a pack";
}

TEST_F(RowProductsTest, ReadsRowsOfAnyLayout) {
  const c10::InferenceMode inference;
  const at::Tensor matrix = Bf16Normal({8, 61}, 5);
  for (const int64_t first : {0, 8, 21}) {
    const at::Tensor columns = matrix.narrow(1, first, 40);
    EXPECT_TRUE(
        test::BitEqual(Linear(columns, weights_[0]), Linear(columns.contiguous(), weights_[0])));
  }
}

TEST_F(RowProductsTest, NormIsThatOfTheSeparateOperations) {
  const c10::InferenceMode inference;
  const at::Tensor branch = Bf16Normal({8, 40}, 6), weight = Normal({40}, 7, at::kFloat);
  const RowNorm norm = {.weight = weight, .eps = 1e-6};
  const ResidualNorm want = AddRmsNorm(x_, branch, weight, 1e-6);
  // More weights than a launch takes.
  std::vector<RowWeight> weights;
  for (uint64_t i = 0; i < 11; ++i) weights.push_back({.weight = Bf16Normal({4, 40}, 10 + i)});
  RowOutputs got;
  EXPECT_EQ(
      CountKernels([&] { got = RowProducts({.x = x_, .branch = branch, .norm = norm}, weights); }),
      2);
  EXPECT_TRUE(test::BitEqual(got.sum, want.sum));
  EXPECT_TRUE(test::BitEqual(got.normed, want.normed));
  ASSERT_EQ(got.ys.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(test::BitEqual(got.ys[i], Linear(want.normed, weights[i].weight)));
  const RowOutputs alone = RowProducts({.x = x_, .norm = norm}, {weights[0]});
  EXPECT_FALSE(alone.sum.defined());
  EXPECT_TRUE(test::BitEqual(alone.normed, RmsNorm(x_, weight, 1e-6)));
}

TEST_F(RowProductsTest, GatedNormOfHeadsIsThatOfTheSeparateOperations) {
  const c10::InferenceMode inference;
  const at::Tensor gate = Bf16Normal({8, 48}, 6).narrow(1, 8, 40),
                   weight = Normal({8}, 7, at::kFloat);
  for (const auto kind : {kernels::NormGate::kSilu, kernels::NormGate::kSigmoid}) {
    const RowInput input = {
        .x = x_, .norm = RowNorm{weight, 1e-6}, .gate = gate, .gate_kind = kind};
    const at::Tensor normed =
        GatedRmsNorm(x_.view({8, 5, 8}), gate.contiguous().view({8, 5, 8}), weight, 1e-6, kind);
    EXPECT_TRUE(test::BitEqual(RowProducts(input, {{.weight = weights_[0]}}).ys[0],
                               Linear(normed.flatten(-2), weights_[0])));
  }
}

TEST_F(RowProductsTest, SwiGluIsThatOfTheSeparateOperations) {
  const c10::InferenceMode inference;
  const at::Tensor gate = Bf16Normal({6, 40}, 5), up = Bf16Normal({6, 40}, 6);
  EXPECT_TRUE(test::BitEqual(RowProducts({.x = x_}, {{.weight = gate, .up = up}}).ys[0],
                             SwiGlu(Linear(x_, gate), Linear(x_, up))));
}

TEST_F(RowProductsTest, RefusesInputsThatDoNotFit) {
  const c10::InferenceMode inference;
  const RowNorm norm = {.weight = at::ones({41}), .eps = 1e-6};
  EXPECT_HL_ERROR(RowProducts({.x = x_, .norm = norm}, {{.weight = weights_[0]}}),
                  ExitCode::kInternal, "norm of [8, 40]", "weight [41]", "V divides the channels");
  EXPECT_HL_ERROR(RowProducts({.x = x_, .branch = x_}, {{.weight = weights_[0]}}),
                  ExitCode::kInternal, "a branch or a gate only with a norm");
}

}  // namespace
}  // namespace halflife::ops
