#include "model/mixers/decay/decayed_mixer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "model/activation.h"
#include "model/mixers/decay/score_sums.h"
#include "model/projections.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/rotary.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr double kTokensPerKeptState = 256;  // backward keeps one state per 256 tokens

// An activation as a feature map, as in fla's retnet and gla.
class Activated : public FeatureMap {
 public:
  Activated(const std::string& name, int64_t dim)
      : activation_(Activation::Named(name)), dim_(dim) {}
  Features operator()(const at::Tensor& x) const override { return {activation_(x)}; }
  int64_t width() const override { return dim_; }

 private:
  Activation activation_;
  int64_t dim_;
};

}  // namespace

std::vector<Option> LinearHeadOptions::Fields() {
  return {{"num_heads", &num_heads},
          {"num_kv_heads", &num_kv_heads, {.min = 0}},
          {"expand_k", &expand_k},
          {"expand_v", &expand_v}};
}

std::vector<Option> DecayedOptions::Fields() {
  std::vector<Option> fields = LinearHeadOptions::Fields();
  fields.push_back({"use_output_gate", &use_output_gate});
  fields.push_back({"norm_affine", &norm_affine});
  fields.push_back({"feature_map", &feature_map, {.choices = Activation::Names()}});
  return fields;
}

DecayedForm FormOf(const DecayedOptions& options) {
  const auto make_map = [name = options.feature_map, dim = options.head_dim_k](const PartContext&) {
    return std::make_unique<Activated>(name, dim);
  };
  return {.make_map_q = make_map,
          .use_output_gate = options.use_output_gate,
          .norm_name = options.use_output_gate ? "g_norm_swish_gate.weight" : "g_norm.weight",
          .norm_affine = options.norm_affine};
}

void LinearHeadOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  if (num_kv_heads == 0) num_kv_heads = num_heads;
  const auto dim = static_cast<double>(sizes.model_dim);
  const double dim_k = dim * expand_k, dim_v = dim * expand_v;
  const bool sane = dim_k >= 0 && dim_k <= kMaxWidth && dim_v >= 0 && dim_v <= kMaxWidth;
  problems.Require(
      sane, "expand_k ", expand_k, " and expand_v ", expand_v,
      " give no valid width. Use factors of model_dim, for example 0.5 and 1, for widths "
      "of at most ",
      kMaxWidth, ".");
  if (!sane) return;
  // expand_k may be a rounded ratio of two widths, so that the product is a whole number only up to
  // rounding.
  const auto whole = [&](double width) { return std::abs(width - std::round(width)) < 1e-9 * dim; };
  problems.Require(whole(dim_k) && whole(dim_v), "model_dim ", sizes.model_dim, " times expand_k ",
                   expand_k, " and expand_v ", expand_v, " must be whole numbers");
  const int64_t keys = std::llround(dim_k), values = std::llround(dim_v);
  const bool heads_fit = keys > 0 && values > 0 && keys % num_heads == 0 && values % num_heads == 0;
  problems.Require(heads_fit, "num_heads ", num_heads, " must divide the key width ", keys,
                   " and the value width ", values);
  problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                   " must divide num_heads ", num_heads);
  if (heads_fit) head_dim_k = keys / num_heads, head_dim_v = values / num_heads;
}

DecayedMixer::DecayedMixer(const LinearHeadOptions& heads, const PartContext& context,
                           const DecayedForm& form)
    : heads_(heads), form_(form), model_dim_(context.model_dim()), norm_eps_(context.norm_eps) {
  const char* const names[] = {"q", "k", "v"};
  const int64_t dims[] = {heads.key_dim(), heads.kv_key_dim(), heads.kv_value_dim()};
  for (size_t i = 0; i < 3; ++i)
    projections_[i] = DeclareMatrix(
        context, Concat(names[i], "_proj.weight"),
        {.out = dims[i], .in = model_dim_, .init_scale = i == 2 ? context.value_init_scale : 1});
  // Declared next to q, k and v, which read the same input: an arena then stores all as one matrix.
  if (form.use_output_gate)
    gate_ = DeclareMatrix(context, "g_proj.weight", {.out = heads.value_dim(), .in = model_dim_});
  for (size_t i = 0; i < 3 && form.bias; ++i)
    biases_[i] = DeclareBias(context, Concat(names[i], "_proj.bias"), dims[i]);
  for (size_t i = 0; i < 3 && form.conv_size > 0; ++i)
    convs_.emplace_back(context, Concat(names[i], "_conv1d"),
                        ConvolutionShape{.channels = dims[i],
                                         .taps = form.conv_size,
                                         .silu = true,
                                         .init = Init::Normal(context.initializer_range)});
  MakeMaps(context);
  if (form.make_decay) decay_ = form.make_decay(context);
  if (has_norm() && form.norm_affine)
    norm_ = DeclareNorm(context, form.norm_name, heads.head_dim_v);
  out_ = OutputProjection(context, heads.value_dim(), form.bias);
  HL_CHECK(normalised() || !log_scaled(), "features with a log scale, or a decay that may grow, ",
           "without a normaliser");
  HL_CHECK(!form_.score_norm || (decay_ != nullptr && decay_->constant() && form_.conv_size == 0),
           "score_norm without a constant decay, or with a convolution");
}

void DecayedMixer::MakeMaps(const PartContext& context) {
  const auto make = [&](const DecayedForm::MakeMap& maker,
                        const char* name) -> std::shared_ptr<const FeatureMap> {
    const PartContext below = context.Below(name);
    return maker ? maker(below) : MakeFeatureMap("identity", below, heads_.head_dim_k);
  };
  maps_[0] = make(form_.make_map_q, "feature_map_q.");
  const auto& make_k = form_.make_map_k ? form_.make_map_k : form_.make_map_q;
  maps_[1] = make(make_k, "feature_map_k.");
  const int64_t features = maps_[0]->width(), values = heads_.head_dim_v;
  HL_CHECK_AS(ExitCode::kUsage,
              features <= kernels::kMaxHeadDimK && values <= kernels::kMaxHeadDimV, "a head has ",
              features, " features and ", values, " values; decay attention takes at most ",
              kernels::kMaxHeadDimK, " and ", kernels::kMaxHeadDimV,
              ". Use more heads, or a narrower feature map.");
}

MixerTraits DecayedMixer::traits() const {
  const int64_t num_features = maps_[0]->width();
  const int log_scale = log_scaled() ? 2 : -1;
  MixerTraits traits;
  if (decay_ != nullptr) traits.max_tokens = decay_->max_tokens();
  traits.reads_told_positions = rotates();
  traits.state = {{.name = "kv",
                   .shape = {heads_.num_heads, num_features, heads_.head_dim_v},
                   .log_scale = log_scale}};
  if (normalised())
    traits.state.push_back(
        {.name = "key_sum", .shape = {heads_.num_heads, num_features}, .log_scale = log_scale});
  if (log_scaled())
    traits.state.push_back(
        {.name = "log_scale", .shape = {heads_.num_heads}, .exchange = StateExchange::kLogScale});
  if (form_.score_norm) {
    traits.causal_in_bits = false;  // each sum includes later keys, as zeros
    traits.splits_rows = false;
    traits.state.push_back({.name = "keys",
                            .shape = {StateTensor::kGrows, heads_.num_kv_heads, num_features},
                            .compute_dtype = true,
                            .exchange = StateExchange::kGather});
  }
  const char* const tails[] = {"q_tail", "k_tail", "v_tail"};
  for (size_t i = 0; i < convs_.size(); ++i) traits.state.push_back(convs_[i].tail(tails[i]));
  return traits;
}

MixerOutput DecayedMixer::Forward(const MixerCall& call) const {
  const bool carried = call.carried();
  MixerOutput result;
  if (call.want_state) result.state.tensors.resize(traits().state.size());
  Heads heads = Project(call.x, call.slice, [&](const at::Tensor& y, size_t index) {
    return Convolve(y, index, call, call.want_state ? &result.state : nullptr);
  });
  if (form_.score_norm) {
    const at::Tensor keys =
        call.num_past == 0
            ? heads.k.x
            : at::cat(
                  {call.initial->tensors[num_memories()].narrow(1, 0, call.num_past), heads.k.x},
                  1);
    NormScores(keys, call.slice.positions, heads);
    if (call.want_state) result.state.tensors[num_memories()] = keys;
  }
  const auto [o, memory] =
      ops::DecayAttention({.q = heads.q.x,
                           .k = heads.k.x,
                           .v = heads.v,
                           .log_decay = heads.log_decay,
                           .log_key_scale = heads.k.log_scale,
                           .norm_q = heads.plain_q,
                           .norm_k = heads.plain_k,
                           .chunks = call.slice.chunks,
                           .initial_state = carried ? MemoryOf(*call.initial) : ops::DecayState(),
                           .segment = call.slice.segment},
                          KernelConfig());
  result.y = Output(o, heads.gate);
  if (call.want_state) Keep(memory, result.state);
  return result;
}

at::Tensor DecayedMixer::Step(const at::Tensor& x, const SequenceSlice& token,
                              MixerState& state) const {
  Heads heads = Project(x.unsqueeze(1), token, [&](const at::Tensor& y, size_t index) {
    if (convs_.empty()) return y;
    return convs_[index].Step(y.squeeze(1), state.tensors[num_memories() + index]).unsqueeze(1);
  });
  if (form_.score_norm) {
    at::Tensor& keys = state.tensors[num_memories()];
    AppendToken(heads.k.x, token.begin, keys);
    NormScores(keys.narrow(1, 0, token.begin + 1), token.positions, heads);
  }
  const auto at_token = [](const at::Tensor& y) { return y.defined() ? y.squeeze(1) : y; };
  const bool constant = decay_ != nullptr && decay_->constant();
  ops::DecayState memory = MemoryOf(state);
  const at::Tensor o =
      ops::DecayAttentionStep({.q = at_token(heads.q.x),
                               .k = at_token(heads.k.x),
                               .v = at_token(heads.v),
                               .log_decay = constant ? heads.log_decay : at_token(heads.log_decay),
                               .constant_decay = constant,
                               .log_key_scale = at_token(heads.k.log_scale),
                               .norm_q = at_token(heads.plain_q),
                               .norm_k = at_token(heads.plain_k)},
                              KernelConfig(), memory);
  Keep(memory, state);
  return Output(o.unsqueeze(1), heads.gate).squeeze(1);
}

double DecayedMixer::query_scale() const {
  return form_.scale_queries ? 1 / std::sqrt(static_cast<double>(maps_[0]->width())) : 1;
}

ops::DecayAttentionConfig DecayedMixer::KernelConfig() const {
  return {.scale = query_scale(),
          .norm = normalised() ? kernels::NormKind::kSumOfKeys : kernels::NormKind::kNone,
          .norm_eps = form_.normaliser_eps,
          .allow_growth = log_scaled()};
}

ops::DecayState DecayedMixer::MemoryOf(const MixerState& state) const {
  ops::DecayState memory = {.kv = state.tensors[0]};
  if (normalised()) memory.norm = state.tensors[1];
  if (log_scaled()) memory.log_scale = state.tensors[2].to(at::kDouble);
  return memory;
}

void DecayedMixer::Keep(const ops::DecayState& memory, MixerState& state) const {
  state.tensors[0] = memory.kv;
  if (normalised()) state.tensors[1] = memory.norm;
  if (log_scaled()) state.tensors[2] = memory.log_scale.to(memory.kv.scalar_type());
}

bool DecayedMixer::IsMappedWithBias(size_t index) const {
  return index < maps_.size() && form_.conv_size == 0 && maps_[index]->element_map().has_value();
}

std::vector<at::Tensor> DecayedMixer::AddBiases(std::span<const at::Tensor> y) const {
  std::vector<ops::BiasedInput> parts;
  for (size_t i = 0; i < projections_.size(); ++i) {
    ops::BiasedInput part = {.x = y[i], .bias = {}};
    if (biases_[i].declared()) part.bias = *biases_[i];
    if (IsMappedWithBias(i)) part.map = *maps_[i]->element_map();
    parts.push_back(part);
  }
  return ops::BiasMap(parts);
}

DecayedMixer::Heads DecayedMixer::Project(const at::Tensor& x, const SequenceSlice& slice,
                                          const Convolution& convolve) const {
  std::vector<at::Tensor> weights = {*projections_[0], *projections_[1], *projections_[2]};
  std::vector<at::Tensor> of_decay;
  if (decay_ != nullptr) of_decay = decay_->Weights();
  weights.insert(weights.end(), of_decay.begin(), of_decay.end());
  if (gate_.declared()) weights.push_back(*gate_);
  const std::vector<at::Tensor> y = ops::SharedInputLinear(x, weights);
  const std::vector<at::Tensor> biased = AddBiases(y);
  const auto split = [&](size_t index, int64_t head_dim) {
    return SplitHeads(convolve(biased[index], index), head_dim);
  };
  const auto map = [&](size_t index) -> Features {
    const at::Tensor head = split(index, heads_.head_dim_k);
    return IsMappedWithBias(index) ? Features{head} : (*maps_[index])(head);
  };
  Heads heads = {.q = map(0), .k = map(1)};
  if (form_.normaliser == Normaliser::kUnrotatedKeys)
    heads.plain_q = heads.q.x, heads.plain_k = heads.k.x;
  if (rotates()) {
    const at::ScalarType dtype = ops::ComputeType(heads.q.x);
    const auto table =
        form_.rotary_frequencies.empty()
            ? slice.rotary->Of(slice.told_positions(), maps_[0]->width(), form_.rope_theta, dtype)
            : slice.rotary->Of(slice.told_positions(), form_.rotary_frequencies, /*factor=*/1,
                               dtype);
    const ops::RotatedPair rotated = ops::ApplyRotary(heads.q.x, heads.k.x, table);
    heads.q.x = rotated.q, heads.k.x = rotated.k;
  }
  if (form_.query_scale.of) {
    const at::ScalarType compute = ops::ComputeType(x);
    PositionTensors::Key key = {"query scale", form_.query_scale.key};
    key.values.push_back(static_cast<double>(compute));
    const at::Tensor scale = slice.of_positions->Of(slice.positions, key, [&] {
      return form_.query_scale.of(slice.positions).unsqueeze(-1).to(compute);
    });
    heads.q.x = (heads.q.x * scale).to(heads.q.x.scalar_type());
  }
  if (decay_ != nullptr) {
    const QueriesAndKeys placed = decay_->AtPositions({.q = heads.q.x, .k = heads.k.x}, slice);
    heads.q.x = placed.q, heads.k.x = placed.k;
  }
  if (heads.k.log_scale.defined())  // one per query head
    heads.k.log_scale = RepeatHeads(heads.k.log_scale.unsqueeze(3), heads_.num_heads).squeeze(3);
  heads.v = split(2, heads_.head_dim_v);
  if (decay_ != nullptr) heads.log_decay = (*decay_)(x, std::span(y).subspan(3, of_decay.size()));
  if (gate_.declared()) heads.gate = y.back();
  return heads;
}

void DecayedMixer::NormScores(const at::Tensor& keys, const at::Tensor& positions,
                              Heads& heads) const {
  constexpr double kLeast = 1, kMost = 5e4;  // as in torchscale
  const at::Tensor sums = ScoreSums({.q = heads.q.x,
                                     .k = keys,
                                     .positions = positions,
                                     .log_decay = heads.log_decay,
                                     .scale = query_scale()});
  heads.q.x = (heads.q.x / sums.clamp(kLeast, kMost).unsqueeze(3)).to(heads.q.x.scalar_type());
}

// Convolution `index` reads its tail from the call's state and writes the new one to `after`.
at::Tensor DecayedMixer::Convolve(const at::Tensor& y, size_t index, const MixerCall& call,
                                  MixerState* after) const {
  if (convs_.empty()) return y;
  const size_t place = num_memories() + index;
  return convs_[index]({.x = y,
                        .slice = call.slice,
                        .tail = call.carried() ? call.initial->tensors[place] : at::Tensor()},
                       after == nullptr ? nullptr : &after->tensors[place]);
}

// o [..., H, V], gate [..., H V] or undefined -> [..., D].
at::Tensor DecayedMixer::Output(const at::Tensor& o, const at::Tensor& gate) const {
  if (!has_norm()) return out_(o.flatten(-2));
  const at::Tensor weight =
      norm_.declared() ? *norm_ : at::ones({o.size(-1)}, o.options().dtype(ops::ComputeType(o)));
  const at::Tensor y = gate.defined()
                           ? ops::GatedRmsNorm(o, gate.view(o.sizes()), weight, norm_eps_)
                           : ops::RmsNorm(o, weight, norm_eps_);
  return out_(y.flatten(-2));
}

FlopCount DecayedMixer::FlopsPerToken(int64_t seq_len) const {
  const int64_t gates = gate_.declared() ? heads_.value_dim() : 0;
  const int64_t rows =
      heads_.key_dim() + heads_.kv_key_dim() + heads_.kv_value_dim() + heads_.value_dim() + gates;
  const int64_t of_decay = decay_ == nullptr ? 0 : decay_->num_matrix_elements();
  const int64_t of_maps = heads_.num_heads * maps_[0]->num_matrix_elements() +
                          heads_.num_kv_heads * maps_[1]->num_matrix_elements();
  const int64_t columns = heads_.head_dim_v + normalised();
  // ScoreSums multiply each query with all earlier keys, (seq_len + 1) / 2 on average.
  const double of_scores =
      form_.score_norm ? static_cast<double>(heads_.num_heads * maps_[0]->width() * (seq_len + 1))
                       : 0;
  return {.matmul = 2 * static_cast<double>(model_dim_ * rows + of_decay + of_maps),
          .mixing =
              4 * static_cast<double>(heads_.num_heads * maps_[0]->width() * columns) + of_scores};
}

double DecayedMixer::ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const {
  const auto values = static_cast<double>(heads_.value_dim()),
             features = static_cast<double>(heads_.num_heads * maps_[0]->width());
  const int64_t of_decay = decay_ == nullptr ? 0 : decay_->num_activations();
  const int64_t of_maps = heads_.num_heads * maps_[0]->num_activations() +
                          heads_.num_kv_heads * maps_[1]->num_activations();
  // Kept: x, q, k, v, the gate, and o before and after the norm.
  const double elements = static_cast<double>(model_dim_ + of_decay + of_maps) + 2 * features +
                          (gate_.declared() ? 4 : 3) * values;
  // Kept in fp32: states, 1/rms of each head, and denominators.
  const double fp32 = static_cast<double>(decay_ == nullptr ? 0 : decay_->num_fp32_activations()) +
                      features * static_cast<double>(heads_.head_dim_v) / kTokensPerKeptState +
                      static_cast<double>(heads_.num_heads * (1 + normalised()));
  return elements * static_cast<double>(bytes_per_element) + 4 * fp32;
}

kernels::DecayKind DecayedMixer::KernelDecay() const {
  using kernels::DecayKind;
  // The changes of the keys' log scale are part of the decay, which then differs per token.
  const bool per_token = maps_[1]->has_log_scale() || (decay_ != nullptr && !decay_->constant());
  const bool per_channel = decay_ != nullptr && decay_->per_channel();
  if (per_token) return per_channel ? DecayKind::kPerTokenChannel : DecayKind::kPerToken;
  if (decay_ == nullptr) return DecayKind::kNone;
  return per_channel ? DecayKind::kPerHeadChannel : DecayKind::kPerHead;
}

double DecayedMixer::WorkspaceBytes(const GpuBatch& batch) const {
  // With kUnrotatedKeys, the numerator and the denominator are two fp32 scans without a normaliser.
  const bool own_denominator = form_.normaliser == Normaliser::kUnrotatedKeys;
  kernels::DecayAttentionArgs args;
  args.batch = args.num_sequences = static_cast<int>(batch.batch);
  args.seq_len = static_cast<int>(batch.seq_len);
  args.num_heads = args.num_q_heads = static_cast<int>(heads_.num_heads);
  args.num_k_heads = args.num_v_heads = static_cast<int>(heads_.num_kv_heads);
  args.decay_kind = KernelDecay();
  const bool of_keys = decay_ != nullptr && !decay_->constant() && !maps_[1]->has_log_scale();
  args.num_decay_heads = of_keys ? args.num_k_heads : args.num_heads;
  args.head_dim_k = static_cast<int>(maps_[0]->width());
  args.head_dim_v = static_cast<int>(heads_.head_dim_v);
  if (normalised() && !own_denominator) args.norm_kind = kernels::NormKind::kSumOfKeys;
  const auto rows = [&](int heads, int dim) {
    kernels::TensorView view;
    view.dtype = batch.bf16 && !own_denominator ? DType::kBF16 : DType::kF32;
    view.stride_h = dim;
    view.stride_t = int64_t{1} * heads * dim;
    view.stride_b = view.stride_t * args.seq_len;
    return view;
  };
  args.q = rows(args.num_q_heads, args.head_dim_k);
  args.k = rows(args.num_k_heads, args.head_dim_k);
  args.v = rows(args.num_v_heads, args.head_dim_v);
  args.out = rows(args.num_heads, args.head_dim_v);
  constexpr int64_t kChunk = kernels::DefaultChunkSize(/*is_cuda=*/true);
  args.num_chunks = static_cast<int>(batch.batch * ((batch.seq_len + kChunk - 1) / kChunk));
  float present = 0;  // the sizes depend on which tensors are present, not on their values
  if (args.decay_kind != kernels::DecayKind::kNone) args.log_decay.data = &present;
  if (log_scaled()) args.key_scale.data = &present;
  const kernels::DecayAttentionPlan plan = MakePlan(args, batch.gpu);
  return static_cast<double>(
      std::max(ForwardWorkspaceBytes(args, plan), BackwardWorkspaceBytes(args, plan)));
}

}  // namespace halflife::model
