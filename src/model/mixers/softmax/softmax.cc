// Softmax attention with grouped key-value heads: the baseline for linear mixers, or an encoder if
// it is not causal. Positions are rotations (rope_theta) or the model's method. A window or blocks
// can limit the visible keys. Scores can be cosines, and can be scaled by the number of keys.
// Parameters are named as in fla's Transformer. The state is the keys and values of all tokens so
// far, so it grows.
#include <algorithm>
#include <vector>

#include "model/mixers/softmax/attention.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/rms_norm.h"

namespace halflife::model {
namespace {

struct SoftmaxOptions : OptionsOf<SoftmaxOptions, AttentionOptions> {
  int64_t num_heads = 8, num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;                     // 0: model_dim / num_heads
  bool qk_norm = false, qkv_bias = false, out_bias = false;
  double qk_norm_eps = 1e-5;  // fla's constant

  std::vector<Option> Fields() override {
    std::vector<Option> fields = {{"num_heads", &num_heads},
                                  {"num_kv_heads", &num_kv_heads, {.min = 0}},
                                  {"head_dim", &head_dim, {.min = 0}},
                                  {"qk_norm", &qk_norm},
                                  {"qk_norm_eps", &qk_norm_eps},
                                  {"qkv_bias", &qkv_bias},
                                  {"out_bias", &out_bias}};
    std::ranges::copy(AttentionOptions::Fields(), std::back_inserter(fields));
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (num_kv_heads == 0) num_kv_heads = num_heads;
    problems.Require(head_dim > 0 || sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim, ", or head_dim must be given");
    if (head_dim == 0) head_dim = std::max<int64_t>(1, sizes.model_dim / num_heads);
    problems.Require(num_heads * head_dim <= kMaxWidth, "num_heads ", num_heads, " of head_dim ",
                     head_dim, " are ", num_heads * head_dim, " wide. Use a width of at most ",
                     kMaxWidth, ".");
    problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                     " must divide num_heads ", num_heads);
    problems.Require(qk_norm_eps > 0, "option qk_norm_eps is ", qk_norm_eps,
                     ". Use a number above 0 (1e-5 is usual).");
    ResolveFor(head_dim, problems);
  }
};

class Softmax : public Mixer {
 public:
  Softmax(const SoftmaxOptions& sizes, const PartContext& context)
      : sizes_(sizes), model_dim_(context.model_dim()) {
    const int64_t query_dim = sizes.num_heads * sizes.head_dim,
                  kv_dim = sizes.num_kv_heads * sizes.head_dim;
    q_ = DeclareMatrix(context, "q_proj.weight", {.out = query_dim, .in = model_dim_});
    k_ = DeclareMatrix(context, "k_proj.weight", {.out = kv_dim, .in = model_dim_});
    v_ = DeclareMatrix(context, "v_proj.weight",
                       {.out = kv_dim, .in = model_dim_, .init_scale = context.value_init_scale});
    if (sizes.qkv_bias) {
      q_bias_ = DeclareBias(context, "q_proj.bias", query_dim);
      k_bias_ = DeclareBias(context, "k_proj.bias", kv_dim);
      v_bias_ = DeclareBias(context, "v_proj.bias", kv_dim);
    }
    if (sizes.qk_norm) {
      q_norm_ = DeclareNorm(context, "q_norm.weight", sizes.head_dim);
      k_norm_ = DeclareNorm(context, "k_norm.weight", sizes.head_dim);
    }
    attention_ = Attention(sizes,
                           {.num_heads = sizes.num_heads,
                            .num_kv_heads = sizes.num_kv_heads,
                            .head_dim = sizes.head_dim,
                            .head_dim_v = sizes.head_dim},
                           context);
    out_ = OutputProjection(context, query_dim, sizes.out_bias);
  }

  MixerTraits traits() const override { return attention_.traits(); }

  MixerOutput Forward(const MixerCall& call) const override {
    Attention::Output out = attention_.Forward(call, Project(call.x));
    return {.y = out_(out.y), .state = {.tensors = std::move(out.state)}};
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    return out_(attention_.Step(Project(x.unsqueeze(1)), token, state)).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const auto dim = static_cast<double>(model_dim_),
               queries = static_cast<double>(sizes_.num_heads * sizes_.head_dim), keys = kv_dim();
    return {.matmul = 2 * dim * (2 * queries + 2 * keys),
            .mixing = attention_.MixingFlops(seq_len)};
  }

  // With qk_norm, the inputs of the norms are kept as well.
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const double elements =
        static_cast<double>(model_dim_) +
        (sizes_.qk_norm ? 2 * (static_cast<double>(sizes_.num_heads * sizes_.head_dim) + kv_dim())
                        : 0);
    return elements * static_cast<double>(bytes_per_element) +
           attention_.ActivationBytes(bytes_per_element);
  }
  double GpuActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    return attention_.GpuActivationBytes(seq_len, bytes_per_element);
  }

 private:
  double kv_dim() const { return static_cast<double>(sizes_.num_kv_heads * sizes_.head_dim); }

  Attention::Heads Project(const at::Tensor& x) const {
    const std::vector<at::Tensor> y = ops::SharedInputLinear(x, {*q_, *k_, *v_});
    Attention::Heads heads;
    heads.q = SplitHeads(AddBias(y[0], q_bias_), sizes_.head_dim);
    heads.k = SplitHeads(AddBias(y[1], k_bias_), sizes_.head_dim);
    heads.v = SplitHeads(AddBias(y[2], v_bias_), sizes_.head_dim);
    if (sizes_.qk_norm) {
      heads.q = ops::RmsNorm(heads.q, *q_norm_, sizes_.qk_norm_eps);
      heads.k = ops::RmsNorm(heads.k, *k_norm_, sizes_.qk_norm_eps);
    }
    return heads;
  }

  SoftmaxOptions sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_, q_bias_, k_bias_, v_bias_, q_norm_, k_norm_;
  Attention attention_;
  OutputProjection out_;
};

}  // namespace

MixerVariant SoftmaxVariant() {
  return MixerVariantOf<SoftmaxOptions, Softmax>(
      "softmax", {{{"num_heads", 2}},
                  {{"num_heads", 2}, {"head_dim", 12}, {"qkv_bias", true}, {"out_bias", true}},
                  {{"num_heads", 4}, {"num_kv_heads", 2}, {"qk_norm", true}, {"window", 20}},
                  {{"num_heads", 2}, {"rope_theta", 0}, {"dropout", 0.1}},
                  {{"num_heads", 2}, {"causal", false}, {"window", 15}},
                  {{"num_heads", 2}, {"block", 24}, {"sinks", 3}, {"cos_scale", 5.0}},
                  {{"num_heads", 4},
                   {"num_kv_heads", 2},
                   {"cos_scale", 3.0},
                   {"cos_scale_learned", true},
                   {"query_scale", "info"},
                   {"query_scale_mode", "train"},
                   {"query_scale_length", 32}}});
}

}  // namespace halflife::model
