// A normaliser with operands of its own, in two passes.
#include "ops/decay_attention/decay_attention_internal.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include "core/error.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// Returns the inputs of the numerator in fp32. The division is in fp32, so the numerators must not
// be rounded before it.
template <typename Inputs>
Inputs Numerator(Inputs in) {
  const at::ScalarType compute = ComputeType(in.q);
  in.q = in.q.to(compute), in.k = in.k.to(compute), in.v = in.v.to(compute);
  in.norm_q.reset(), in.norm_k.reset();
  return in;
}

template <typename Inputs>
Inputs Denominator(Inputs in, const std::vector<int64_t>& ones) {
  HL_CHECK(
      in.norm_k.defined() && in.norm_q.sizes() == in.q.sizes() && in.norm_k.sizes() == in.k.sizes(),
      "decay attention: norm_q ", Describe(in.norm_q), " and norm_k ", Describe(in.norm_k),
      ". Use the shapes of q ", Describe(in.q), " and k ", Describe(in.k), ".");
  in.q = in.norm_q, in.k = in.norm_k;
  in = Numerator(std::move(in));
  in.v = at::ones(ones, in.v.options().requires_grad(false));
  return in;
}

DecayAttentionConfig Unnormalised(DecayAttentionConfig config) {
  config.norm = kernels::NormKind::kNone;
  config.allow_growth = false;
  return config;
}

at::Tensor Divided(const at::Tensor& numerator, const at::Tensor& denominator, double eps,
                   at::ScalarType dtype) {
  return (numerator / (denominator + eps)).to(dtype);
}

}  // namespace

DecayAttentionOutput NormaliseSeparately(const DecayAttentionInputs& inputs,
                                         const DecayAttentionConfig& config) {
  const DecayAttentionConfig plain = Unnormalised(config);
  const DecayState& initial = inputs.initial_state;
  DecayAttentionInputs in = inputs;
  in.q_gradient = in.k_gradient = in.v_gradient = {};  // the passes read other tensors
  DecayAttentionInputs above = Numerator(in);
  above.initial_state = {.kv = initial.kv};
  DecayAttentionInputs below =
      Denominator(in, {inputs.q.size(0), inputs.q.size(1), inputs.k.size(2), 1});
  below.initial_state = {.kv = initial.norm.defined() ? initial.norm.unsqueeze(3) : at::Tensor()};
  const DecayAttentionOutput n = DecayAttention(above, plain), d = DecayAttention(below, plain);
  return {.out = Divided(n.out, d.out, config.norm_eps, inputs.v.scalar_type()),
          .final_state = {.kv = n.final_state.kv, .norm = d.final_state.kv.squeeze(3)}};
}

at::Tensor NormaliseStepSeparately(const DecayAttentionStepInputs& inputs,
                                   const DecayAttentionConfig& config, DecayState& state) {
  const DecayAttentionConfig plain = Unnormalised(config);
  DecayState above = {.kv = state.kv}, below = {.kv = state.norm.unsqueeze(3)};
  const at::Tensor n = DecayAttentionStep(Numerator(inputs), plain, above);
  const at::Tensor d = DecayAttentionStep(
      Denominator(inputs, {inputs.q.size(0), inputs.k.size(1), 1}), plain, below);
  return Divided(n, d, config.norm_eps, inputs.v.scalar_type());
}

}  // namespace halflife::ops
