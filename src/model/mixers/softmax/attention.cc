#include "model/mixers/softmax/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/log.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/softmax_attention/softmax_attention_args.h"
#include "ops/rows/rotary.h"
#include "ops/sequence/tokens_before.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// Rotation with the layer's own rope_theta.
class OwnRotation : public AttentionPositions {
 public:
  explicit OwnRotation(const AttentionLayer& layer)
      : head_dim_(layer.head_dim), rope_theta_(layer.rope_theta) {}
  void Encode(AttentionHeads& heads, const at::Tensor& positions,
              ops::RotaryTables& tables) const override {
    const auto table = tables.Of(positions, head_dim_, rope_theta_, ops::ComputeType(heads.q));
    const ops::RotatedPair rotated =
        ops::ApplyRotary(heads.q, heads.k, table, {.q = heads.q_gradient, .k = heads.k_gradient});
    heads.q = rotated.q, heads.k = rotated.k;
  }

 private:
  int64_t head_dim_;
  double rope_theta_;
};

// A layer without positions.
class NoPositions : public AttentionPositions {
 public:
  bool reads_position_ids() const override { return false; }
};

// Returns the model's positions if they apply in attention, else the layer's own.
std::unique_ptr<AttentionPositions> PositionsOf(const AttentionOptions& options,
                                                const Attention::Shape& shape,
                                                const PartContext& context) {
  const AttentionLayer layer = {.part = context,
                                .num_heads = shape.num_heads,
                                .head_dim = shape.head_dim,
                                .rotary_dim = shape.rotary_dim,
                                .rope_theta = options.rope_theta};
  if (context.positions != nullptr && context.positions->in_attention())
    return context.positions->OfLayer(layer);
  const bool whole = layer.rotated_dim() == layer.head_dim;
  if (options.rope_theta > 0 && !whole) return std::make_unique<RotaryPositions>(layer);
  if (options.rope_theta > 0) return std::make_unique<OwnRotation>(layer);
  return std::make_unique<NoPositions>();
}

ops::KeyPattern PatternOf(const AttentionOptions& options, const AttentionPositions& positions) {
  const ops::KeyPattern own = {.window = options.window,
                               .block = options.block,
                               .sinks = options.sinks,
                               .bidirectional = !options.causal};
  const bool looks_back = positions.pattern().reach() > 0 || positions.far_from() > 0 ||
                          !positions.decay_rates().empty() || !positions.looks_ahead();
  HL_CHECK_AS(
      ExitCode::kUsage, options.causal || !looks_back,
      "attention sees later tokens, but the positions support only earlier ones. Use a "
      "causal layer, or positions that rotate (none, interpolated, ntk_aware, yarn, llama3), "
      "alibi or kerple_log.");
  if (positions.pattern().reach() == 0) return own;
  HL_CHECK_AS(ExitCode::kUsage, own.reach() == 0, "window ", options.window, " and block ",
              options.block, " with positions that determine the visible keys. Use 0 for both.");
  return positions.pattern();
}

// Normalizes x to length 1. A zero vector stays zero and has a finite gradient.
at::Tensor Unit(const at::Tensor& x_in) {
  constexpr double kMin = 1e-6;  // smallest length
  const at::Tensor x = x_in.to(ops::ComputeType(x_in));
  const at::Tensor squares = x.square().sum(-1, /*keepdim=*/true);
  return (x * at::rsqrt(squares + kMin * kMin)).to(x_in.scalar_type());
}

}  // namespace

std::vector<Option> AttentionOptions::Fields() {
  return {{"window", &window, {.min = 0}},
          {"rope_theta", &rope_theta},
          {"dropout", &dropout},
          {"block", &block, {.min = 0}},
          {"sinks", &sinks, {.min = 0}},
          {"cos_scale", &cos_scale},
          {"cos_scale_learned", &cos_scale_learned},
          {"query_scale", &query_scale.form, {.choices = {"none", "info", "log"}}},
          {"query_scale_mode", &query_scale.mode, {.choices = {"eval_only", "train", "fixed_len"}}},
          {"query_scale_length", &query_scale.length, {.min = 0}},
          {"query_scale_dim", &query_scale.dim, {.min = 0}},
          {"query_scale_bias", &query_scale.bias},
          {"causal", &causal}};
}

void AttentionOptions::ResolveFor(int64_t head_dim, ProblemList& problems) {
  problems.Require(rope_theta == 0 || rope_theta > 1, "option rope_theta is ", rope_theta,
                   ". Use a number above 1, or 0 for no rotation.");
  problems.Require(dropout >= 0 && dropout < 1, "option dropout is ", dropout,
                   ". Use a number in [0, 1).");
  problems.Require(rope_theta == 0 || head_dim % 2 == 0, "width per head ", head_dim,
                   " must be even: rotation pairs channels");
  problems.Require(window == 0 || block == 0, "window ", window, " and block ", block,
                   " exclude each other. Set one of them to 0.");
  problems.Require(causal || block == 0, "block ", block,
                   " in a layer that sees later tokens. Use a window, or block 0.");
  problems.Require(sinks == 0 || window > 0 || block > 0, "sinks ", sinks,
                   " without a window or block, where all keys are visible. Use sinks 0.");
  problems.Require(cos_scale >= 0, "option cos_scale is ", cos_scale,
                   ". Use a number above 0, or 0 for scores without cosines.");
  problems.Require(!cos_scale_learned || cos_scale > 0,
                   "cos_scale_learned without cos_scale. Set cos_scale to its initial value.");
  const bool scales = query_scale.form != "none";
  problems.Require(scales ? query_scale.length >= 2 : query_scale.length == 0, "query_scale ",
                   query_scale.form, " with query_scale_length ", query_scale.length,
                   scales ? ". Use the training length, at least 2." : ". Use 0.");
  problems.Require(
      !query_scale.bias || scales_queries(),
      "query_scale_bias without query_scale, the factor that it applies to biases. Set "
      "query_scale, or query_scale_bias false.");
  if (query_scale.dim == 0) query_scale.dim = head_dim;
}

Attention::Attention(const AttentionOptions& options, const Shape& shape,
                     const PartContext& context)
    : options_(options), shape_(shape) {
  if (options.cos_scale_learned)
    log_cos_scale_ = DeclareFp32(context, "log_cos_scale", {shape.num_heads, 1},
                                 Init::Constant(std::log(options.cos_scale)));
  positions_ = PositionsOf(options, shape, context);
  HL_CHECK_AS(ExitCode::kUsage, !options.query_scale.bias || positions_->has_bias(),
              "query_scale_bias with positions that add no bias to scores. Use alibi, t5 or "
              "kerple_log, or query_scale_bias false.");
  config_ = {.scale = ScoreScale(),
             .pattern = PatternOf(options, *positions_),
             .squared_relu = shape.squared_relu,
             .far_from = positions_->far_from(),
             .decay_rates = positions_->decay_rates()};
}

// The state is a cache of keys and values, [B, capacity, Hk, d], of which num_past tokens are in
// use. Step doubles the capacity when it is full.
MixerTraits Attention::traits() const {
  // A rank does not know the length of the whole row.
  const bool asks_row_length = scales_queries() && options_.query_scale.mode == "fixed_len";
  MixerTraits traits = {.causal = options_.causal,
                        .splits_rows = options_.causal && !asks_row_length,
                        .takes_positions = true,
                        .reads_position_ids = positions_->reads_position_ids(),
                        .has_attention_probabilities = !shape_.squared_relu,
                        .asks_row_length = asks_row_length};
  if (!options_.causal) return traits;
  const auto cache = [&](const char* name, int64_t dim) {
    traits.state.push_back({.name = name,
                            .shape = {StateTensor::kGrows, shape_.num_kv_heads, dim},
                            .compute_dtype = true,
                            .exchange = StateExchange::kGather});
  };
  cache("keys", shape_.head_dim);
  cache("values", shape_.head_dim_v);
  if (positions_->has_far_keys()) cache("far_keys", shape_.head_dim);
  return traits;
}

void Attention::RequireCausal(const char* what) const {
  HL_CHECK_AS(ExitCode::kUsage, options_.causal, "attention that sees later tokens: ", what,
              " is not possible. Use whole rows, or a causal layer.");
}

Attention::Output Attention::Forward(const MixerCall& call, Heads own) const {
  const SequenceSlice& slice = call.slice;
  const Heads projected = own;
  if (call.num_past > 0) RequireCausal("continuing a row from a state");
  if (slice.segment != nullptr) RequireCausal("splitting a row over ranks");
  Encode(own, slice.position_ids(), *slice.rotary);
  Heads heads = WithPast(call, own);
  if (scales_queries()) ScaleQueries(slice, heads);
  // The buffers belong to the first consumers of the projections.
  if (!heads.q.is_same(projected.q)) heads.q_gradient = {};
  if (!heads.k.is_same(projected.k)) heads.k_gradient = {};
  if (!heads.v.is_same(projected.v)) heads.v_gradient = {};
  Output result = {.y = Attend(call, heads), .state = {}};
  if (!call.want_state || !options_.causal) return result;
  result.state = {heads.k, heads.v};
  if (positions_->has_far_keys()) result.state.push_back(heads.far_k);
  return result;
}

at::Tensor Attention::Attend(const MixerCall& call, const Heads& heads) const {
  const SequenceSlice& slice = call.slice;
  const bool one_document =
      call.num_past == 0 && slice.segment == nullptr && !slice.has_boundaries();
  return Attend(heads, slice.positions, one_document, &call);
}

at::Tensor Attention::Step(Heads heads, const SequenceSlice& token, MixerState& state) const {
  RequireCausal("decoding token by token");
  Encode(heads, token.positions, *token.rotary);
  const auto with_cache = [&](at::Tensor& own, at::Tensor& cache) {
    AppendToken(own, token.begin, cache);
    own = cache.narrow(1, 0, token.begin + 1);
  };
  with_cache(heads.k, state.tensors[0]);
  with_cache(heads.v, state.tensors[1]);
  if (positions_->has_far_keys()) with_cache(heads.far_k, state.tensors[2]);
  if (scales_queries()) ScaleQueries(token, heads);
  return Attend(heads, token.positions, /*one_document=*/false, /*call=*/nullptr);
}

double Attention::NumKeys(int64_t seq_len) const {
  return static_cast<double>(ops::NumVisiblePairs(seq_len, config_.pattern)) /
         static_cast<double>(std::max<int64_t>(seq_len, 1));
}

// Each pair of a query and a visible key has two dot products: for the score and for the values.
double Attention::MixingFlops(int64_t seq_len) const {
  return 2 * static_cast<double>(shape_.num_heads * (shape_.head_dim + shape_.head_dim_v)) *
         NumKeys(seq_len);
}

double Attention::ActivationBytes(int64_t bytes_per_element) const {
  const auto queries = static_cast<double>(shape_.num_heads * shape_.head_dim),
             keys = static_cast<double>(shape_.num_kv_heads * shape_.head_dim),
             values = static_cast<double>(shape_.num_kv_heads * shape_.head_dim_v),
             outputs = static_cast<double>(shape_.num_heads * shape_.head_dim_v);
  const double elements =
      queries + keys + values + outputs + (options_.cos_scale > 0 ? queries + keys : 0) +
      (positions_->far_from() > 0 ? queries : 0) + (positions_->has_far_keys() ? keys : 0);
  return elements * static_cast<double>(bytes_per_element) +
         4 * static_cast<double>(shape_.num_heads);
}

double Attention::GpuActivationBytes(int64_t seq_len, int64_t bytes_per_element) const {
  if (options_.dropout == 0 && !shape_.squared_relu) return 0;
  kernels::SoftmaxAttentionArgs args;
  args.q.dtype = bytes_per_element == 2 ? DType::kBF16 : DType::kF32;
  args.num_queries = static_cast<int>(seq_len);
  args.head_dim = static_cast<int>(shape_.head_dim);
  args.head_dim_v = static_cast<int>(shape_.head_dim_v);
  args.far_from = static_cast<int>(config_.far_from);
  if (!config_.decay_rates.empty()) args.decay_rates = config_.decay_rates.data();
  if (kernels::cuda::WhyNot(args, std::numeric_limits<int64_t>::max()).empty()) return 0;
  return 8 * static_cast<double>(shape_.num_heads * seq_len);
}

// Returns the factor on products of encoded queries and keys. Encode has applied a learned
// cos_scale.
double Attention::ScoreScale() const {
  if (options_.cos_scale_learned) return 1;
  if (options_.cos_scale > 0) return options_.cos_scale;
  return shape_.score_scale > 0 ? shape_.score_scale
                                : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
}

void Attention::Encode(Heads& heads, const at::Tensor& positions, ops::RotaryTables& tables) const {
  if (options_.cos_scale > 0) {
    heads.q = Unit(heads.q), heads.k = Unit(heads.k);
    heads.q_gradient = heads.k_gradient = {};
  }
  if (options_.cos_scale_learned)
    heads.q = (heads.q * log_cos_scale_->exp()).to(heads.q.scalar_type());
  positions_->Encode(heads, positions, tables);
}

// Prepends the keys and values before the slice, from the call's state or from other ranks.
Attention::Heads Attention::WithPast(const MixerCall& call, const Heads& own) const {
  const bool far_keys = positions_->has_far_keys();
  Heads heads = own;
  if (const ops::RowSegment* row = call.slice.segment.get()) {
    std::vector<at::Tensor> parts = {own.k, own.v};
    if (far_keys) parts.push_back(own.far_k);
    const at::Tensor past = ops::TokensBefore(at::cat(parts, 3), Reach(call), *row);
    // Concatenated even if `past` is empty: the backward of TokensBefore is collective.
    const auto behind = [&](int64_t begin, const at::Tensor& x) {
      return at::cat({past.narrow(3, begin, x.size(3)), x}, 1);
    };
    heads.k = behind(0, own.k), heads.v = behind(shape_.head_dim, own.v);
    if (far_keys) heads.far_k = behind(shape_.head_dim + shape_.head_dim_v, own.far_k);
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

// Returns the number of tokens before the slice that may be visible. With dropout all tokens are
// needed, because its random numbers depend on the index of a key in the row.
int64_t Attention::Reach(const MixerCall& call) const {
  const ops::KeyPattern& pattern = config_.pattern;
  const bool drops = call.drop_within != nullptr && options_.dropout > 0;
  const bool bounded = pattern.reach() > 0 && pattern.sinks == 0 && !drops;
  return bounded ? pattern.reach() - 1 : std::numeric_limits<int64_t>::max();
}

// Returns the query scales [B, T] of a slice whose rows have num_keys keys. Layers with the same
// scale share the tensor.
at::Tensor Attention::QueryFactors(const SequenceSlice& slice, int64_t num_keys,
                                   at::ScalarType compute) const {
  const QueryScale& scale = options_.query_scale;
  const ops::KeyPattern& pattern = config_.pattern;
  const bool of_row = scale.mode == "fixed_len";
  const auto make = [&] {
    const at::Tensor seen = of_row ? at::full_like(slice.positions, num_keys)
                                   : ops::NumVisibleKeys(slice.positions, pattern);
    return QueryScales(seen, scale).to(compute);
  };
  const auto number = [](auto x) { return static_cast<double>(x); };
  return slice.of_positions->Of(
      slice.positions,
      {"query factors",
       {number(scale.form == "info"), number(scale.mode == "eval_only"),
        of_row ? number(num_keys) : -1, number(scale.length), number(scale.dim),
        number(pattern.window), number(pattern.block), number(pattern.sinks),
        number(pattern.bidirectional), number(compute)}},
      make);
}

void Attention::ScaleQueries(const SequenceSlice& slice, Heads& heads) const {
  const at::Tensor factors = QueryFactors(slice, heads.k.size(1), ops::ComputeType(heads.q));
  const at::Tensor of_heads = factors.unsqueeze(-1).unsqueeze(-1);
  const auto apply = [&](at::Tensor& q) { q = (q * of_heads).to(q.scalar_type()); };
  apply(heads.q);
  if (heads.far_q.defined()) apply(heads.far_q);
  if (options_.query_scale.bias) heads.bias_scale = factors;
}

// Returns the keys that are visible to the queries of a slice, which follow num_past keys. Layers
// with the same pattern share the tensors.
ops::VisibleKeys Attention::SeenIn(const SequenceSlice& slice, int64_t num_past) const {
  const ops::KeyPattern& pattern = config_.pattern;
  const auto number = [](auto x) { return static_cast<double>(x); };
  const at::Tensor seen = slice.of_positions->Of(
      slice.positions,
      {"visible keys",
       {number(num_past), number(pattern.window), number(pattern.block),
        number(pattern.bidirectional)}},
      [&] {
        const auto made = ops::VisibleKeysOf(slice.positions, num_past, pattern);
        return at::stack({made.first, made.end, made.sinks});
      });
  return {.first = seen.select(0, 0), .end = seen.select(0, 1), .sinks = seen.select(0, 2)};
}

// Returns [B, T, H V]. Dropout of the probabilities uses site 0. `call` is null in decoding.
at::Tensor Attention::Attend(const Heads& heads, const at::Tensor& positions, bool one_document,
                             const MixerCall* call) const {
  ops::SoftmaxAttentionConfig config = config_;
  if (call != nullptr && call->drop_within != nullptr && options_.dropout > 0)
    config.dropout = call->drop_within(/*site=*/0, options_.dropout);
  const auto options = heads.q.options().dtype(ops::ComputeType(heads.q));
  const ops::SoftmaxAttentionInputs inputs = {
      .q = heads.q,
      .k = heads.k,
      .v = heads.v,
      .far_q = heads.far_q,
      .far_k = heads.far_k,
      .bias = positions_->Bias(heads.k.size(1), options),
      .bias_scale = heads.bias_scale,
      .positions = positions,
      .seen = call == nullptr ? ops::VisibleKeys{}
                              : SeenIn(call->slice, heads.k.size(1) - heads.q.size(1)),
      .one_document = one_document,
      .q_gradient = heads.q_gradient,
      .k_gradient = heads.k_gradient,
      .v_gradient = heads.v_gradient};
  if (call != nullptr && call->observe) call->observe(inputs, config);
  return ops::SoftmaxAttention(inputs, config).flatten(2);
}

at::Tensor QueryScales(const at::Tensor& num_keys, const QueryScale& scale) {
  const at::Tensor logs = at::log(num_keys.to(at::kDouble));
  const double of_length = std::log(static_cast<double>(scale.length));
  at::Tensor factors;
  if (scale.form == "info") {
    // expm1 avoids the cancellation of 1 - n^rate.
    const double rate = -2.0 / static_cast<double>(scale.dim);
    factors = at::sqrt(-at::expm1(rate * logs)) / std::sqrt(-std::expm1(rate * of_length));
  } else {
    factors = logs / of_length;
  }
  if (scale.mode == "eval_only") factors = factors.clamp_min(1);
  return factors.masked_fill(num_keys == scale.length, 1);
}

}  // namespace halflife::model
