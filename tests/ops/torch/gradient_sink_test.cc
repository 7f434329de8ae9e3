// The gradients that reach a parameter's sink, through autograd or from a kernel's backward, and
// which tensors have no sink.
#include "ops/torch/gradient_sink.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "ops/linear/linear.h"
#include "ops/random_tensors.h"
#include "ops/recording_sink.h"

namespace halflife::ops {
namespace {

using test::BitEqual;
using test::Normal;
using test::RecordingSink;

TEST(GradientSink, TakesWhatAutogradBrings) {
  const at::Tensor x = Normal({3}, 1, at::kFloat).requires_grad_();
  RecordingSink::Log log(x, /*before=*/5);
  log.Attach(x);
  (x * 2).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_EQ(log.written, 1);
  EXPECT_TRUE(BitEqual(log.sum, at::full({3}, 2.0f)));  // Overwritten.
  log.added = true;
  (x * 3).sum().backward();
  EXPECT_TRUE(BitEqual(log.sum, at::full({3}, 5.0f)));

  SetGradientSink(x, nullptr);
  (x * 4).sum().backward();
  EXPECT_EQ(log.written, 2);
  EXPECT_TRUE(BitEqual(x.grad(), at::full({3}, 4.0f)));
}

TEST(GradientSink, WidensWhatAutogradBrings) {
  const at::Tensor x = at::ones({3}, at::kBFloat16).requires_grad_();
  RecordingSink::Log log(x, 0);
  log.Attach(x);
  (x * 3).sum().backward();
  EXPECT_TRUE(BitEqual(log.sum, at::full({3}, 3.0f)));
}

// If a backward writes to the sink, autograd does not write as well.
TEST(GradientSink, OnceAUse) {
  const at::Tensor x = Normal({4, 3}, 1, at::kFloat), w = Normal({2, 3}, 2, at::kFloat);
  const at::Tensor weight = w.detach().clone().requires_grad_();
  RecordingSink::Log log(weight, 0);
  log.Attach(weight);
  Linear(x, weight).sum().backward();
  EXPECT_EQ(log.written, 1);
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(test::Close(log.sum, x.sum(0).expand({2, 3}), 1e-6));
}

TEST(GradientSink, LeavesInAPlainBackward) {
  const at::Tensor x = Normal({3}, 1, at::kFloat).requires_grad_();
  RecordingSink::Log log(x, 0);
  log.Attach(x);
  {
    const c10::AutoGradMode no_grad(false);
    EXPECT_NE(GradientSinkOf(x), nullptr);
    EXPECT_EQ(GradientSinkOf(x.view({3, 1})), nullptr);
    EXPECT_EQ(GradientSinkOf(Normal({3}, 1)), nullptr);
    EXPECT_EQ(GradientSinkOf(Normal({3}, 1).requires_grad_()), nullptr);
    EXPECT_EQ(GradientSinkOf({}), nullptr);
  }
  EXPECT_EQ(GradientSinkOf(x), nullptr);  // Its backward would be differentiated.
}

}  // namespace
}  // namespace halflife::ops
