#include "model/mixers/linear/linear_mixer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/projections.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/rms_norm.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// Returns `now`, which was computed from `part`. It keeps the buffer of the gradient only if it is
// the same tensor: a buffer belongs to the consumer of the product.
ops::LinearPart WithColumnsOf(const ops::LinearPart& part, const at::Tensor& now) {
  return now.is_same(part.y) ? part : ops::LinearPart{.y = now};
}

// An activation as a feature map, as in fla's retnet and gla.
class Activated : public FeatureMap {
 public:
  Activated(const std::string& name, int64_t dim)
      : activation_(Activation::Named(name)), dim_(dim) {}
  Features operator()(const at::Tensor& x) const override { return {activation_(x)}; }
  int64_t width() const override { return dim_; }
  int64_t num_activations() const override { return activation_.num_kept() * dim_; }

 private:
  Activation activation_;
  int64_t dim_;
};

}  // namespace

std::shared_ptr<const FeatureMap> MakeActivationMap(const std::string& name, int64_t dim) {
  return std::make_shared<Activated>(name, dim);
}

std::vector<Option> LinearHeadOptions::Fields() {
  return {{"num_heads", &num_heads},
          {"num_kv_heads", &num_kv_heads, {.min = 0}},
          {"expand_k", &expand_k},
          {"expand_v", &expand_v}};
}

std::vector<Option> GatedHeadOptions::Fields() {
  std::vector<Option> fields = LinearHeadOptions::Fields();
  fields.push_back({"use_output_gate", &use_output_gate});
  fields.push_back({"norm_affine", &norm_affine});
  fields.push_back({"feature_map", &feature_map, {.choices = Activation::Names()}});
  return fields;
}

LinearForm MakeLinearForm(const GatedHeadOptions& options) {
  const auto make_map = [name = options.feature_map, dim = options.head_dim_k](const PartContext&) {
    return MakeActivationMap(name, dim);
  };
  return {.make_map_q = make_map,
          .output_gate = options.use_output_gate ? OutputGate::kSilu : OutputGate::kNone,
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
                   expand_k, " and expand_v ", expand_v,
                   " must be whole numbers. Use other factors.");
  const int64_t keys = std::llround(dim_k), values = std::llround(dim_v);
  const bool heads_fit = keys > 0 && values > 0 && keys % num_heads == 0 && values % num_heads == 0;
  problems.Require(heads_fit, "num_heads ", num_heads, " must divide the key width ", keys,
                   " and the value width ", values, ". Use a divisor of both.");
  problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                   " must divide num_heads ", num_heads, ". Use a divisor of it.");
  if (heads_fit) head_dim_k = keys / num_heads, head_dim_v = values / num_heads;
}

LinearMixer::LinearMixer(const LinearHeads& heads, const PartContext& context,
                         const LinearForm& form)
    : heads_(heads),
      form_(form),
      model_dim_(context.model_dim()),
      norm_eps_(form.norm_eps > 0 ? form.norm_eps : context.norm_eps),
      v_activation_(Activation::Named(form.v_activation)) {
  const auto& names = form.names;
  const std::array<int64_t, 3> dims = ProjectionDims();
  const std::array<int64_t, 3> of_each = {heads.num_q_heads, form.num_steps * heads.num_k_heads,
                                          form.num_steps * heads.num_v_heads};
  for (size_t i = 0; i < 3; ++i)
    projections_[i] = DeclareMatrix(context, Concat(names[i], "_proj.weight"),
                                    {.out = dims[i],
                                     .in = model_dim_,
                                     .init_scale = i == 2 ? context.value_init_scale : 1,
                                     .heads = of_each[i],
                                     .float8 = i != 1 || !form.k_is_decay});
  // Declared next to q, k and v, which read the same input: an arena then stores all as one matrix.
  if (form.output_gate != OutputGate::kNone) DeclareGate(context);
  for (size_t i = 0; i < 3 && form.bias; ++i)
    biases_[i] = DeclareBias(context, Concat(names[i], "_proj.bias"), dims[i]);
  const bool recurrence_first = form.recurrence_next_to_projections;
  if (!recurrence_first) DeclareConvolutions(context);
  MakeMaps(context);
  recurrence_ = form.make_recurrence(context, {.num_heads = heads.num_heads(),
                                               .num_q_heads = heads.num_q_heads,
                                               .num_k_heads = heads.num_k_heads,
                                               .num_v_heads = heads.num_v_heads,
                                               .num_features = maps_[0]->width(),
                                               .head_dim_v = heads.head_dim_v,
                                               .keys_have_log_scale = maps_[1]->has_log_scale()});
  num_recurrent_ = recurrence_->traits().state.size();
  if (recurrence_first) DeclareOuterGate(context), DeclareConvolutions(context);
  if (has_norm() && form.norm_affine)
    norm_ = DeclareNorm(context, form.norm_name,
                        form.norm_across_heads ? heads.output_dim() : heads.head_dim_v);
  out_ = OutputProjection(context, heads.output_dim(), form.bias);
}

std::array<int64_t, 3> LinearMixer::ProjectionDims() const {
  return {heads_.q_dim(), form_.num_steps * heads_.k_dim(), form_.num_steps * heads_.v_dim()};
}

void LinearMixer::DeclareGate(const PartContext& context) {
  const int64_t dim = heads_.output_dim();
  if (form_.gate_rank == 0) {
    gate_ =
        DeclareMatrix(context, "g_proj.weight",
                      {.out = dim, .in = model_dim_, .heads = heads_.num_heads(), .float8 = true});
    return;
  }
  gate_ = DeclareMatrix(context, "g_proj.0.weight", {.out = form_.gate_rank, .in = model_dim_});
  if (!form_.recurrence_next_to_projections) DeclareOuterGate(context);
}

void LinearMixer::DeclareOuterGate(const PartContext& context) {
  if (form_.output_gate == OutputGate::kNone || form_.gate_rank == 0) return;
  const int64_t dim = heads_.output_dim();
  outer_gate_ = DeclareMatrix(context, "g_proj.1.weight",
                              {.out = dim, .in = form_.gate_rank, .heads = heads_.num_heads()});
  if (form_.gate_bias) gate_bias_ = DeclareBias(context, "g_proj.1.bias", dim);
}

void LinearMixer::DeclareConvolutions(const PartContext& context) {
  if (form_.conv_size == 0) return;
  const std::array<int64_t, 3> dims = ProjectionDims();
  for (size_t i = 0; i < 3; ++i)
    convs_.emplace_back(context, Concat(form_.names[i], "_conv1d"),
                        ConvolutionShape{.channels = dims[i],
                                         .taps = form_.conv_size,
                                         .silu = i == 2 ? form_.conv_silu_v : form_.conv_silu_qk,
                                         .init = Init::Normal(context.initializer_range)});
}

void LinearMixer::MakeMaps(const PartContext& context) {
  const auto make = [&](const LinearForm::MakeMap& maker,
                        const char* name) -> std::shared_ptr<const FeatureMap> {
    const PartContext below = context.Below(name);
    return maker ? maker(below) : MakeFeatureMap("identity", below, heads_.head_dim_k);
  };
  maps_[0] = make(form_.make_map_q, "feature_map_q.");
  const auto& make_k = form_.make_map_k ? form_.make_map_k : form_.make_map_q;
  maps_[1] = make(make_k, "feature_map_k.");
}

MixerTraits LinearMixer::traits() const {
  MixerTraits traits = recurrence_->traits();
  const char* const tails[] = {"q_tail", "k_tail", "v_tail"};
  for (size_t i = 0; i < convs_.size(); ++i) traits.state.push_back(convs_[i].tail(tails[i]));
  return traits;
}

MixerOutput LinearMixer::Forward(const MixerCall& call) const {
  MixerOutput result;
  MixerState* const after = call.want_state ? &result.state : nullptr;
  if (after != nullptr) after->tensors.resize(num_recurrent_ + convs_.size());
  const Projected projected = Project(ops::SharedInputParts(call.x, InputWeights()),
                                      [&](const Parts& y) { return Convolve(y, call, after); });
  RecurrenceOutput scanned = recurrence_->Scan(projected.Inputs(call.x), call);
  result.y = Output(scanned.o, projected.gate);
  if (after != nullptr) {
    HL_CHECK(scanned.state.size() == num_recurrent_, "the recurrence returned ",
             scanned.state.size(), " state tensors, but its traits declare ", num_recurrent_);
    std::ranges::move(scanned.state, after->tensors.begin());
  }
  return result;
}

at::Tensor LinearMixer::Step(const at::Tensor& x, const SequenceSlice& token,
                             MixerState& state) const {
  at::Tensor no_values;
  return StepOnInput(x, token, state, no_values);
}

at::Tensor LinearMixer::StepOnInput(const NormedInput& x, const SequenceSlice& token,
                                    MixerState& state, at::Tensor& /*first_values*/) const {
  Parts products = x.Products(InputWeights());
  for (ops::LinearPart& part : products) part.y = part.y.unsqueeze(1);
  const Projected projected = Project(products, [&](const Parts& y) {
    Parts outs = y;
    for (size_t i = 0; i < convs_.size(); ++i)
      outs[i].y = convs_[i].Step(y[i].y.squeeze(1), state.tensors[num_recurrent_ + i]).unsqueeze(1);
    return outs;
  });
  const at::Tensor o = recurrence_->Step(projected.Inputs(x.Tensor().unsqueeze(1)), token,
                                         std::span(state.tensors).first(num_recurrent_));
  return Output(o.unsqueeze(1), projected.gate).squeeze(1);
}

bool LinearMixer::IsMappedWithBias(size_t index) const {
  return index < maps_.size() && form_.conv_size == 0 && maps_[index]->element_map().has_value();
}

LinearMixer::Parts LinearMixer::AddBiases(std::span<const ops::LinearPart> y) const {
  std::vector<ops::BiasedInput> inputs;
  for (size_t i = 0; i < projections_.size(); ++i) {
    ops::BiasedInput input = {.x = y[i].y, .bias = {}, .gradient = y[i].gradient};
    if (biases_[i].declared()) input.bias = *biases_[i];
    if (IsMappedWithBias(i)) input.map = *maps_[i]->element_map();
    inputs.push_back(input);
  }
  const std::vector<at::Tensor> outs = ops::BiasMap(inputs);
  Parts parts;
  for (size_t i = 0; i < outs.size(); ++i) parts.push_back(WithColumnsOf(y[i], outs[i]));
  return parts;
}

Features LinearMixer::Map(size_t index, const ops::LinearPart& y) const {
  const ops::LinearPart heads = {.y = SplitHeads(y.y, heads_.head_dim_k), .gradient = y.gradient};
  Features features = IsMappedWithBias(index) ? Features{heads.y} : (*maps_[index])(heads.y);
  features.gradient = WithColumnsOf(heads, features.x).gradient;
  return features;
}

std::vector<at::Tensor> LinearMixer::InputWeights() const {
  std::vector<at::Tensor> weights = {*projections_[0], *projections_[1], *projections_[2]};
  const std::vector<at::Tensor> recurrent = recurrence_->Weights();
  weights.insert(weights.end(), recurrent.begin(), recurrent.end());
  if (gate_.declared()) weights.push_back(*gate_);
  return weights;
}

LinearMixer::Projected LinearMixer::Project(const Parts& y, const Convolution& convolve) const {
  const Parts convolved = convolve(AddBiases(y));
  const ops::LinearPart values = {.y = SplitHeads(convolved[2].y, heads_.head_dim_v),
                                  .gradient = convolved[2].gradient};
  Projected projected = {.q = Map(0, convolved[0]),
                         .k = Map(1, convolved[1]),
                         .v = WithColumnsOf(values, v_activation_(values.y)),
                         .products = {},
                         .gate = {}};
  const size_t num_recurrent = y.size() - projections_.size() - (gate_.declared() ? 1 : 0);
  const auto products = std::span(y).subspan(projections_.size(), num_recurrent);
  projected.products.assign(products.begin(), products.end());
  if (gate_.declared()) projected.gate = y.back();
  if (outer_gate_.declared())
    projected.gate = {
        .y = AddBias(ops::Linear(projected.gate.y, *outer_gate_, projected.gate.gradient),
                     gate_bias_)};
  return projected;
}

RecurrenceInputs LinearMixer::Projected::Inputs(const at::Tensor& x) const {
  return {.x = x, .products = products, .q = q, .k = k, .v = v.y, .v_gradient = v.gradient};
}

// The convolutions read their tails from the call's state and write the new ones to `after`.
LinearMixer::Parts LinearMixer::Convolve(const Parts& y, const MixerCall& call,
                                         MixerState* after) const {
  if (convs_.empty()) return y;
  std::vector<ops::ShortConvInputs> inputs;
  for (size_t i = 0; i < convs_.size(); ++i) {
    const size_t place = num_recurrent_ + i;
    inputs.push_back(
        convs_[i].Inputs({.x = y[i].y,
                          .slice = call.slice,
                          .tail = call.carried() ? call.initial->tensors[place] : at::Tensor(),
                          .x_gradient = y[i].gradient},
                         after == nullptr ? nullptr : &after->tensors[place]));
  }
  Parts parts;
  for (const at::Tensor& out : ops::ShortConvs(inputs)) parts.push_back({.y = out});
  return parts;
}

// heads [..., H, V], gate [..., H V] or undefined -> [..., D].
at::Tensor LinearMixer::Output(const at::Tensor& heads, const ops::LinearPart& gate) const {
  if (!has_norm()) return out_(heads.flatten(-2));
  const at::Tensor o = form_.norm_across_heads ? heads.flatten(-2) : heads;
  const at::Tensor weight =
      norm_.declared() ? *norm_ : at::ones({o.size(-1)}, o.options().dtype(ops::ComputeType(o)));
  const auto kind = form_.output_gate == OutputGate::kSigmoid ? kernels::NormGate::kSigmoid
                                                              : kernels::NormGate::kSilu;
  if (c10::InferenceMode::is_enabled()) {
    const auto joined = out_.OfNorm({.x = heads.flatten(-2),
                                     .norm = ops::RowNorm{.weight = weight, .eps = norm_eps_},
                                     .gate = gate.y,
                                     .gate_kind = kind});
    if (joined) return *joined;
  }
  const at::Tensor y = gate.y.defined() ? ops::GatedRmsNorm(o, gate.y.view(o.sizes()), weight,
                                                            norm_eps_, kind, gate.gradient)
                                        : ops::RmsNorm(o, weight, norm_eps_);
  return out_(form_.norm_across_heads ? y : y.flatten(-2));
}

FlopCount LinearMixer::FlopsPerToken(int64_t seq_len) const {
  const int64_t values = heads_.output_dim();
  int64_t gates = 0;
  if (gate_.declared())
    gates = outer_gate_.declared() ? form_.gate_rank * (model_dim_ + values) : model_dim_ * values;
  const std::array<int64_t, 3> dims = ProjectionDims();
  const int64_t rows = dims[0] + dims[1] + dims[2] + values;
  const int64_t maps = heads_.num_q_heads * maps_[0]->num_matrix_elements() +
                       form_.num_steps * heads_.num_k_heads * maps_[1]->num_matrix_elements();
  const RecurrenceCost cost = recurrence_->CostPerToken(seq_len);
  return {
      .matmul = 2 * static_cast<double>(model_dim_ * rows + gates + cost.matrix_elements + maps),
      .mixing = cost.mixing_flops};
}

double LinearMixer::ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const {
  const auto values = static_cast<double>(heads_.output_dim()),
             features = static_cast<double>(heads_.num_q_heads * maps_[0]->width());
  const std::array<int64_t, 3> dims = ProjectionDims();
  // Kept by the convolutions and maps of q, k and v, mostly their inputs.
  int64_t before = heads_.num_q_heads * maps_[0]->num_activations() +
                   form_.num_steps * heads_.num_k_heads * maps_[1]->num_activations() +
                   v_activation_.num_kept() * dims[2];
  if (!convs_.empty()) before += dims[0] + dims[1] + dims[2];
  const RecurrenceCost cost = recurrence_->CostPerToken(seq_len);
  // Kept: x, q, k, v, the gate, and o before and after the norm.
  const int64_t later_steps =
      (form_.num_steps - 1) * (heads_.v_dim() + (cost.keeps_q_and_k ? heads_.k_dim() : 0));
  const double elements = static_cast<double>(model_dim_ + before + later_steps) +
                          cost.activations + (cost.keeps_q_and_k ? 2 * features : 0) +
                          (gate_.declared() ? 4 : 3) * values;
  // Kept in fp32: what the recurrence keeps, and 1/rms of each head.
  const double fp32 = cost.fp32_activations + static_cast<double>(heads_.num_heads());
  return elements * static_cast<double>(bytes_per_element) + 4 * fp32;
}

double LinearMixer::GpuActivationBytesPerToken(int64_t, int64_t bytes_per_element) const {
  return recurrence_->GpuActivationBytesPerToken(bytes_per_element);
}

double LinearMixer::WorkspaceBytes(const GpuBatch& batch) const {
  return recurrence_->WorkspaceBytes(batch);
}

}  // namespace halflife::model
