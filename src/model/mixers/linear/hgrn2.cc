// HGRN2 (Qin et al., 2024): gated linear attention whose forget gate is also the key,
//
//   S_t = diag(alpha_t) S_{t-1} + (1 - alpha_t)^T i_t,   o_t = q_t S_t / sqrt(K)
//   alpha_t = b + (1 - b) sigmoid(W_f x_t),   q_t = silu(W_q x_t),   i_t = W_i x_t
//
// The lower bounds b increase from layer to layer. Those of layer l are the sum over layers 1 to l
// of softmax(lower_bounds), where the softmax is over the layers of one trained tensor of the whole
// model. Layer 0 has no bound. Parameters are named as in fla.
//
// Shapes: B batch, T seq_len, L layers, D model_dim, H heads, K = V = D / H.
#include <ATen/ops/softmax.h>

#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"
#include "model/mixers/linear/log_decay.h"
#include "ops/rows/decay_gates.h"

namespace halflife::model {
namespace {

constexpr double kHgrn2NormEps = 1e-5;  // of the output norm, as in fla

struct Hgrn2Options : OptionsOf<Hgrn2Options> {
  int64_t num_heads = 4;
  bool use_lower_bound = true, use_short_conv = false;
  int64_t conv_size = 4;
  bool norm_affine = true;
  int64_t head_dim = 0;  // computed by Resolve

  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads},
            {"use_lower_bound", &use_lower_bound},
            {"use_short_conv", &use_short_conv},
            {"conv_size", &conv_size},
            {"norm_affine", &norm_affine}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    const bool fits = sizes.model_dim % num_heads == 0;
    problems.Require(fits, "num_heads ", num_heads, " does not divide model_dim ", sizes.model_dim,
                     ". Use a divisor of ", sizes.model_dim, ".");
    if (fits) head_dim = sizes.model_dim / num_heads;
  }
  LinearHeads heads() const { return {num_heads, num_heads, num_heads, head_dim, head_dim}; }
};

// The recurrence with a decay, with log decay and keys from the forget gate. Its keys are the
// logits of the gate.
class ForgetGateRecurrence : public Recurrence {
 public:
  ForgetGateRecurrence(bool use_lower_bound, const PartContext& context,
                       const RecurrenceHeads& heads)
      : layer_(context.layer),
        num_channels_(heads.num_k_heads * heads.num_features),
        decayed_(MakeDecayRecurrence({.make_decay = [](const PartContext&) {
          return std::make_unique<GivenDecay>();
        }})(context, heads)) {
    if (use_lower_bound && layer_ > 0)
      bounds_ =
          context.parameters->DeclareShared({.name = "lower_bounds",
                                             .shape = {context.sizes.num_layers, num_channels_},
                                             .region = dist::Region::kFp32},
                                            Init::Zeros());
  }

  MixerTraits traits() const override { return decayed_->traits(); }

  RecurrenceOutput Scan(const RecurrenceInputs& inputs, const MixerCall& call) const override {
    const Gated gated(*this, inputs);
    return decayed_->Scan(gated.inputs, call);
  }
  at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice& token,
                  std::span<at::Tensor> state) const override {
    const Gated gated(*this, inputs);
    return decayed_->Step(gated.inputs, token, state);
  }

  RecurrenceCost CostPerToken(int64_t seq_len) const override {
    RecurrenceCost cost = decayed_->CostPerToken(seq_len);
    cost.activations += static_cast<double>(num_channels_);       // the logits of the gate
    cost.fp32_activations += static_cast<double>(num_channels_);  // the log decay
    return cost;
  }
  double GpuActivationBytesPerToken(int64_t bytes_per_element) const override {
    return decayed_->GpuActivationBytesPerToken(bytes_per_element);
  }
  double WorkspaceBytes(const GpuBatch& batch) const override {
    return decayed_->WorkspaceBytes(batch);
  }

 private:
  // The inputs of the recurrence with a decay.
  struct Gated {
    Gated(const ForgetGateRecurrence& of, const RecurrenceInputs& given) : inputs(given) {
      const at::Tensor logits = given.k.x;
      const auto [k, gate] = ops::ForgetGate({.x = logits.flatten(-2), .bound = of.LowerBound()});
      inputs.k = {.x = k.view(logits.sizes())};
      log_decay = {.y = gate.view(logits.sizes())};
      inputs.products = {&log_decay, 1};
    }
    Gated(const Gated&) = delete;  // inputs.products refers to log_decay
    Gated& operator=(const Gated&) = delete;

    ops::LinearPart log_decay;
    RecurrenceInputs inputs;
  };

  // [D], or undefined for no bound.
  at::Tensor LowerBound() const {
    if (!bounds_.declared()) return {};
    return at::softmax(*bounds_, 0).narrow(0, 1, layer_).sum(0);
  }

  int64_t layer_, num_channels_;
  std::unique_ptr<Recurrence> decayed_;
  Parameter bounds_;  // [L, D]
};

LinearForm MakeHgrn2Form(const Hgrn2Options& options) {
  const auto make_map = [dim = options.head_dim](const char* name) {
    return [=](const PartContext&) { return MakeActivationMap(name, dim); };
  };
  return {.names = {"q", "f", "i"},
          .k_is_decay = true,
          .conv_size = options.use_short_conv ? options.conv_size : 0,
          .conv_silu_qk = false,
          .conv_silu_v = false,
          .make_map_q = make_map("silu"),
          .make_map_k = make_map("none"),
          .make_recurrence =
              [bounded = options.use_lower_bound](const PartContext& context,
                                                  const RecurrenceHeads& heads) {
                return std::make_unique<ForgetGateRecurrence>(bounded, context, heads);
              },
          .output_gate = OutputGate::kNone,
          .norm_name = "g_norm.weight",
          .norm_affine = options.norm_affine,
          .norm_across_heads = true,
          .norm_eps = kHgrn2NormEps};
}

}  // namespace

MixerVariant Hgrn2Variant() { return LinearVariantOf<Hgrn2Options, MakeHgrn2Form>("hgrn2"); }

}  // namespace halflife::model
