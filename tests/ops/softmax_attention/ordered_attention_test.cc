// LibTorch's attention in deterministic mode gives the usual results and restores the mode
// afterwards.
#include "ops/softmax_attention/composed.h"

#include <ATen/Context.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "ops/random_tensors.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Normal;

class Deterministic {
 public:
  explicit Deterministic(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
  }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
};

struct Leaves {
  at::Tensor q = Normal({2, 4, 9, 8}, 1).requires_grad_();
  at::Tensor k = Normal({2, 2, 9, 8}, 2).requires_grad_();
  at::Tensor v = Normal({2, 2, 9, 5}, 3).requires_grad_();
  at::Tensor mask = Normal({1, 4, 9, 9}, 4).requires_grad_();
};

// Returns the output and the gradients of the inputs that require one.
std::vector<at::Tensor> Results(const OrderedAttentionInputs& inputs) {
  const at::Tensor out = OrderedAttention(inputs);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor* const x : {&inputs.q, &inputs.k, &inputs.v, &inputs.mask})
    if (x->defined() && x->requires_grad()) leaves.push_back(*x);
  std::vector<at::Tensor> results =
      torch::autograd::grad({out}, leaves, {Normal(out.sizes().vec(), 5)});
  results.push_back(out.detach());
  return results;
}

TEST(OrderedAttentionTest, GivesWhatLibTorchGives) {
  const Leaves leaves;
  for (const OrderedAttentionInputs& inputs :
       {OrderedAttentionInputs{.q = leaves.q, .k = leaves.k, .v = leaves.v, .causal = true},
        OrderedAttentionInputs{
            .q = leaves.q, .k = leaves.k, .v = leaves.v, .mask = leaves.mask, .scale = 0.3},
        OrderedAttentionInputs{
            .q = leaves.q.detach(), .k = leaves.k, .v = leaves.v, .mask = leaves.mask.detach()}}) {
    std::vector<std::vector<at::Tensor>> both;
    for (const bool on : {false, true}) {
      const Deterministic deterministic(on);
      both.push_back(Results(inputs));
      EXPECT_EQ(at::globalContext().deterministicAlgorithms(), on);
      EXPECT_TRUE(at::globalContext().deterministicAlgorithmsWarnOnly());
    }
    ASSERT_EQ(both[0].size(), both[1].size());
    for (size_t i = 0; i < both[0].size(); ++i)
      EXPECT_TRUE(test::BitEqual(both[0][i], both[1][i])) << i;
  }
}

TEST(OrderedAttentionTest, RefusesASecondBackward) {
  const Deterministic deterministic(true);
  const Leaves leaves;
  const at::Tensor out = OrderedAttention({.q = leaves.q, .k = leaves.k, .v = leaves.v});
  const auto backward = [&] {
    torch::autograd::grad({out}, {leaves.q}, {at::ones_like(out)}, /*retain_graph=*/true);
  };
  backward();
  EXPECT_HL_ERROR(backward(), ExitCode::kInternal, "backward ran a second time through attention");
}

}  // namespace
}  // namespace halflife::ops
