#include "ops/rows/forget_gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include "core/error.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// The least alpha of a gate with a bound. Its logarithm stays finite if a bound is so close to 0
// that fp32 rounds it to 0.
constexpr double kLeastAlpha = 1e-30;

struct ForgetGateOp {
  using Inputs = ForgetGateInputs;
  using Outputs = ForgetGateOutput;
  struct Saved {
    at::Tensor x, bound;
  };
};

// With a the sigmoid of x, r = 1 - a and b the bound:
//
//   dx = (1 - b) a r (dlog_decay / alpha - dk),   dbound = sum of r (dlog_decay / alpha - dk)
//
// Without a bound, a / alpha is 1, also where both round to 0.
ForgetGateInputs ForgetGateBackward(const BackwardOf<ForgetGateOp>& call) {
  const auto& [x, bound] = call.saved;
  const at::ScalarType compute = ComputeType(x);
  const at::Tensor wide = x.to(compute), a = at::sigmoid(wide), r = at::sigmoid(-wide);
  const at::Tensor dk = call.grads.k.to(compute), &dlog = call.grads.log_decay;
  if (!bound.defined()) return {.x = (r * (dlog - a * dk)).to(x.scalar_type())};
  const at::Tensor rest = 1 - bound, scaled = rest * a;
  const at::Tensor of_bound = r * (dlog / (bound + scaled).clamp_min(kLeastAlpha) - dk);
  ForgetGateInputs grads = {.x = (scaled * of_bound).to(x.scalar_type())};
  if (call.Wants(&ForgetGateInputs::bound)) grads.bound = of_bound.reshape({-1, x.size(-1)}).sum(0);
  return grads;
}

}  // namespace

ForgetGateOutput ForgetGate(const ForgetGateInputs& inputs) {
  const auto& [x, bound] = inputs;
  CheckDTypes("ForgetGate", {x});
  HL_CHECK(!bound.defined() || (bound.dim() == 1 && bound.size(0) == x.size(-1) &&
                                bound.scalar_type() == ComputeType(x)),
           "ForgetGate: bound ", Describe(bound), " does not fit x ", Describe(x),
           ". Use one value per channel, in the compute type of x.");
  const auto forward = [&]() -> ForwardOf<ForgetGateOp> {
    const at::Tensor wide = x.to(ComputeType(x));
    at::Tensor k = at::sigmoid(-wide), log_decay;
    if (bound.defined()) {
      const at::Tensor rest = 1 - bound;
      const at::Tensor alpha = (bound + rest * at::sigmoid(wide)).clamp_min(kLeastAlpha);
      k = rest * k;
      log_decay = at::where(k < 0.5, at::log1p(-k), at::log(alpha));
    } else {
      log_decay = at::log_sigmoid(wide);
    }
    return {.outputs = {.k = k.to(x.scalar_type()), .log_decay = log_decay},
            .saved = {.x = x, .bound = bound},
            .backward = ForgetGateBackward};
  };
  return Apply<ForgetGateOp>({.name = "ForgetGate", .inputs = inputs, .forward = forward});
}

}  // namespace halflife::ops
