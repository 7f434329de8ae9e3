#include "model/mixers/linear/householder_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

namespace halflife::model {
namespace {

// n - 1 steps of zeros for each token of x [B, T, ...]: [B, T, n - 1, ...].
at::Tensor OtherSteps(const at::Tensor& x, int64_t num_steps) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin() + 2, num_steps - 1);
  return at::zeros(shape, x.options().requires_grad(false));
}

// [B, T, n heads, ...] -> [B, n T, heads, ...].
at::Tensor EachStep(const at::Tensor& x, int64_t num_steps) {
  return x.unflatten(2, {num_steps, x.size(2) / num_steps}).flatten(1, 2);
}

}  // namespace

HouseholderRow ToSteps(const HouseholderRow& tokens, int64_t num_steps, const at::Tensor& starts) {
  const at::Tensor& q = tokens.q;
  HouseholderRow steps = {.q = at::cat({OtherSteps(q, num_steps), q.unsqueeze(2)}, 2).flatten(1, 2),
                          .k = EachStep(tokens.k, num_steps),
                          .v = EachStep(tokens.v, num_steps),
                          .log_decay = {},
                          .beta = EachStep(tokens.beta, num_steps)};
  at::Tensor decay = tokens.log_decay;
  if (!decay.defined() && !starts.defined()) return steps;
  if (!decay.defined()) decay = at::zeros_like(tokens.beta.narrow(2, 0, steps.beta.size(2)));
  if (starts.defined())
    decay = decay.masked_fill(starts.unsqueeze(2), -std::numeric_limits<double>::infinity());
  steps.log_decay = at::cat({decay.unsqueeze(2), OtherSteps(decay, num_steps)}, 2).flatten(1, 2);
  return steps;
}

at::Tensor AtLastSteps(const at::Tensor& steps, int64_t num_steps) {
  return steps.unflatten(1, {steps.size(1) / num_steps, num_steps}).select(2, num_steps - 1);
}

}  // namespace halflife::model
