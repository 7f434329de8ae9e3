// Decode: one token per sequence.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "core/error.h"
#include "ops/decay_attention/decay_attention_internal.h"

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
  HL_DISPATCH(q.is_cuda(), Step, args);
  return out;
}

}  // namespace

at::Tensor DecayAttentionStep(const DecayAttentionStepInputs& inputs,
                              const DecayAttentionConfig& config, DecayState& state) {
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
