// Gated slot attention (Zhang et al., 2024): M slots, each of which keeps a decayed mean of keys
// and of values. A query attends to the slots,
//
//   s_t = 1 - alpha_t,   ln alpha_t = logsigmoid(W_f x_t) / normaliser
//   K_t = diag(alpha_t) K_{t-1} + s_t^T k_t,   V_t = diag(alpha_t) V_{t-1} + s_t^T v_t
//   o_t = softmax(q_t K_t^T) V_t,   y_t = W_o RMSNorm(silu(o_t))
//
// Both passes run on the kernels of decay attention: the second one directly, and the first one as
// a read from the side of the values (decay_value_read.h). Parameters are named as in fla.
//
// Shapes: B batch, T seq_len, H heads of q, Hk heads of k and v, M slots, K and V channels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"
#include "model/mixers/linear/log_decay.h"
#include "ops/decay_attention/decay_value_read.h"
#include "ops/rows/decay_gates.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

constexpr double kGsaNormEps = 1e-5;  // of the output norm, as in fla

struct GsaOptions : OptionsOf<GsaOptions, LinearHeadOptions> {
  int64_t num_slots = 64;
  std::string feature_map = "silu";
  double gate_normaliser = 8;
  bool use_short_conv = false;
  int64_t conv_size = 4;
  bool norm_affine = true;

  GsaOptions() : OptionsOf(/*heads=*/4, /*k=*/1, /*v=*/1) {}
  std::vector<Option> Fields() override {
    std::vector<Option> fields = LinearHeadOptions::Fields();
    fields.push_back({"num_slots", &num_slots, {.max = kernels::kMaxHeadDimK}});
    fields.push_back({"feature_map", &feature_map, {.choices = {"silu", "relu", "t2r"}}});
    fields.push_back({"gate_normaliser", &gate_normaliser});
    fields.push_back({"use_short_conv", &use_short_conv});
    fields.push_back({"conv_size", &conv_size});
    fields.push_back({"norm_affine", &norm_affine});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    LinearHeadOptions::Resolve(sizes, problems);
    problems.Require(gate_normaliser > 0 && std::isfinite(gate_normaliser),
                     "option gate_normaliser is ", gate_normaliser, ". Use a number above 0.");
    problems.Require(std::max(head_dim_k, head_dim_v) <= kernels::kMaxHeadDimV, "a head has ",
                     head_dim_k, " channels of k and ", head_dim_v,
                     " of v. Use more heads, for at "
                     "most ",
                     kernels::kMaxHeadDimV, " channels.");
  }
};

class SlotRecurrence : public Recurrence {
 public:
  SlotRecurrence(const GsaOptions& options, const PartContext& context,
                 const RecurrenceHeads& heads)
      : heads_(heads),
        num_slots_(options.num_slots),
        width_(heads.num_k_heads * options.num_slots),
        model_dim_(context.model_dim()),
        gate_scale_(1 / options.gate_normaliser),
        gate_(DeclareMatrix(context, "f_proj.weight",
                            {.out = width_, .in = model_dim_, .heads = heads.num_k_heads})),
        keys_(MakePass(context, heads.num_features)),
        values_(MakePass(context, heads.head_dim_v)) {}

  MixerTraits traits() const override {
    MixerTraits traits;
    traits.state = {
        {.name = "slot_keys", .shape = {heads_.num_heads, num_slots_, heads_.num_features}},
        {.name = "slot_values", .shape = {heads_.num_heads, num_slots_, heads_.head_dim_v}}};
    return traits;
  }
  std::vector<at::Tensor> Weights() const override { return {*gate_}; }

  RecurrenceOutput Scan(const RecurrenceInputs& inputs, const MixerCall& call) const override {
    const Slots slots = MakeSlots(inputs);
    const auto [scores, keys] = ops::DecayValueRead(
        {.q = inputs.q.x,
         .k = slots.weights,
         .v = inputs.k.x,
         .log_decay = slots.log_decay.y,
         .chunks = call.slice.chunks,
         .initial_state = call.carried() ? call.initial->tensors[0] : at::Tensor(),
         .segment = call.slice.segment});
    MixerState before;
    if (call.carried()) before.tensors = {call.initial->tensors[1]};
    MixerCall of_values = call;
    of_values.initial = &before;
    const RecurrenceOutput read =
        values_->Scan(ValueInputs(inputs, slots, Probabilities(scores)), of_values);
    RecurrenceOutput result = {.o = at::silu(read.o), .state = {}};
    if (call.want_state) result.state = {keys, read.state[0]};
    return result;
  }

  at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice& token,
                  std::span<at::Tensor> state) const override {
    const Slots slots = MakeSlots(inputs);
    const at::Tensor& q = inputs.q.x;  // [B, 1, H, K]
    const at::Tensor nothing = at::zeros({q.size(0), 1, q.size(2), num_slots_}, q.options());
    keys_->Step({.x = inputs.x,
                 .products = {&slots.log_decay, 1},
                 .q = {nothing},
                 .k = {slots.weights},
                 .v = inputs.k.x},
                token, state.first(1));
    const at::Tensor query = q.squeeze(1).unsqueeze(3).to(state[0].scalar_type());
    const at::Tensor scores = at::matmul(state[0], query).squeeze(3).unsqueeze(1);
    const at::Tensor weights = Probabilities(scores).to(q.scalar_type());
    return at::silu(values_->Step(ValueInputs(inputs, slots, weights), token, state.subspan(1, 1)));
  }

  RecurrenceCost CostPerToken(int64_t seq_len) const override {
    // The first pass multiplies as often as the second one. Its backward keeps no states.
    const auto slots = static_cast<double>(heads_.num_heads * num_slots_),
               gates = static_cast<double>(width_);
    RecurrenceCost cost = values_->CostPerToken(seq_len);
    cost.mixing_flops += keys_->CostPerToken(seq_len).mixing_flops;
    cost.matrix_elements = model_dim_ * width_;
    // Logits and weights of the slots, probabilities, and o before SiLU.
    cost.activations +=
        2 * gates + slots + static_cast<double>(heads_.num_heads * heads_.head_dim_v);
    cost.fp32_activations += 2 * gates + slots;  // log decay, expm1 of it, probabilities
    return cost;
  }
  double GpuActivationBytesPerToken(int64_t bytes_per_element) const override {
    return values_->GpuActivationBytesPerToken(bytes_per_element);
  }
  double WorkspaceBytes(const GpuBatch& batch) const override {
    return std::max(keys_->WorkspaceBytes(batch), values_->WorkspaceBytes(batch));
  }

 private:
  // Makes the decay attention from the slots to keys or values of `width` channels.
  std::unique_ptr<Recurrence> MakePass(const PartContext& context, int64_t width) const {
    const DecayForm form = {
        .make_decay = [](const PartContext&) { return std::make_unique<GivenDecay>(); },
        .scale_queries = false};
    return MakeDecayRecurrence(form)(context, {.num_heads = heads_.num_heads,
                                               .num_q_heads = heads_.num_heads,
                                               .num_k_heads = heads_.num_k_heads,
                                               .num_v_heads = heads_.num_v_heads,
                                               .num_features = num_slots_,
                                               .head_dim_v = width});
  }

  struct Slots {
    ops::LinearPart log_decay;  // [B, T, Hk, M] fp32
    at::Tensor weights;         // s [B, T, Hk, M]
  };
  Slots MakeSlots(const RecurrenceInputs& inputs) const {
    const at::Tensor& logits = inputs.products[0].y;  // [B, T, Hk M]
    const at::Tensor no_bias =
        at::zeros({width_}, logits.options().dtype(ops::ComputeType(logits)));
    const at::Tensor log_decay =
        SplitHeads(ops::DecayGate(logits, no_bias, {.scale = gate_scale_}), num_slots_);
    return {.log_decay = {.y = log_decay},
            .weights = (-at::expm1(log_decay)).to(logits.scalar_type())};
  }
  // Computes the softmax over the slots in fp32.
  static at::Tensor Probabilities(const at::Tensor& scores) {
    return at::softmax(scores, -1, ops::ComputeType(scores)).to(scores.scalar_type());
  }
  static RecurrenceInputs ValueInputs(const RecurrenceInputs& inputs, const Slots& slots,
                                      const at::Tensor& probabilities) {
    return {.x = inputs.x,
            .products = {&slots.log_decay, 1},
            .q = {probabilities},
            .k = {slots.weights},
            .v = inputs.v};
  }

  RecurrenceHeads heads_;
  int64_t num_slots_, width_, model_dim_;
  double gate_scale_;
  Parameter gate_;
  std::unique_ptr<Recurrence> keys_, values_;
};

LinearForm MakeGsaForm(const GsaOptions& options) {
  // q and k share one map.
  const auto shared = std::make_shared<std::shared_ptr<const FeatureMap>>();
  const auto make_map = [=, name = options.feature_map,
                         dim = options.head_dim_k](const PartContext& context) {
    if (*shared == nullptr)
      *shared = name == "t2r"
                    ? std::shared_ptr<const FeatureMap>(MakeFeatureMap(name, context, dim))
                    : MakeActivationMap(name, dim);
    return *shared;
  };
  return {.conv_size = options.use_short_conv ? options.conv_size : 0,
          .make_map_q = make_map,
          .v_activation = "silu",  // also after a convolution, which has its own
          .make_recurrence =
              [options](const PartContext& context, const RecurrenceHeads& heads) {
                return std::make_unique<SlotRecurrence>(options, context, heads);
              },
          .recurrence_next_to_projections = true,
          .output_gate = OutputGate::kNone,
          .norm_name = "g_norm.weight",
          .norm_affine = options.norm_affine,
          .norm_across_heads = true,
          .norm_eps = kGsaNormEps};
}

}  // namespace

MixerVariant GsaVariant() { return LinearVariantOf<GsaOptions, MakeGsaForm>("gsa"); }

}  // namespace halflife::model
