// Softmax attention with grouped key-value heads: the baseline for linear mixers, or an encoder if
// it is not causal. Positions are rotations (rope_theta), of whole heads or of their first
// channels, or the model's method. A window or blocks can limit the visible keys. Scores can be
// cosines, and can be scaled by the number of keys. The output can have a gate per channel
// (Qwen3-Next). Parameters are named as in fla's Transformer. The state is the keys and values of
// all tokens so far, so it grows.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/mixers/softmax/attention.h"
#include "model/mixers/variants.h"
#include "model/norms/norm.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/swiglu.h"

namespace halflife::model {
namespace {

struct SoftmaxOptions : OptionsOf<SoftmaxOptions, AttentionOptions> {
  int64_t num_heads = 8, num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;                     // 0: model_dim / num_heads
  bool qk_norm = false, qkv_bias = false, out_bias = false;
  double qk_norm_eps = 1e-5;  // fla's constant
  bool qk_norm_zero_centered = false;
  std::string qk_norm_over = "head";  // or "all_heads": one norm over the channels of all heads
  std::string output_gate = "none";   // or "sigmoid"
  double partial_rotary_factor = 1;   // share of a head's channels that rotate
  double score_scale = 0;             // factor on q k; 0: 1 / sqrt(head_dim)
  double key_multiplier = 1;          // factor on k

  std::vector<Option> Fields() override {
    std::vector<Option> fields = {
        {"num_heads", &num_heads},
        {"num_kv_heads", &num_kv_heads, {.min = 0}},
        {"head_dim", &head_dim, {.min = 0}},
        {"qk_norm", &qk_norm},
        {"qk_norm_eps", &qk_norm_eps},
        {"qk_norm_zero_centered", &qk_norm_zero_centered},
        {"qk_norm_over", &qk_norm_over, {.choices = {"head", "all_heads"}}},
        {"qkv_bias", &qkv_bias},
        {"out_bias", &out_bias},
        {"output_gate", &output_gate, {.choices = {"none", "sigmoid"}}},
        {"partial_rotary_factor", &partial_rotary_factor},
        {"score_scale", &score_scale},
        {"key_multiplier", &key_multiplier}};
    std::ranges::copy(AttentionOptions::Fields(), std::back_inserter(fields));
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (num_kv_heads == 0) num_kv_heads = num_heads;
    problems.Require(head_dim > 0 || sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim,
                     ". Set head_dim to use other sizes.");
    if (head_dim == 0) head_dim = std::max<int64_t>(1, sizes.model_dim / num_heads);
    problems.Require(num_heads * head_dim <= kMaxWidth, "num_heads ", num_heads, " of head_dim ",
                     head_dim, " are ", num_heads * head_dim, " wide. Use a width of at most ",
                     kMaxWidth, ".");
    problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                     " must divide num_heads ", num_heads, ". Use a divisor of it.");
    problems.Require(qk_norm_eps > 0, "option qk_norm_eps is ", qk_norm_eps,
                     ". Use a number above 0 (1e-5 is usual).");
    problems.Require(qk_norm || (!qk_norm_zero_centered && qk_norm_over == "head"),
                     qk_norm_zero_centered ? "qk_norm_zero_centered" : "qk_norm_over all_heads",
                     " without qk_norm. Set qk_norm, or leave the option out.");
    ResolveScores(problems);
    ResolveFor(head_dim, problems);
  }

  // Returns the number of channels of a head that rotate. An odd number is rounded up to whole
  // pairs (OfLayer).
  int64_t rotary_dim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  // Returns the factor on products of q and k. It contains key_multiplier, which scales every
  // product. 0: Attention's own.
  double ScoreScale() const {
    if (score_scale == 0 && key_multiplier == 1) return 0;
    const double own = score_scale > 0 ? score_scale : 1 / std::sqrt(static_cast<double>(head_dim));
    return own * key_multiplier;
  }

 private:
  void ResolveScores(ProblemList& problems) const {
    const bool share = partial_rotary_factor > 0 && partial_rotary_factor <= 1;
    problems.Require(share && (rotary_dim() > 0 || rope_theta == 0),
                     "option partial_rotary_factor is ", partial_rotary_factor, " with head_dim ",
                     head_dim,
                     ". Use a number in (0, 1] that rotates at least one channel, or rope_theta 0 "
                     "for no rotation.");
    problems.Require(score_scale >= 0 && std::isfinite(score_scale), "option score_scale is ",
                     score_scale, ". Use a number above 0, or 0 for 1 / sqrt(head_dim).");
    problems.Require(key_multiplier > 0 && std::isfinite(key_multiplier),
                     "option key_multiplier is ", key_multiplier,
                     ". Use a number above 0, or 1 for keys without a factor.");
    problems.Require(cos_scale == 0 || (score_scale == 0 && key_multiplier == 1),
                     score_scale != 0 ? "score_scale" : "key_multiplier",
                     " with cos_scale, whose scores depend only on the angle of q and k. Remove "
                     "one of them.");
  }
};

class Softmax : public Mixer {
 public:
  Softmax(const SoftmaxOptions& sizes, const PartContext& context)
      : sizes_(sizes), model_dim_(context.model_dim()) {
    const int64_t query_dim = sizes.num_heads * sizes.head_dim,
                  kv_dim = sizes.num_kv_heads * sizes.head_dim;
    const MatrixShape of_queries = {
        .out = query_dim, .in = model_dim_, .heads = sizes.num_heads, .float8 = true};
    MatrixShape of_keys = {
        .out = kv_dim, .in = model_dim_, .heads = sizes.num_kv_heads, .float8 = true};
    q_ = DeclareMatrix(context, "q_proj.weight", of_queries);
    k_ = DeclareMatrix(context, "k_proj.weight", of_keys);
    of_keys.init_scale = context.value_init_scale;
    v_ = DeclareMatrix(context, "v_proj.weight", of_keys);
    if (gated()) g_ = DeclareMatrix(context, "g_proj.weight", of_queries);
    if (sizes.qkv_bias) {
      q_bias_ = DeclareBias(context, "q_proj.bias", query_dim);
      k_bias_ = DeclareBias(context, "k_proj.bias", kv_dim);
      v_bias_ = DeclareBias(context, "v_proj.bias", kv_dim);
      if (gated()) g_bias_ = DeclareBias(context, "g_proj.bias", query_dim);
    }
    if (sizes.qk_norm) {
      const auto norm = [&](const char* name, int64_t all_heads) {
        return NormWeight(context, name, norms_all_heads() ? all_heads : sizes.head_dim,
                          sizes.qk_norm_zero_centered);
      };
      q_norm_ = norm("q_norm.weight", query_dim);
      k_norm_ = norm("k_norm.weight", kv_dim);
    }
    attention_ = Attention(sizes,
                           {.num_heads = sizes.num_heads,
                            .num_kv_heads = sizes.num_kv_heads,
                            .head_dim = sizes.head_dim,
                            .head_dim_v = sizes.head_dim,
                            .rotary_dim = sizes.rotary_dim(),
                            .score_scale = sizes.ScoreScale()},
                           context);
    out_ = OutputProjection(context, query_dim, sizes.out_bias);
  }

  MixerTraits traits() const override { return attention_.traits(); }

  MixerOutput Forward(const MixerCall& call) const override {
    const Projected projected = Project(call.x);
    Attention::Output out = attention_.Forward(call, projected.heads);
    return {.y = out_(Gated(projected, out.y)), .state = {.tensors = std::move(out.state)}};
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    const Projected projected = Project(x.unsqueeze(1));
    const at::Tensor values = attention_.Step(projected.heads, token, state);
    return out_(Gated(projected, values)).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const auto dim = static_cast<double>(model_dim_),
               queries = static_cast<double>(sizes_.num_heads * sizes_.head_dim), keys = kv_dim();
    return {.matmul = 2 * dim * ((gated() ? 3 : 2) * queries + 2 * keys),
            .mixing = attention_.MixingFlops(seq_len)};
  }

  // With qk_norm, the inputs of the norms are kept as well. With a gate, the gate and the gated
  // output are.
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const auto queries = static_cast<double>(sizes_.num_heads * sizes_.head_dim);
    const double elements = static_cast<double>(model_dim_) +
                            (sizes_.qk_norm ? 2 * (queries + kv_dim()) : 0) +
                            (gated() ? 2 * queries : 0);
    return elements * static_cast<double>(bytes_per_element) +
           attention_.ActivationBytes(bytes_per_element);
  }
  double GpuActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    return attention_.GpuActivationBytes(seq_len, bytes_per_element);
  }

 private:
  double kv_dim() const { return static_cast<double>(sizes_.num_kv_heads * sizes_.head_dim); }
  bool gated() const { return sizes_.output_gate != "none"; }
  bool norms_all_heads() const { return sizes_.qk_norm_over == "all_heads"; }

  struct Projected {
    Attention::Heads heads;
    ops::LinearPart gate = {};  // [B, T, H d], before the sigmoid; undefined: no gate
  };

  // Adds the bias, if there is one. The gradient goes through the sum to the buffer of y's.
  static ops::LinearPart Biased(const ops::LinearPart& y, const Parameter& bias) {
    if (!bias.declared()) return y;
    return {.y = ops::BiasMap({{.x = y.y, .bias = *bias, .gradient = y.gradient}})[0]};
  }

  Projected Project(const at::Tensor& x) const {
    std::vector<at::Tensor> weights = {*q_, *k_, *v_};
    if (gated()) weights.push_back(*g_);
    const std::vector<ops::LinearPart> y = ops::SharedInputParts(x, weights);
    Projected result;
    const ops::LinearPart q = Biased(y[0], q_bias_), k = Biased(y[1], k_bias_),
                          v = Biased(y[2], v_bias_);
    result.heads.q = Heads(q.y, q_norm_), result.heads.k = Heads(k.y, k_norm_);
    result.heads.v = SplitHeads(v.y, sizes_.head_dim);
    result.heads.v_gradient = v.gradient;
    if (!sizes_.qk_norm) result.heads.q_gradient = q.gradient, result.heads.k_gradient = k.gradient;
    if (gated()) result.gate = Biased(y[3], g_bias_);
    return result;
  }

  // Splits q or k into normed heads.
  at::Tensor Heads(const at::Tensor& x, const NormWeight& norm) const {
    if (!sizes_.qk_norm) return SplitHeads(x, sizes_.head_dim);
    const auto normed = [&](const at::Tensor& of) {
      return ops::RmsNorm(of, norm.Factor(), sizes_.qk_norm_eps);
    };
    return norms_all_heads() ? SplitHeads(normed(x), sizes_.head_dim)
                             : normed(SplitHeads(x, sizes_.head_dim));
  }

  // y [B, T, H d], the output of the attention.
  at::Tensor Gated(const Projected& projected, const at::Tensor& y) const {
    return gated() ? ops::Glu(projected.gate.y, y, projected.gate.gradient) : y;
  }

  SoftmaxOptions sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_, g_, q_bias_, k_bias_, v_bias_, g_bias_;
  NormWeight q_norm_, k_norm_;
  Attention attention_;
  OutputProjection out_;
};

}  // namespace

MixerVariant SoftmaxVariant() { return MixerVariantOf<SoftmaxOptions, Softmax>("softmax"); }

}  // namespace halflife::model
