// Retention of RetNet (Sun et al., 2023): S_t = gamma_h S_{t-1} + k_t^T v_t, o_t = q_t S_t / sqrt(K), with rotated q and k
// and gamma_h = 1 - 2^(-5-h) fixed per head; then RMSNorm per head and a SiLU gate. Parameters as in fla's RetNet.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "kernels/decay_attention/decay_attention.h"
#include "kernels/linear/linear.h"
#include "kernels/rotary/rotary.h"
#include "model/mixers/feature_map.h"
#include "model/mixers/mixers.h"

namespace halflife::model {
namespace {

struct Sizes : HeadSizes {
  OutputOptions output;
  FeatureMap feature_map;  // of q and k, before the rotation
  double rotary_base = 0;
};

Sizes ReadSizes(const MixerConfig& config, const MixerContext& context) {
  const int64_t model_dim = context.model_dim;
  MixerOptions options(config, context);
  Sizes sizes = {ReadHeadSizes(options, model_dim, {.num_heads = 8, .expand_k = 1, .expand_v = 2})};
  sizes.output = OutputOptions::Read(options);
  sizes.feature_map = FeatureMap::Read(options);
  sizes.rotary_base = options.Double("rotary_base", 10000);
  options.Choice("retention_norm", "none", {"none"});
  options.Require(sizes.rotary_base > 1, "option rotary_base is ", sizes.rotary_base,
                  "; a number above 1 would work");
  options.Require(sizes.head_dim_k % 2 == 0, "key width per head ", sizes.head_dim_k,
                  " must be even: rotation pairs channels");
  options.Check();
  return sizes;
}

class Retention : public Mixer {
 public:
  Retention(const Sizes& sizes, const MixerContext& context)
      : sizes_(sizes), model_dim_(context.model_dim) {
    q_ = DeclareMatrix(context, "q_proj.weight", sizes.key_dim(), model_dim_);
    k_ = DeclareMatrix(context, "k_proj.weight", sizes.num_kv_heads * sizes.head_dim_k, model_dim_);
    v_ = DeclareMatrix(context, "v_proj.weight", sizes.num_kv_heads * sizes.head_dim_v, model_dim_);
    output_ = GatedOutput(context, sizes, sizes.output);
  }

  MixerOutput Forward(const at::Tensor& x, const SequenceSlice& slice, const MixerState* initial,
                      bool want_state) const override {
    const Projected heads = Project(x, slice.positions);
    kernels::DecayAttentionInputs inputs = {.q = heads.q,
                                            .k = heads.k,
                                            .v = heads.v,
                                            .log_decay = LogDecay(x),
                                            .chunks = slice.chunks,
                                            .initial_state = {}};
    if (initial != nullptr && !initial->tensors.empty())
      inputs.initial_state.kv = initial->tensors[0];
    const auto [o, final_state] = kernels::DecayAttention(inputs, {.scale = Scale()});
    MixerOutput result = {.y = output_(o, heads.gate), .state = {}};
    if (want_state) {
      result.state.tensors = {final_state.kv};
      result.state.num_tokens = (initial == nullptr ? 0 : initial->num_tokens) + slice.seq_len;
    }
    return result;
  }

  MixerState EmptyState(int64_t batch, at::Device device) const override {
    return {.tensors = {at::zeros({batch, sizes_.num_heads, sizes_.head_dim_k, sizes_.head_dim_v},
                                  at::TensorOptions(device).dtype(at::kFloat))},
            .num_tokens = 0};
  }

  at::Tensor Step(const at::Tensor& x, MixerState& state) const override {
    const at::Tensor token = x.unsqueeze(1);
    const auto slice = SequenceSlice::Contiguous(x.size(0), 1, state.num_tokens, x.device());
    const Projected heads = Project(token, slice.positions);
    kernels::DecayState memory = {.kv = state.tensors[0]};
    const at::Tensor o = kernels::DecayAttentionStep({.q = heads.q.squeeze(1),
                                                      .k = heads.k.squeeze(1),
                                                      .v = heads.v.squeeze(1),
                                                      .log_decay = LogDecay(x),
                                                      .constant_decay = true},
                                                     {.scale = Scale()}, memory);
    ++state.num_tokens;
    return output_(o.unsqueeze(1), heads.gate).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto heads = static_cast<double>(sizes_.num_heads),
               dim_k = static_cast<double>(sizes_.head_dim_k),
               dim_v = static_cast<double>(sizes_.head_dim_v),
               dim = static_cast<double>(model_dim_),
               kv_share = static_cast<double>(sizes_.num_kv_heads) / heads;
    const double values = heads * dim_v * (1 + kv_share + (sizes_.output.gate ? 1 : 0));
    return {.matmul = 2 * dim * (heads * dim_k * (1 + kv_share) + values),
            .mixing = 4 * heads * dim_k * dim_v};
  }

  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // x, rotated q and k, v, the gate, o before and after the norm; a state every 256 tokens, 1/rms per head
    const auto keys = static_cast<double>(sizes_.num_heads * sizes_.head_dim_k),
               values = static_cast<double>(sizes_.num_heads * sizes_.head_dim_v);
    const double elements =
        static_cast<double>(model_dim_) + 2 * keys + (sizes_.output.gate ? 4 : 3) * values;
    const double fp32 =
        keys * static_cast<double>(sizes_.head_dim_v) / 256 + static_cast<double>(sizes_.num_heads);
    return elements * static_cast<double>(bytes_per_element) + 4 * fp32;
  }

 private:
  struct Projected {
    at::Tensor q;     // [B, T, H, K], rotated
    at::Tensor k, v;  // [B, T, Hk, *], k rotated
    at::Tensor gate;  // [B, T, H V], or undefined
  };
  Projected Project(const at::Tensor& x, const at::Tensor& positions) const {
    std::vector<at::Tensor> weights = {*q_, *k_, *v_};
    if (sizes_.output.gate) weights.push_back(*output_.gate_proj());
    const std::vector<at::Tensor> y = kernels::SharedInputLinear(x, weights);
    const auto table = kernels::MakeRotaryTable(positions, sizes_.head_dim_k, sizes_.rotary_base);
    const auto rotated = [&](const at::Tensor& heads) {
      return kernels::ApplyRotary(sizes_.feature_map(SplitHeads(heads, sizes_.head_dim_k)), table);
    };
    return {.q = rotated(y[0]),
            .k = rotated(y[1]),
            .v = SplitHeads(y[2], sizes_.head_dim_v),
            .gate = sizes_.output.gate ? y[3] : at::Tensor()};
  }

  // ln gamma_h by log1p: gamma itself rounds to 1 in fp32 from head 20 on.
  at::Tensor LogDecay(const at::Tensor& x) const {
    const at::Tensor head =
        at::arange(sizes_.num_heads, x.options().dtype(at::kFloat).requires_grad(false));
    return at::log1p(-at::exp2(-5 - head));
  }
  double Scale() const { return 1 / std::sqrt(static_cast<double>(sizes_.head_dim_k)); }

  Sizes sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_;
  GatedOutput output_;
};

}  // namespace

std::unique_ptr<Mixer> MakeRetention(const MixerConfig& config, const MixerContext& context) {
  return std::make_unique<Retention>(ReadSizes(config, context), context);
}

}  // namespace halflife::model
