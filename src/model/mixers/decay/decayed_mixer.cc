#include "model/mixers/decay/decayed_mixer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <cmath>

#include "core/error.h"
#include "kernels/decay_attention/decay_attention.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr double kTokensPerKeptState = 256;  // backward keeps a state so often

Parameter DeclareConv(const PartContext& context, const std::string& name, int64_t channels,
                      int64_t taps) {
  return context.parameters->Declare(
      {.name = context.prefix + name, .shape = {channels, 1, taps}, .weight_decay = false},
      Init::Normal(context.initializer_range));
}

}  // namespace

std::vector<Option> DecayedOptions::Fields() {
  return {{"num_heads", &num_heads},
          {"num_kv_heads", &num_kv_heads, {.min = 0}},
          {"expand_k", &expand_k},
          {"expand_v", &expand_v},
          {"use_output_gate", &use_output_gate},
          {"norm_affine", &norm_affine},
          {"feature_map", &feature_map, {.choices = Activation::Names()}}};
}

void DecayedOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  if (num_kv_heads == 0) num_kv_heads = num_heads;
  const auto dim = static_cast<double>(sizes.model_dim);
  const double dim_k = dim * expand_k, dim_v = dim * expand_v;
  const bool sane = dim_k >= 0 && dim_k <= kMaxWidth && dim_v >= 0 && dim_v <= kMaxWidth;
  problems.Require(sane, "expand_k ", expand_k, " and expand_v ", expand_v,
                   "; factors of model_dim, e.g. 0.5 and 1, would work (widths up to ", kMaxWidth,
                   ")");
  if (!sane) return;
  problems.Require(dim_k == std::floor(dim_k) && dim_v == std::floor(dim_v), "model_dim ",
                   sizes.model_dim, " times expand_k ", expand_k, " and expand_v ", expand_v,
                   " must be whole numbers");
  const auto keys = static_cast<int64_t>(dim_k), values = static_cast<int64_t>(dim_v);
  const bool heads_fit = keys > 0 && values > 0 && keys % num_heads == 0 && values % num_heads == 0;
  problems.Require(heads_fit, "num_heads ", num_heads, " must divide the key width ", keys,
                   " and the value width ", values);
  problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                   " must divide num_heads ", num_heads);
  if (heads_fit) head_dim_k = keys / num_heads, head_dim_v = values / num_heads;
}

DecayedMixer::DecayedMixer(const DecayedOptions& options, const PartContext& context,
                           const DecayedForm& form)
    : options_(options),
      model_dim_(context.model_dim()),
      norm_eps_(context.norm_eps),
      conv_size_(form.conv_size),
      rope_theta_(form.rope_theta),
      feature_map_(Activation::Named(options.feature_map)) {
  q_ = DeclareMatrix(context, "q_proj.weight", {.out = options.key_dim(), .in = model_dim_});
  k_ = DeclareMatrix(context, "k_proj.weight", {.out = options.kv_key_dim(), .in = model_dim_});
  v_ = DeclareMatrix(
      context, "v_proj.weight",
      {.out = options.kv_value_dim(), .in = model_dim_, .init_scale = context.value_init_scale});
  if (conv_size_ > 0) {
    convs_ = {DeclareConv(context, "q_conv1d.weight", options.key_dim(), conv_size_),
              DeclareConv(context, "k_conv1d.weight", options.kv_key_dim(), conv_size_),
              DeclareConv(context, "v_conv1d.weight", options.kv_value_dim(), conv_size_)};
  }
  decay_ = form.make_decay(context);
  const bool gated = options.use_output_gate;
  if (gated)
    gate_ = DeclareMatrix(context, "g_proj.weight", {.out = options.value_dim(), .in = model_dim_});
  if (options.norm_affine)
    norm_ = DeclareNorm(context, gated ? "g_norm_swish_gate.weight" : "g_norm.weight",
                        options.head_dim_v);
  out_ = OutputProjection(context, options.value_dim(), /*bias=*/false);
}

MixerTraits DecayedMixer::traits() const {
  MixerTraits traits;
  traits.state = {
      {.name = "kv", .shape = {options_.num_heads, options_.head_dim_k, options_.head_dim_v}}};
  if (conv_size_ == 0) return traits;
  const auto tail = [&](const char* name, int64_t channels) {
    traits.state.push_back(
        {.name = name, .shape = {conv_size_ - 1, channels}, .exchange = StateExchange::kTail});
  };
  tail("q_tail", options_.key_dim());
  tail("k_tail", options_.kv_key_dim());
  tail("v_tail", options_.kv_value_dim());
  return traits;
}

MixerOutput DecayedMixer::Forward(const MixerCall& call) const {
  const bool carried = call.initial != nullptr && !call.initial->tensors.empty();
  MixerOutput result;
  if (call.want_state) result.state.tensors.resize(conv_size_ > 0 ? 1 + convs_.size() : 1);
  const Heads heads = Project(call.x, call.slice.positions, [&](const at::Tensor& y, size_t index) {
    return Convolve(y, index, call, call.want_state ? &result.state : nullptr);
  });
  const auto [o, final_state] = kernels::DecayAttention(
      {.q = heads.q,
       .k = heads.k,
       .v = heads.v,
       .log_decay = heads.log_decay,
       .chunks = call.slice.chunks,
       .initial_state = {.kv = carried ? call.initial->tensors[0] : at::Tensor()}},
      {.scale = Scale()});
  result.y = Output(o, heads.gate);
  if (call.want_state) result.state.tensors[0] = final_state.kv;
  return result;
}

at::Tensor DecayedMixer::Step(const at::Tensor& x, int64_t num_past, MixerState& state) const {
  const at::Tensor token = x.unsqueeze(1);
  const auto slice = SequenceSlice::Contiguous(x.size(0), 1, num_past, x.device());
  const Heads heads = Project(token, slice.positions, [&](const at::Tensor& y, size_t index) {
    if (conv_size_ == 0) return y;
    return kernels::ShortConvStep(y.squeeze(1), *convs_[index], state.tensors[1 + index])
        .unsqueeze(1);
  });
  const bool constant = decay_->constant();
  kernels::DecayState memory = {.kv = state.tensors[0]};
  const at::Tensor o = kernels::DecayAttentionStep(
      {.q = heads.q.squeeze(1),
       .k = heads.k.squeeze(1),
       .v = heads.v.squeeze(1),
       .log_decay = constant ? heads.log_decay : heads.log_decay.squeeze(1),
       .constant_decay = constant},
      {.scale = Scale()}, memory);
  return Output(o.unsqueeze(1), heads.gate).squeeze(1);
}

DecayedMixer::Heads DecayedMixer::Project(const at::Tensor& x, const at::Tensor& positions,
                                          const Convolution& convolve) const {
  std::vector<at::Tensor> weights = {*q_, *k_, *v_};
  const std::vector<at::Tensor> of_decay = decay_->Weights();
  weights.insert(weights.end(), of_decay.begin(), of_decay.end());
  if (gate_.declared()) weights.push_back(*gate_);
  const std::vector<at::Tensor> y = kernels::SharedInputLinear(x, weights);
  const auto heads = [&](size_t index, int64_t head_dim) {
    return SplitHeads(convolve(y[index], index), head_dim);
  };
  at::Tensor q = feature_map_(heads(0, options_.head_dim_k)),
             k = feature_map_(heads(1, options_.head_dim_k));
  if (rope_theta_ > 0) {
    const auto table = kernels::MakeRotaryTable(positions, options_.head_dim_k, rope_theta_);
    q = kernels::ApplyRotary(q, table);
    k = kernels::ApplyRotary(k, table);
  }
  return {.q = std::move(q),
          .k = std::move(k),
          .v = heads(2, options_.head_dim_v),
          .log_decay = (*decay_)(x, std::span(y).subspan(3, of_decay.size())),
          .gate = gate_.declared() ? y.back() : at::Tensor()};
}

// Convolution `index` reads its tail from the call's state and leaves the new one in `after`.
at::Tensor DecayedMixer::Convolve(const at::Tensor& y, size_t index, const MixerCall& call,
                                  MixerState* after) const {
  if (conv_size_ == 0) return y;
  const bool carried = call.initial != nullptr && !call.initial->tensors.empty();
  const kernels::ShortConvInputs inputs = {
      .x = y,
      .weight = *convs_[index],
      .tail = carried ? call.initial->tensors[1 + index] : at::Tensor(),
      .documents = call.slice.documents,
      .starts = call.slice.starts};
  if (after != nullptr) {
    // A copy: a view would keep the whole sequence.
    const at::Tensor tail = kernels::ShortConvTail(inputs).to(
        kernels::ComputeType(y), /*non_blocking=*/false, /*copy=*/true);
    after->tensors[1 + index] = tail.contiguous();
  }
  return kernels::ShortConv(inputs);
}

// o [..., H, V], gate [..., H V] or undefined -> [..., D].
at::Tensor DecayedMixer::Output(const at::Tensor& o, const at::Tensor& gate) const {
  const at::Tensor weight =
      norm_.declared() ? *norm_
                       : at::ones({o.size(-1)}, o.options().dtype(kernels::ComputeType(o)));
  const at::Tensor y = gate.defined()
                           ? kernels::GatedRmsNorm(o, gate.view(o.sizes()), weight, norm_eps_)
                           : kernels::RmsNorm(o, weight, norm_eps_);
  return out_(y.flatten(-2));
}

double DecayedMixer::Scale() const {
  return 1 / std::sqrt(static_cast<double>(options_.head_dim_k));
}

FlopCount DecayedMixer::FlopsPerToken(int64_t) const {
  const int64_t gates = gate_.declared() ? options_.value_dim() : 0;
  const int64_t rows = options_.key_dim() + options_.kv_key_dim() + options_.kv_value_dim() +
                       options_.value_dim() + gates;
  return {.matmul = 2 * static_cast<double>(model_dim_ * rows + decay_->num_matrix_elements()),
          .mixing = 4 * static_cast<double>(options_.key_dim() * options_.head_dim_v)};
}

double DecayedMixer::ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const {
  const auto keys = static_cast<double>(options_.key_dim()),
             values = static_cast<double>(options_.value_dim());
  // x, q, k, v, the gate, o before and after the norm.
  const double elements = static_cast<double>(model_dim_ + decay_->num_activations()) + 2 * keys +
                          (gate_.declared() ? 4 : 3) * values;
  // The kept states, and 1/rms of each head.
  const double fp32 = static_cast<double>(decay_->num_fp32_activations()) +
                      keys * static_cast<double>(options_.head_dim_v) / kTokensPerKeptState +
                      static_cast<double>(options_.num_heads);
  return elements * static_cast<double>(bytes_per_element) + 4 * fp32;
}

}  // namespace halflife::model
