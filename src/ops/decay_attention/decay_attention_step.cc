// Decode: one token per sequence.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "core/error.h"
#include "kernels/decay_attention/low_rank_step.h"
#include "ops/decay_attention/decay_attention_internal.h"
#include "ops/linear/linear.h"
#include "ops/linear/row_products.h"

namespace halflife::ops {
namespace {

using namespace binding;

void CheckState(const at::Tensor& q, const DecayState& state, const DecayAttentionConfig& config) {
  CheckStateFields("state", state, config);
  if (config.norm == kernels::NormKind::kNone) return;
  const std::vector<int64_t> want = {state.kv.size(0), state.kv.size(1), state.kv.size(2)};
  HL_CHECK(state.norm.defined() && FitsWith(q, state.norm, want) &&
               state.norm.scalar_type() == ComputeType(q) && state.norm.is_contiguous(),
           "decay attention step: state.norm ", Describe(state.norm), " does not fit state.kv ",
           Describe(state.kv), ". Use a contiguous ", at::IntArrayRef(want), " of ",
           DTypeName(ComputeType(q)), " on the same device.");
}

void CheckLogDecay(const DecayAttentionStepInputs& in) {
  const at::Tensor &q = in.q, &g = in.log_decay;
  if (!g.defined()) return;
  const int64_t rest = g.dim() - (in.constant_decay ? 0 : 1);  // [Hd] or [Hd, K]
  HL_CHECK((rest == 1 || (rest == 2 && g.size(-1) == q.size(2))) &&
               (in.constant_decay || g.size(0) == q.size(0)) && g.device() == q.device(),
           "decay attention step: log_decay ", Describe(g), " does not fit q ", Describe(q),
           in.constant_decay ? ". Use [Hd] or [Hd, K]" : ". Use [B, Hd] or [B, Hd, K]",
           " on the same device.");
}

void CheckTensors(const DecayAttentionStepInputs& in, const at::Tensor& state) {
  const at::Tensor &q = in.q, &k = in.k, &v = in.v;
  HL_CHECK(q.dim() == 3 && k.dim() == 3 && v.dim() == 3 && state.defined() && state.dim() == 4,
           "decay attention step got q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
           ", state ", Describe(state), ". Use [B, heads, K], [B, heads, V] and [B, H, K, V].");
  HL_CHECK(q.is_cpu() || q.is_cuda(), "decay attention step got q ", Describe(q),
           ". Use the CPU or CUDA: other devices have no kernels.");
  CheckCounts({q, k, v, state});
  const int64_t batch = q.size(0), dim_k = q.size(2);
  HL_CHECK(k.size(0) == batch && v.size(0) == batch && k.size(2) == dim_k &&
               state.size(0) == batch && state.size(2) == dim_k && state.size(3) == v.size(2) &&
               state.is_contiguous(),
           "decay attention step: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(), ", state ",
           state.sizes(), " do not match. Use one B and K, and a contiguous state [B, H, K, V].");
  const auto like_q = [&](const at::Tensor& x) {
    return x.scalar_type() == q.scalar_type() && x.device() == q.device();
  };
  HL_CHECK(like_q(k) && like_q(v) && state.device() == q.device() &&
               state.scalar_type() == ComputeType(q),
           "decay attention step got q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           ", state ", Describe(state), ". Use q, k, v of one dtype and device, and a state of ",
           DTypeName(ComputeType(q)), " on the same device.");
  HL_CHECK(!in.key_scale.defined() || FitsWith(q, in.key_scale, {batch, state.size(1)}),
           "decay attention step: key_scale ", Describe(in.key_scale), " does not fit state ",
           Describe(state), ". Use [B, H] on the same device.");
  CheckLogDecay(in);
}

void SetLogDecay(const at::Tensor& log_decay, bool constant,
                 kernels::DecayAttentionStepArgs& args) {
  const int64_t head = constant ? 0 : 1;
  const bool per_channel = log_decay.dim() == head + 2;
  args.decay_kind =
      constant
          ? (per_channel ? kernels::DecayKind::kPerHeadChannel : kernels::DecayKind::kPerHead)
          : (per_channel ? kernels::DecayKind::kPerTokenChannel : kernels::DecayKind::kPerToken);
  args.num_decay_heads = static_cast<int>(log_decay.size(head));
  args.log_decay = {.data = log_decay.data_ptr(),
                    .stride_b = constant ? 0 : log_decay.stride(0),
                    .stride_t = 0,
                    .stride_h = log_decay.stride(head),
                    .dtype = ToDType(log_decay)};
}

void CheckLowRank(const DecayAttentionStepInputs& in) {
  const LowRankDecay& decay = in.low_rank;
  const bool fits = in.q.dim() == 3 && decay.hidden.dim() == 2 && decay.weight.defined() &&
                    decay.weight.dim() == 2 && decay.hidden.size(0) == in.q.size(0) &&
                    decay.weight.size(1) == decay.hidden.size(1) &&
                    decay.weight.size(0) % in.q.size(2) == 0 &&
                    FitsWith(in.q, decay.bias, {decay.weight.size(0)}) && !in.log_decay.defined();
  HL_CHECK(fits, "decay attention step: a decay of ", Describe(decay.hidden), ", ",
           Describe(decay.weight), " and ", Describe(decay.bias), " does not fit q ",
           Describe(in.q), ". Use [B, R], [Hd K, R] and [Hd K], without log_decay.");
}

// Returns true if the step's kernel can compute the decay.
bool CanComputeDecay(const DecayAttentionStepInputs& in, const DecayAttentionConfig& config) {
  const LowRankDecay& decay = in.low_rank;
  constexpr uintptr_t kAlignment = 16;
  const auto address = reinterpret_cast<uintptr_t>(decay.hidden.const_data_ptr());
  return !config.allow_growth && !in.norm_q.defined() && decay.hidden.is_contiguous() &&
         address % kAlignment == 0 && HasRowProducts(decay.hidden, decay.weight) &&
         in.q.scalar_type() == at::kBFloat16 && decay.weight.size(1) <= kernels::kMaxDecayRank &&
         decay.bias.scalar_type() == at::kFloat && decay.bias.is_contiguous();
}

DecayAttentionStepInputs WithLogDecay(DecayAttentionStepInputs in) {
  const LowRankDecay decay = std::exchange(in.low_rank, {});
  in.log_decay = DecayGate(Linear(decay.hidden, decay.weight), decay.bias, decay.gate)
                     .unflatten(-1, {-1, in.q.size(2)});
  return in;
}

at::Tensor RunStep(const DecayAttentionStepInputs& inputs, const DecayAttentionConfig& config,
                   const DecayState& state) {
  const at::Tensor q = Rows(inputs.q), k = Rows(inputs.k), v = Rows(inputs.v);
  const c10::DeviceGuard guard(q.device());
  const at::Tensor out = at::empty({q.size(0), state.kv.size(1), v.size(2)}, v.options());
  kernels::DecayAttentionStepArgs args = {.batch = static_cast<int>(q.size(0)),
                                          .num_heads = static_cast<int>(state.kv.size(1)),
                                          .num_q_heads = static_cast<int>(q.size(1)),
                                          .num_k_heads = static_cast<int>(k.size(1)),
                                          .num_v_heads = static_cast<int>(v.size(1)),
                                          .num_decay_heads = 1,
                                          .head_dim_k = static_cast<int>(q.size(2)),
                                          .head_dim_v = static_cast<int>(v.size(2)),
                                          .norm_kind = config.norm,
                                          .scale = config.scale,
                                          .norm_eps = config.norm_eps,
                                          .q = TokenView(q),
                                          .k = TokenView(k),
                                          .v = TokenView(v),
                                          .out = TokenView(out)};
  at::Tensor log_decay, key_scale;
  if (inputs.log_decay.defined()) {
    log_decay = DecayRows(inputs.log_decay.to(ComputeType(q)), inputs.constant_decay);
    SetLogDecay(log_decay, inputs.constant_decay, args);
  }
  if (inputs.key_scale.defined()) {
    key_scale = inputs.key_scale.to(ComputeType(q));
    args.key_scale = TokenView(key_scale);
  }
  args.state = state.kv.mutable_data_ptr();
  if (state.norm.defined()) args.norm = state.norm.mutable_data_ptr();
  if (inputs.low_rank.hidden.defined()) {
    const LowRankDecay& decay = inputs.low_rank;
    const at::Tensor& hidden = decay.hidden;
    args.decay_kind = kernels::DecayKind::kPerTokenChannel;
    args.num_decay_heads = static_cast<int>(decay.bias.numel() / q.size(2));
    const kernels::LowRankDecay low_rank = {
        .hidden = Elements<Bf16>(hidden),
        .hidden_stride = hidden.size(1),
        .weight = Elements<Bf16>(decay.weight),
        .rank = static_cast<int>(hidden.size(1)),
        .form = {.bias = Elements<float>(decay.bias),
                 .scale = static_cast<float>(decay.gate.scale),
                 .floor = static_cast<float>(decay.gate.floor)}};
    HL_DISPATCH(q.is_cuda(), LowRankStep, args, low_rank);
    return out;
  }
  HL_DISPATCH(q.is_cuda(), Step, args);
  return out;
}

}  // namespace

at::Tensor DecayAttentionStep(const DecayAttentionStepInputs& inputs,
                              const DecayAttentionConfig& config, DecayState& state) {
  if (inputs.low_rank.hidden.defined()) {
    CheckLowRank(inputs);
    if (!CanComputeDecay(inputs, config))
      return DecayAttentionStep(WithLogDecay(inputs), config, state);
  }
  CheckTensors(inputs, state.kv);
  CheckState(inputs.q, state, config);
  HL_CHECK(!inputs.log_key_scale.defined() ||
               (config.allow_growth &&
                FitsWith(inputs.q, inputs.log_key_scale, {state.kv.size(0), state.kv.size(1)})),
           "decay attention step: log_key_scale ", Describe(inputs.log_key_scale),
           " does not fit state ", Describe(state.kv), ". Use [B, H] with allow_growth.");
  const auto run = [&](const DecayAttentionStepInputs& plain) {
    return plain.norm_q.defined() ? NormaliseStepSeparately(plain, config, state)
                                  : RunStep(plain, config, state);
  };
  return run(config.allow_growth ? ScaleGrowthOfStep(inputs, config, state) : inputs);
}

}  // namespace halflife::ops
