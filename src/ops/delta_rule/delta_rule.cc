#include "ops/delta_rule/delta_rule.h"

#include <vector>

#include "core/error.h"
#include "ops/delta_rule/delta_rule_internal.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

void CheckDeltaOperands(const DeltaRuleInputs& in) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  HL_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(2) > 0, "delta rule: q ",
           Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           ". Use q and k [B, T, H, K] and v [B, T, HV, V].");
  CheckDTypes("delta rule", {q, k, v});
  HL_CHECK(IsLike(q, k) && v.size(0) == q.size(0) && v.size(1) == q.size(1) &&
               v.scalar_type() == q.scalar_type() && v.device() == q.device(),
           "delta rule: q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           " do not match. Use one B, T, dtype and device, and one shape for q and k.");
  HL_CHECK(v.size(2) % q.size(2) == 0, "delta rule: v has ", v.size(2),
           " heads, which is not a multiple of the ", q.size(2),
           " heads of q and k. Use a multiple of it.");
}

void CheckDeltaGates(const DeltaRuleInputs& in) {
  const int64_t batch = in.q.size(0), seq_len = in.q.size(1), heads = in.v.size(2);
  const at::ScalarType compute = ComputeType(in.q);
  const auto fits = [&](const at::Tensor& x, at::IntArrayRef shape) {
    return FitsWith(in.q, x, shape) && x.scalar_type() == compute;
  };
  HL_CHECK(fits(in.beta, {batch, seq_len, heads}), "delta rule: beta ", Describe(in.beta),
           " does not fit v ", Describe(in.v), ". Use [B, T, HV] ", DTypeName(compute),
           " on the same device.");
  HL_CHECK(!in.log_decay.defined() || fits(in.log_decay, {batch, seq_len, heads}) ||
               fits(in.log_decay, {batch, seq_len, heads, in.q.size(3)}),
           "delta rule: log_decay ", Describe(in.log_decay), " does not fit q ", Describe(in.q),
           " and v ", Describe(in.v), ". Use [B, T, HV] or [B, T, HV, K] ", DTypeName(compute),
           " on the same device.");
}

}  // namespace

int64_t NumDeltaSequences(const DeltaRuleInputs& inputs) {
  return inputs.chunks == nullptr ? inputs.q.size(0) : inputs.chunks->num_sequences();
}

void CheckDeltaRule(const DeltaRuleInputs& inputs) {
  CheckDeltaOperands(inputs);
  CheckDeltaGates(inputs);
  const at::Tensor &q = inputs.q, &v = inputs.v;
  HL_CHECK(inputs.chunks == nullptr ||
               (inputs.chunks->batch == q.size(0) && inputs.chunks->seq_len == q.size(1) &&
                inputs.chunks->device == q.device()),
           "delta rule: the chunks were made for another batch or device. Make them for these "
           "inputs.");
  const std::vector<int64_t> state = {NumDeltaSequences(inputs), v.size(2), q.size(3), v.size(3)};
  HL_CHECK(!inputs.initial_state.defined() || FitsWith(q, inputs.initial_state, state),
           "delta rule: initial_state ", Describe(inputs.initial_state),
           " does not fit. Use [sequences, HV, K, V], which is ", at::IntArrayRef(state), ", on ",
           q.device().str(), ".");
}

DeltaRuleOutput DeltaRule(const DeltaRuleInputs& inputs, double scale) {
  CheckDeltaRule(inputs);
  if (inputs.segment != nullptr) return DeltaRuleOverSegments(inputs, scale);
  return HasDeltaRuleKernels(inputs) ? KernelDeltaRule(inputs, scale)
                                     : ComposedDeltaRule(inputs, scale);
}

}  // namespace halflife::ops
