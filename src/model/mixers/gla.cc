// Gated linear attention (Yang et al., 2024): S_t = diag(alpha_t) S_{t-1} + k_t^T v_t, o_t = q_t S_t / sqrt(K), with
// ln alpha_t = logsigmoid(W2 W1 x_t + b) / 16 per key channel; then RMSNorm per head and a SiLU gate. Optionally a short
// convolution before. Parameters as in fla's GLA, whose rank and normaliser of the gate are constants too.
#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/decay_attention/decay_attention.h"
#include "kernels/linear/linear.h"
#include "kernels/short_conv/short_conv.h"
#include "kernels/torch/dispatch.h"
#include "model/mixers/feature_map.h"
#include "model/mixers/mixers.h"

namespace halflife::model {
namespace {

constexpr int64_t kGateRank = 16;
constexpr double kGateNormaliser = 16;

struct Sizes : HeadSizes {
  int64_t conv_size = 0;  // 0: no short convolution
  OutputOptions output;
  FeatureMap feature_map;  // of q and k, after the convolution
  double clamp_min = 0;    // of the log decay
};

Sizes ReadSizes(const MixerConfig& config, const MixerContext& context) {
  const int64_t model_dim = context.model_dim;
  MixerOptions options(config, context);
  Sizes sizes = {
      ReadHeadSizes(options, model_dim, {.num_heads = 4, .expand_k = 0.5, .expand_v = 1})};
  sizes.output = OutputOptions::Read(options);
  sizes.feature_map = FeatureMap::Read(options);
  const bool use_short_conv = options.Bool("use_short_conv", false);
  const int64_t conv_size = options.Int("conv_size", 4, 2);
  sizes.conv_size = use_short_conv ? conv_size : 0;
  sizes.clamp_min = options.Double("clamp_min", -std::numeric_limits<double>::infinity());
  options.Require(sizes.clamp_min <= 0, "option clamp_min is ", sizes.clamp_min,
                  "; it bounds a logarithm <= 0 from below");
  options.Check();
  return sizes;
}

class Gla : public Mixer {
 public:
  Gla(const Sizes& sizes, const MixerContext& context)
      : sizes_(sizes), model_dim_(context.model_dim) {
    const int64_t kv_key_dim = sizes.num_kv_heads * sizes.head_dim_k,
                  kv_value_dim = sizes.num_kv_heads * sizes.head_dim_v;
    q_ = DeclareMatrix(context, "q_proj.weight", sizes.key_dim(), model_dim_);
    k_ = DeclareMatrix(context, "k_proj.weight", kv_key_dim, model_dim_);
    v_ = DeclareMatrix(context, "v_proj.weight", kv_value_dim, model_dim_);
    if (sizes.conv_size > 0) {
      convs_ = {DeclareConv(context, "q_conv1d.weight", sizes.key_dim(), sizes.conv_size),
                DeclareConv(context, "k_conv1d.weight", kv_key_dim, sizes.conv_size),
                DeclareConv(context, "v_conv1d.weight", kv_value_dim, sizes.conv_size)};
    }
    decay_in_ = DeclareMatrix(context, "gk_proj.0.weight", kGateRank, model_dim_);
    decay_out_ = DeclareMatrix(context, "gk_proj.1.weight", kv_key_dim, kGateRank);
    decay_bias_ = context.parameters->Declare({.name = context.prefix + "gk_proj.1.bias",
                                               .shape = {kv_key_dim},
                                               .region = dist::Region::kFp32},
                                              Init::Zeros());
    output_ = GatedOutput(context, sizes, sizes.output);
  }

  MixerOutput Forward(const at::Tensor& x, const SequenceSlice& slice, const MixerState* initial,
                      bool want_state) const override {
    const bool carried = initial != nullptr && !initial->tensors.empty();
    MixerOutput result;
    if (want_state) result.state.tensors.resize(sizes_.conv_size > 0 ? 1 + convs_.size() : 1);
    const Projected heads = Project(x, [&](const at::Tensor& y, size_t index) {
      return Convolve(y, index, slice, carried ? initial : nullptr,
                      want_state ? &result.state : nullptr);
    });
    const auto [o, final_state] = kernels::DecayAttention(
        {.q = heads.q,
         .k = heads.k,
         .v = heads.v,
         .log_decay = heads.log_decay,
         .chunks = slice.chunks,
         .initial_state = {.kv = carried ? initial->tensors[0] : at::Tensor()}},
        {.scale = Scale()});
    result.y = output_(o, heads.gate);
    if (want_state) {
      result.state.tensors[0] = final_state.kv;
      result.state.num_tokens = (initial == nullptr ? 0 : initial->num_tokens) + slice.seq_len;
    }
    return result;
  }

  MixerState EmptyState(int64_t batch, at::Device device) const override {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    MixerState state;
    state.tensors = {
        at::zeros({batch, sizes_.num_heads, sizes_.head_dim_k, sizes_.head_dim_v}, options)};
    if (sizes_.conv_size == 0) return state;
    const int64_t kv_heads = sizes_.num_kv_heads;
    for (const int64_t channels :
         {sizes_.key_dim(), kv_heads * sizes_.head_dim_k, kv_heads * sizes_.head_dim_v})
      state.tensors.push_back(at::zeros({batch, sizes_.conv_size - 1, channels}, options));
    return state;
  }

  at::Tensor Step(const at::Tensor& x, MixerState& state) const override {
    const Projected heads = Project(x.unsqueeze(1), [&](const at::Tensor& y, size_t index) {
      if (sizes_.conv_size == 0) return y;
      return kernels::ShortConvStep(y.squeeze(1), *convs_[index], state.tensors[1 + index])
          .unsqueeze(1);
    });
    kernels::DecayState memory = {.kv = state.tensors[0]};
    const at::Tensor o = kernels::DecayAttentionStep({.q = heads.q.squeeze(1),
                                                      .k = heads.k.squeeze(1),
                                                      .v = heads.v.squeeze(1),
                                                      .log_decay = heads.log_decay.squeeze(1)},
                                                     {.scale = Scale()}, memory);
    ++state.num_tokens;
    return output_(o.unsqueeze(1), heads.gate).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(model_dim_), keys = static_cast<double>(sizes_.key_dim()),
               values = static_cast<double>(sizes_.value_dim()),
               kv_share =
                   static_cast<double>(sizes_.num_kv_heads) / static_cast<double>(sizes_.num_heads),
               rank = static_cast<double>(kGateRank);
    const double projections =
        keys * (1 + kv_share) + values * (1 + kv_share + (sizes_.output.gate ? 1 : 0)) + rank;
    return {.matmul = 2 * (dim * projections + rank * keys * kv_share),
            .mixing = 4 * keys * static_cast<double>(sizes_.head_dim_v)};
  }

  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // x, q, k, v, the gate, o before and after the norm; fp32: decay logits and log decay, a state every 256 tokens, 1/rms per head
    const auto keys = static_cast<double>(sizes_.key_dim()),
               values = static_cast<double>(sizes_.value_dim());
    const double elements = static_cast<double>(model_dim_ + kGateRank) + 2 * keys +
                            (sizes_.output.gate ? 4 : 3) * values;
    const double fp32 = 2 * keys + keys * static_cast<double>(sizes_.head_dim_v) / 256 +
                        static_cast<double>(sizes_.num_heads);
    return elements * static_cast<double>(bytes_per_element) + 4 * fp32;
  }

 private:
  struct Projected {
    at::Tensor q;                // [B, T, H, K]
    at::Tensor k, v, log_decay;  // [B, T, Hk, *]: H / Hk query heads read each
    at::Tensor gate;             // [B, T, H V], or undefined
  };

  static Parameter DeclareConv(const MixerContext& context, const std::string& name,
                               int64_t channels, int64_t taps) {
    return context.parameters->Declare(
        {.name = context.prefix + name, .shape = {channels, 1, taps}},
        Init::Normal(context.initializer_range));
  }

  // q, k or v before the split into heads: [B, T, dim]. Convolution `index` reads its tail from `before` and leaves the new
  // one in `after`.
  at::Tensor Convolve(const at::Tensor& x, size_t index, const SequenceSlice& slice,
                      const MixerState* before, MixerState* after) const {
    if (sizes_.conv_size == 0) return x;
    const kernels::ShortConvInputs inputs = {
        .x = x,
        .weight = *convs_[index],
        .tail = before == nullptr ? at::Tensor() : before->tensors[1 + index],
        .documents = slice.documents,
        .starts = slice.starts};
    if (after != nullptr)  // a copy: a view would keep the whole sequence
      after->tensors[1 + index] = kernels::ShortConvTail(inputs)
                                      .to(kernels::ComputeType(x), /*non_blocking=*/false,
                                          /*copy=*/true)
                                      .contiguous();
    return kernels::ShortConv(inputs);
  }

  // `convolve` takes q, k or v [B, T, dim] and which of them it is.
  template <typename Convolution>
  Projected Project(const at::Tensor& x, const Convolution& convolve) const {
    std::vector<at::Tensor> weights = {*q_, *k_, *v_, *decay_in_};
    if (sizes_.output.gate) weights.push_back(*output_.gate_proj());
    const std::vector<at::Tensor> y = kernels::SharedInputLinear(x, weights);
    const auto heads = [&](size_t index, int64_t head_dim) {
      return SplitHeads(convolve(y[index], index), head_dim);
    };
    return {.q = sizes_.feature_map(heads(0, sizes_.head_dim_k)),
            .k = sizes_.feature_map(heads(1, sizes_.head_dim_k)),
            .v = heads(2, sizes_.head_dim_v),
            .log_decay = LogDecay(y[3]),
            .gate = sizes_.output.gate ? y[4] : at::Tensor()};
  }

  // Of the gate's inner 16 channels [B, T, 16]: [B, T, Hk, K] fp32.
  at::Tensor LogDecay(const at::Tensor& inner) const {
    const at::Tensor logits =
        kernels::Linear(inner, *decay_out_).to(kernels::ComputeType(inner)) + *decay_bias_;
    at::Tensor log_decay = at::log_sigmoid(logits) * (1 / kGateNormaliser);
    if (std::isfinite(sizes_.clamp_min)) log_decay = log_decay.clamp_min(sizes_.clamp_min);
    return SplitHeads(log_decay, sizes_.head_dim_k);
  }
  double Scale() const { return 1 / std::sqrt(static_cast<double>(sizes_.head_dim_k)); }

  Sizes sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_, decay_in_, decay_out_, decay_bias_;
  GatedOutput output_;
  std::array<Parameter, 3> convs_;
};

}  // namespace

std::unique_ptr<Mixer> MakeGla(const MixerConfig& config, const MixerContext& context) {
  return std::make_unique<Gla>(ReadSizes(config, context), context);
}

}  // namespace halflife::model
