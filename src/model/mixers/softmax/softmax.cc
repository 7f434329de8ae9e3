// Softmax attention with grouped key-value heads: the baseline that linear mixers are measured
// against. It rotates its queries and keys (rope_theta), or tells positions by the model's method;
// a window, or blocks, bound what a query sees; scores may be cosines, and may grow with the number
// of keys. Parameters are named as in fla's Transformer. Its state, the keys and values of all
// tokens so far, grows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rsqrt.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/sequence/tokens_before.h"
#include "kernels/softmax_attention/softmax_attention.h"
#include "kernels/torch/dispatch.h"
#include "model/mixers/softmax/query_scale.h"
#include "model/mixers/variants.h"
#include "model/positions/positions.h"

namespace halflife::model {
namespace {

constexpr double kQkNormEps = 1e-5;  // whatever the model's norm_eps: the public layers' constant

struct SoftmaxOptions : OptionsOf<SoftmaxOptions> {
  int64_t num_heads = 8, num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;                     // 0: model_dim / num_heads
  int64_t window = 0;  // key j is visible to query i while i - j < window; 0: all
  int64_t block = 0;   // queries see their own block of so many tokens and the one before; 0: all
  int64_t sinks = 0;   // with a window or blocks: the document's first keys are seen besides
  bool qk_norm = false, qkv_bias = false, out_bias = false;
  double rope_theta = 10000;  // 0: q and k are not rotated
  double dropout = 0;         // of the probabilities, in training
  // Scores are this times the cosine of q and k (CosScale); 0: q k / sqrt(head_dim).
  double cos_scale = 0;
  bool cos_scale_learned = false;  // its logarithm is a parameter of each head
  QueryScale query_scale;          // with dim 0: head_dim

  std::vector<Option> Fields() override {
    return {
        {"num_heads", &num_heads},
        {"num_kv_heads", &num_kv_heads, {.min = 0}},
        {"head_dim", &head_dim, {.min = 0}},
        {"window", &window, {.min = 0}},
        {"qk_norm", &qk_norm},
        {"qkv_bias", &qkv_bias},
        {"out_bias", &out_bias},
        {"rope_theta", &rope_theta},
        {"dropout", &dropout},
        {"block", &block, {.min = 0}},
        {"sinks", &sinks, {.min = 0}},
        {"cos_scale", &cos_scale},
        {"cos_scale_learned", &cos_scale_learned},
        {"query_scale", &query_scale.form, {.choices = {"none", "info", "log"}}},
        {"query_scale_mode", &query_scale.mode, {.choices = {"eval_only", "train", "fixed_len"}}},
        {"query_scale_length", &query_scale.length, {.min = 0}},
        {"query_scale_dim", &query_scale.dim, {.min = 0}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (num_kv_heads == 0) num_kv_heads = num_heads;
    problems.Require(rope_theta == 0 || rope_theta > 1, "option rope_theta is ", rope_theta,
                     "; a number above 1 would work, or 0 for no rotation");
    problems.Require(dropout >= 0 && dropout < 1, "option dropout is ", dropout,
                     "; a number in [0, 1) would work");
    problems.Require(head_dim > 0 || sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim, ", or head_dim must be given");
    if (head_dim == 0) head_dim = std::max<int64_t>(1, sizes.model_dim / num_heads);
    problems.Require(rope_theta == 0 || head_dim % 2 == 0, "width per head ", head_dim,
                     " must be even: rotation pairs channels");
    problems.Require(num_heads * head_dim <= kMaxWidth, "num_heads ", num_heads, " of head_dim ",
                     head_dim, " are ", num_heads * head_dim, " wide; at most ", kMaxWidth,
                     " would work");
    problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                     " must divide num_heads ", num_heads);
    problems.Require(window == 0 || block == 0, "window ", window, " and block ", block,
                     "; one of them, the other 0, would work");
    problems.Require(sinks == 0 || window > 0 || block > 0, "sinks ", sinks,
                     " without a window or block; all keys are seen then, and 0 would work");
    problems.Require(cos_scale >= 0, "option cos_scale is ", cos_scale,
                     "; a number above 0 would work, or 0 for products");
    problems.Require(!cos_scale_learned || cos_scale > 0,
                     "cos_scale_learned without cos_scale, which it starts from");
    const bool scales = query_scale.form != "none";
    problems.Require(scales ? query_scale.length >= 2 : query_scale.length == 0, "query_scale ",
                     query_scale.form, " with query_scale_length ", query_scale.length,
                     scales ? "; the training length, at least 2, would work" : "; 0 would work");
    if (query_scale.dim == 0) query_scale.dim = head_dim;
  }
  kernels::KeyPattern pattern() const { return {.window = window, .block = block, .sinks = sinks}; }
};

// Rotation by the layer's own rope_theta, whose frequencies are formed where positions are.
class OwnRotation : public AttentionPositions {
 public:
  explicit OwnRotation(const AttentionLayer& layer)
      : head_dim_(layer.head_dim), rope_theta_(layer.rope_theta) {}
  void Encode(AttentionHeads& heads, const at::Tensor& positions) const override {
    const auto table = kernels::MakeRotaryTable(positions, head_dim_, rope_theta_);
    heads.q = kernels::ApplyRotary(heads.q, table);
    heads.k = kernels::ApplyRotary(heads.k, table);
  }

 private:
  int64_t head_dim_;
  double rope_theta_;
};

// The model's way where its attention has one, else the layer's own.
std::unique_ptr<AttentionPositions> PositionsOf(const SoftmaxOptions& sizes,
                                                const PartContext& context) {
  const AttentionLayer layer = {.part = context,
                                .num_heads = sizes.num_heads,
                                .head_dim = sizes.head_dim,
                                .rope_theta = sizes.rope_theta};
  if (context.positions != nullptr && context.positions->in_attention())
    return context.positions->OfLayer(layer);
  if (sizes.rope_theta > 0) return std::make_unique<OwnRotation>(layer);
  return std::make_unique<AttentionPositions>();
}

kernels::KeyPattern PatternOf(const SoftmaxOptions& sizes, const AttentionPositions& positions) {
  if (positions.pattern().reach() == 0) return sizes.pattern();
  HL_CHECK_AS(ExitCode::kUsage, sizes.pattern().reach() == 0, "softmax: window ", sizes.window,
              " and block ", sizes.block,
              ", but the model's positions say which keys are seen; 0 would work for both");
  return positions.pattern();
}

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
    if (sizes.cos_scale_learned)
      log_cos_scale_ = context.parameters->Declare({.name = context.prefix + "log_cos_scale",
                                                    .shape = {sizes.num_heads, 1},
                                                    .region = dist::Region::kFp32},
                                                   Init::Constant(std::log(sizes.cos_scale)));
    out_ = OutputProjection(context, query_dim, sizes.out_bias);
    positions_ = PositionsOf(sizes, context);
    attention_ = {.scale = ScoreScale(),
                  .pattern = PatternOf(sizes, *positions_),
                  .far_from = positions_->far_from(),
                  .decay_rates = positions_->decay_rates()};
  }

  // Keys and values [B, capacity, Hk, d], of which num_past are in use; Step doubles the capacity
  // when it is full.
  MixerTraits traits() const override {
    const auto cache = [&](const char* name) {
      return StateTensor{.name = name,
                         .shape = {StateTensor::kGrows, sizes_.num_kv_heads, sizes_.head_dim},
                         .compute_dtype = true,
                         .exchange = StateExchange::kGather};
    };
    MixerTraits traits = {.takes_positions = true, .state = {cache("keys"), cache("values")}};
    if (positions_->has_far_keys()) traits.state.push_back(cache("far_keys"));
    return traits;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const SequenceSlice& slice = call.slice;
    Heads own = Project(call.x, slice.positions);
    Heads heads = WithPast(call, own);
    if (sizes_.query_scale.form != "none") ScaleQueries(slice.positions, heads);
    const bool one_document =
        call.num_past == 0 && slice.segment == nullptr && !slice.has_boundaries();
    MixerOutput result = {.y = Attend(heads, slice.positions, one_document, call.drop),
                          .state = {}};
    if (!call.want_state) return result;
    result.state.tensors = {heads.k, heads.v};
    if (positions_->has_far_keys()) result.state.tensors.push_back(heads.far_k);
    return result;
  }

  at::Tensor Step(const at::Tensor& x, int64_t num_past, MixerState& state) const override {
    const auto slice = SequenceSlice::Contiguous(x.size(0), 1, num_past, x.device());
    Heads heads = Project(x.unsqueeze(1), slice.positions);
    const auto with_cache = [&](at::Tensor& token, at::Tensor& cache) {
      AppendToken(token, num_past, cache);
      token = cache.narrow(1, 0, num_past + 1);
    };
    with_cache(heads.k, state.tensors[0]);
    with_cache(heads.v, state.tensors[1]);
    if (positions_->has_far_keys()) with_cache(heads.far_k, state.tensors[2]);
    if (sizes_.query_scale.form != "none") ScaleQueries(slice.positions, heads);
    return Attend(heads, slice.positions, /*one_document=*/false, {}).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const auto dim = static_cast<double>(model_dim_), queries = query_dim(),
               kv_share =
                   static_cast<double>(sizes_.num_kv_heads) / static_cast<double>(sizes_.num_heads);
    const auto keys = static_cast<double>(NumVisiblePairs(seq_len, attention_.pattern)) /
                      static_cast<double>(std::max<int64_t>(seq_len, 1));
    // each query meets each key that it sees twice: its score and its values
    return {.matmul = 2 * dim * queries * (2 + 2 * kv_share), .mixing = 4 * queries * keys};
  }

  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    // x, rotated q, k, v and the output; with q and k norm also what is normed; of far pairs
    // another q, and k where it has one. The attention keeps one fp32 per head, with dropout two of
    // each probability.
    const auto kv = static_cast<double>(sizes_.num_kv_heads * sizes_.head_dim);
    const double elements = static_cast<double>(model_dim_) + 2 * query_dim() + 2 * kv +
                            (sizes_.qk_norm ? 2 * (query_dim() + kv) : 0) +
                            (sizes_.cos_scale > 0 ? query_dim() + kv : 0) +
                            (positions_->far_from() > 0 ? query_dim() : 0) +
                            (positions_->has_far_keys() ? kv : 0);
    return elements * static_cast<double>(bytes_per_element) +
           4 * static_cast<double>(sizes_.num_heads) *
               (sizes_.dropout > 0 ? 1 + 2 * static_cast<double>(seq_len) : 1);
  }

 private:
  struct Heads : AttentionHeads {
    at::Tensor v;  // [B, T, Hk, d]
  };

  double query_dim() const { return static_cast<double>(sizes_.num_heads * sizes_.head_dim); }
  // Of products of what Project gives: a learned scale is in the queries.
  double ScoreScale() const {
    if (sizes_.cos_scale_learned) return 1;
    return sizes_.cos_scale > 0 ? sizes_.cos_scale
                                : 1 / std::sqrt(static_cast<double>(sizes_.head_dim));
  }

  Heads Project(const at::Tensor& x, const at::Tensor& positions) const {
    const std::vector<at::Tensor> y = kernels::SharedInputLinear(x, {*q_, *k_, *v_});
    Heads heads;
    heads.q = SplitHeads(AddBias(y[0], q_bias_), sizes_.head_dim);
    heads.k = SplitHeads(AddBias(y[1], k_bias_), sizes_.head_dim);
    heads.v = SplitHeads(AddBias(y[2], v_bias_), sizes_.head_dim);
    if (sizes_.qk_norm) {
      heads.q = kernels::RmsNorm(heads.q, *q_norm_, kQkNormEps);
      heads.k = kernels::RmsNorm(heads.k, *k_norm_, kQkNormEps);
    }
    if (sizes_.cos_scale > 0) heads.q = Unit(heads.q), heads.k = Unit(heads.k);
    if (sizes_.cos_scale_learned)
      heads.q = (heads.q * log_cos_scale_->exp()).to(heads.q.scalar_type());
    positions_->Encode(heads, positions);
    return heads;
  }
  // Of length 1; one of length 0 stays so, and its gradient finite.
  static at::Tensor Unit(const at::Tensor& x_in) {
    constexpr double kLeast = 1e-6;  // of a length
    const at::Tensor x = x_in.to(kernels::ComputeType(x_in));
    const at::Tensor squares = x.square().sum(-1, /*keepdim=*/true);
    return (x * at::rsqrt(squares + kLeast * kLeast)).to(x_in.scalar_type());
  }

  // With the keys and values before the slice: of the call's state, or of the other ranks.
  Heads WithPast(const MixerCall& call, const Heads& own) const {
    const bool far_keys = positions_->has_far_keys();
    Heads heads = own;
    if (const kernels::RowSegment* row = call.slice.segment.get()) {
      std::vector<at::Tensor> parts = {own.k, own.v};
      if (far_keys) parts.push_back(own.far_k);
      const at::Tensor past = kernels::TokensBefore(at::cat(parts, 3), Reach(call), *row);
      const auto before = [&](int64_t part) {
        return past.narrow(3, part * sizes_.head_dim, sizes_.head_dim);
      };
      // Of other ranks even none: what they did not give has a part in backward.
      heads.k = at::cat({before(0), own.k}, 1), heads.v = at::cat({before(1), own.v}, 1);
      if (far_keys) heads.far_k = at::cat({before(2), own.far_k}, 1);
    } else if (call.num_past > 0) {
      const std::vector<at::Tensor>& state = call.initial->tensors;
      const auto behind = [&](size_t tensor, const at::Tensor& x) {
        return at::cat({state[tensor].narrow(1, 0, call.num_past), x}, 1);
      };
      heads.k = behind(0, own.k), heads.v = behind(1, own.v);
      if (far_keys) heads.far_k = behind(2, own.far_k);
    }
    return heads;
  }
  // How many tokens before the slice may be seen; all where dropout numbers a row's keys.
  int64_t Reach(const MixerCall& call) const {
    const kernels::KeyPattern& pattern = attention_.pattern;
    const bool drops = call.drop != nullptr && sizes_.dropout > 0;
    const bool bounded = pattern.reach() > 0 && pattern.sinks == 0 && !drops;
    return bounded ? pattern.reach() - 1 : std::numeric_limits<int64_t>::max();
  }
  void ScaleQueries(const at::Tensor& positions, Heads& heads) const {
    const QueryScale& scale = sizes_.query_scale;
    const at::Tensor num_keys = scale.mode == "fixed_len"
                                    ? at::full_like(positions, heads.k.size(1))
                                    : NumVisibleKeys(positions, attention_.pattern);
    const at::Tensor factors =
        QueryScales(num_keys, scale).to(kernels::ComputeType(heads.q)).unsqueeze(-1).unsqueeze(-1);
    const auto apply = [&](at::Tensor& q) { q = (q * factors).to(q.scalar_type()); };
    apply(heads.q);
    if (heads.far_q.defined()) apply(heads.far_q);
  }

  // [B, T, D]; probabilities are dropped at site 0.
  at::Tensor Attend(const Heads& heads, const at::Tensor& positions, bool one_document,
                    const MixerCall::Drop& drop) const {
    kernels::SoftmaxAttentionConfig config = attention_;
    if (drop != nullptr && sizes_.dropout > 0) {
      // The keys are numbered before the heads: a draw must not depend on how many keys are here.
      config.drop = [&](const at::Tensor& probabilities) {
        return drop(/*site=*/0, probabilities.flatten(2), sizes_.dropout)
            .unflatten(2, {-1, sizes_.num_heads});
      };
    }
    const auto options = heads.q.options().dtype(kernels::ComputeType(heads.q));
    return out_(kernels::SoftmaxAttention({.q = heads.q,
                                           .k = heads.k,
                                           .v = heads.v,
                                           .far_q = heads.far_q,
                                           .far_k = heads.far_k,
                                           .bias = positions_->Bias(heads.k.size(1), options),
                                           .positions = positions,
                                           .one_document = one_document},
                                          config)
                    .flatten(2));
  }

  SoftmaxOptions sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_, q_bias_, k_bias_, v_bias_, q_norm_, k_norm_, log_cos_scale_;
  OutputProjection out_;
  std::unique_ptr<AttentionPositions> positions_;
  kernels::SoftmaxAttentionConfig attention_;
};

}  // namespace

MixerVariant SoftmaxVariant() {
  return MixerVariantOf<SoftmaxOptions, Softmax>(
      "softmax", {{{"num_heads", 2}},
                  {{"num_heads", 2}, {"head_dim", 12}, {"qkv_bias", true}, {"out_bias", true}},
                  {{"num_heads", 4}, {"num_kv_heads", 2}, {"qk_norm", true}, {"window", 20}},
                  {{"num_heads", 2}, {"rope_theta", 0}, {"dropout", 0.1}},
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
