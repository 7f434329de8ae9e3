// Decode: one token per sequence.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>

#include "core/error.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/delta_rule/delta_rule_internal.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

void CheckDeltaStep(const DeltaRuleStepInputs& in, const at::Tensor& state) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  HL_CHECK(q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && q.size(1) > 0, "delta rule step: q ",
           Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           ". Use q and k [B, H, K] and v [B, HV, V].");
  CheckDTypes("delta rule step", {q, k, v});
  const int64_t batch = q.size(0), heads = v.size(1), dim_k = q.size(2);
  HL_CHECK(IsLike(q, k) && v.size(0) == batch && v.scalar_type() == q.scalar_type() &&
               v.device() == q.device() && heads % q.size(1) == 0,
           "delta rule step: q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           " do not match. Use one B, dtype and device, one shape for q and k, and a multiple of "
           "their heads for v.");
  const at::ScalarType compute = ComputeType(q);
  const auto fits = [&](const at::Tensor& x, at::IntArrayRef shape) {
    return FitsWith(q, x, shape) && x.scalar_type() == compute;
  };
  HL_CHECK(fits(state, {batch, heads, dim_k, v.size(2)}) && state.is_contiguous(),
           "delta rule step: state ", Describe(state), " does not fit q ", Describe(q), " and v ",
           Describe(v), ". Use a contiguous [B, HV, K, V] ", DTypeName(compute),
           " on the same device.");
  HL_CHECK(fits(in.beta, {batch, heads}), "delta rule step: beta ", Describe(in.beta),
           " does not fit v ", Describe(v), ". Use [B, HV] ", DTypeName(compute),
           " on the same device.");
  HL_CHECK(!in.log_decay.defined() || fits(in.log_decay, {batch, heads}) ||
               fits(in.log_decay, {batch, heads, dim_k}),
           "delta rule step: log_decay ", Describe(in.log_decay), " does not fit q ", Describe(q),
           " and v ", Describe(v), ". Use [B, HV] or [B, HV, K] ", DTypeName(compute),
           " on the same device.");
}

}  // namespace

at::Tensor DeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale, at::Tensor& state) {
  CheckDeltaStep(inputs, state);
  if (HasDeltaRuleStepKernel(inputs)) return KernelDeltaRuleStep(inputs, scale, state);
  return ComposedDeltaRuleStep(inputs, scale, state);
}

at::Tensor ComposedDeltaRuleStep(const DeltaRuleStepInputs& inputs, double scale,
                                 at::Tensor& state) {
  const at::NoGradGuard no_grad;
  const int64_t num_heads = inputs.v.size(1);
  const auto compute = ComputeType(inputs.q);
  // [B, H, K] as one row per value head, [B, HV, 1, K].
  const auto rows = [&](const at::Tensor& x) {
    return x.to(compute).repeat_interleave(num_heads / x.size(1), 1).unsqueeze(2);
  };
  const at::Tensor q = rows(inputs.q), k = rows(inputs.k);
  const at::Tensor v = inputs.v.to(compute).unsqueeze(2);
  if (inputs.log_decay.defined()) {
    const at::Tensor decay = inputs.log_decay.exp();  // [B, HV, 1 or K, 1]
    state.mul_(decay.dim() == 3 ? decay.unsqueeze(3) : decay.unsqueeze(2).unsqueeze(3));
  }
  const at::Tensor u = (v - at::matmul(k, state)) * inputs.beta.unsqueeze(2).unsqueeze(3);
  state.add_(k.transpose(2, 3) * u);
  return (at::matmul(q, state) * scale).squeeze(2).to(inputs.v.scalar_type());
}

}  // namespace halflife::ops
