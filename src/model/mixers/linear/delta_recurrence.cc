#include "model/mixers/linear/delta_recurrence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/delta_rule/delta_rule_partition.h"
#include "model/part_context.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/rows/delta_gates.h"
#include "ops/rows/unit_norm.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// Backward of the kernels on the CPU keeps one state per this number of tokens.
constexpr double kTokensPerKeptDeltaState =
    kernels::kDeltaCheckpointEvery * kernels::DefaultChunkSize(/*is_cuda=*/false);
// Added to the squared Euclidean norm, as in fla, and the least sum of channels that divides.
constexpr double kDeltaNormEps = 1e-6;

class DeltaRecurrence : public Recurrence {
 public:
  DeltaRecurrence(const PartContext& context, const RecurrenceHeads& heads, const DeltaForm& form)
      : heads_(heads), form_(form), model_dim_(context.model_dim()) {
    HL_CHECK(heads.num_q_heads == heads.num_k_heads && heads.num_v_heads == heads.num_heads,
             "the delta rule has ", heads.num_q_heads, ", ", heads.num_k_heads, " and ",
             heads.num_v_heads,
             " heads of q, k and v. Use as many of q as of k, and no fewer of v.");
    HL_CHECK(!heads.keys_have_log_scale,
             "the delta rule does not support keys with a log scale. Use another feature map.");
    if (form.use_beta)
      beta_ = DeclareMatrix(context, "b_proj.weight", {.out = heads.num_v_heads, .in = model_dim_});
    if (form.decay) decay_.emplace(*form.decay, context);
  }

  MixerTraits traits() const override {
    MixerTraits traits;
    traits.state = {
        {.name = "kv", .shape = {heads_.num_v_heads, heads_.num_features, heads_.head_dim_v}}};
    return traits;
  }

  std::vector<at::Tensor> Weights() const override {
    std::vector<at::Tensor> weights;
    if (decay_) weights = decay_->Weights();
    if (beta_.declared()) weights.push_back(*beta_);
    return weights;
  }

  RecurrenceOutput Scan(const RecurrenceInputs& inputs, const MixerCall& call) const override {
    const ops::UnitNormPair unit = Normalise(inputs);
    const ops::DeltaGatesOutput gates = Gates(inputs);
    const auto [out, final_state] =
        ops::DeltaRule({.q = unit.q,
                        .k = unit.k,
                        .v = inputs.v,
                        .log_decay = gates.log_decay,
                        .beta = gates.beta,
                        .chunks = call.slice.chunks,
                        .initial_state = call.carried() ? call.initial->tensors[0] : at::Tensor(),
                        .segment = call.slice.segment},
                       query_scale());
    RecurrenceOutput result = {.o = out, .state = {}};
    if (call.want_state) result.state = {final_state};
    return result;
  }

  at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice&,
                  std::span<at::Tensor> state) const override {
    const ops::UnitNormPair unit = Normalise(inputs);
    const ops::DeltaGatesOutput gates = Gates(inputs);
    const at::Tensor& log_decay = gates.log_decay;
    return ops::DeltaRuleStep({.q = unit.q.squeeze(1),
                               .k = unit.k.squeeze(1),
                               .v = inputs.v.squeeze(1),
                               .log_decay = log_decay.defined() ? log_decay.squeeze(1) : log_decay,
                               .beta = gates.beta.squeeze(1)},
                              query_scale(), state[0]);
  }

  RecurrenceCost CostPerToken(int64_t) const override {
    const auto keys = static_cast<double>(heads_.num_q_heads * heads_.num_features),
               state = static_cast<double>(heads_.num_v_heads * heads_.num_features *
                                           heads_.head_dim_v);
    RecurrenceCost cost = {.mixing_flops = 6 * state};  // read the old value, write, read
    if (beta_.declared()) cost.matrix_elements = model_dim_ * heads_.num_v_heads;
    // Normalised q and k, 1/norm of both, beta and its logit, and states.
    cost.activations = 2 * keys + static_cast<double>(heads_.num_v_heads);
    cost.fp32_activations = static_cast<double>(2 * heads_.num_q_heads + heads_.num_v_heads) +
                            state / kTokensPerKeptDeltaState;
    // On a GPU, the composed form keeps its own states instead.
    const double composed = ops::ComposedDeltaRuleActivations(
        heads_.num_features, heads_.head_dim_v, decay_ && decay_->per_channel());
    cost.gpu_fp32_activations =
        static_cast<double>(heads_.num_v_heads) * composed - state / kTokensPerKeptDeltaState;
    if (decay_) {
      cost.matrix_elements += decay_->num_matrix_elements();
      cost.activations += static_cast<double>(decay_->num_activations());
      cost.fp32_activations += static_cast<double>(decay_->num_fp32_activations());
    }
    return cost;
  }

 private:
  double query_scale() const { return 1 / std::sqrt(static_cast<double>(heads_.num_features)); }

  // Queries and keys [B, T, H, K] with normalised heads.
  ops::UnitNormPair Normalise(const RecurrenceInputs& inputs) const {
    const at::Tensor &q = inputs.q.x, &k = inputs.k.x;
    if (!form_.norm_by_sum) return ops::UnitNorm({.q = q, .k = k}, kDeltaNormEps);
    const auto by_sum = [](const at::Tensor& x) {
      return x / x.sum(-1, /*keepdim=*/true).clamp_min(kDeltaNormEps);
    };
    return {.q = by_sum(q), .k = by_sum(k)};
  }

  // The log decay [B, T, HV], [B, T, HV, K] or undefined, and beta [B, T, HV], all fp32 (fp64 for
  // fp64 inputs).
  ops::DeltaGatesOutput Gates(const RecurrenceInputs& inputs) const {
    const at::Tensor b = beta_.declared() ? inputs.products.back() : at::Tensor();
    ops::DeltaGatesOutput out;
    if (decay_) {
      out = (*decay_)(inputs.products, b, form_.beta_scale);
    } else if (b.defined()) {
      out = ops::DeltaGates({.x = {}, .bias = {}, .a_log = {}, .b = b},
                            {.beta_scale = form_.beta_scale});
    }
    const at::Tensor& v = inputs.v;
    if (!out.beta.defined())
      out.beta = at::ones({v.size(0), v.size(1), heads_.num_v_heads},
                          v.options().dtype(ops::ComputeType(v)));
    return out;
  }

  RecurrenceHeads heads_;
  DeltaForm form_;
  int64_t model_dim_;
  Parameter beta_;
  std::optional<SoftplusDecay> decay_;
};

}  // namespace

RecurrenceFactory MakeDeltaRecurrence(DeltaForm form) {
  return [form = std::move(form)](const PartContext& context, const RecurrenceHeads& heads) {
    return std::make_unique<DeltaRecurrence>(context, heads, form);
  };
}

}  // namespace halflife::model
