#include "model/mixers/linear/delta_recurrence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "kernels/delta_rule/delta_rule_partition.h"
#include "model/part_context.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/rows/delta_gates.h"
#include "ops/rows/rms_norm.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// Returns the number of tokens per state that the kernels keep for their backward.
constexpr double TokensPerKeptDeltaState(bool is_cuda) {
  return kernels::kDeltaCheckpointEvery * kernels::DefaultChunkSize(is_cuda);
}
// Added to the squared Euclidean norm, as in fla, and the smallest divisor of the norm by sum.
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
      beta_ = DeclareMatrix(context, "b_proj.weight",
                            {.out = form.num_steps * heads.num_v_heads, .in = model_dim_});
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
    const HouseholderRow row = Row(inputs, call.slice.starts);
    const bool has_steps = form_.num_steps > 1;
    const auto [out, final_state] =
        ops::DeltaRule({.q = row.q,
                        .k = row.k,
                        .v = row.v,
                        .log_decay = row.log_decay,
                        .beta = row.beta,
                        .chunks = has_steps ? nullptr : call.slice.chunks,
                        .initial_state = call.carried() ? call.initial->tensors[0] : at::Tensor(),
                        .segment = call.slice.segment},
                       query_scale());
    RecurrenceOutput result = {.o = has_steps ? AtLastSteps(out, form_.num_steps) : out,
                               .state = {}};
    if (call.want_state) result.state = {final_state};
    return result;
  }

  at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice&,
                  std::span<at::Tensor> state) const override {
    const HouseholderRow row = Row(inputs, /*starts=*/{});
    at::Tensor out;
    for (int64_t step = 0; step < form_.num_steps; ++step) {
      const auto at_step = [&](const at::Tensor& x) { return x.defined() ? x.select(1, step) : x; };
      out = ops::DeltaRuleStep({.q = at_step(row.q),
                                .k = at_step(row.k),
                                .v = at_step(row.v),
                                .log_decay = at_step(row.log_decay),
                                .beta = at_step(row.beta)},
                               query_scale(), state[0]);
    }
    return out;
  }

  RecurrenceCost CostPerToken(int64_t) const override {
    const auto steps = static_cast<double>(form_.num_steps);
    const auto keys = steps * static_cast<double>(heads_.num_q_heads * heads_.num_features),
               betas = steps * static_cast<double>(heads_.num_v_heads),
               state = steps * static_cast<double>(StateElements());
    RecurrenceCost cost = {.mixing_flops = 6 * state};  // read the old value, write, read
    if (beta_.declared()) cost.matrix_elements = model_dim_ * form_.num_steps * heads_.num_v_heads;
    // Normalised q and k, 1/norm of both, beta and its logit, and states.
    cost.activations = 2 * keys + betas;
    cost.keeps_q_and_k = form_.norm_by_sum;  // UnitNorm keeps what it returns.
    cost.fp32_activations = 2 * steps * static_cast<double>(heads_.num_q_heads) + betas +
                            state / TokensPerKeptDeltaState(/*is_cuda=*/false);
    if (decay_) {
      cost.matrix_elements += decay_->num_matrix_elements();
      cost.activations += static_cast<double>(decay_->num_activations());
      cost.fp32_activations += static_cast<double>(decay_->num_fp32_activations());
    }
    return cost;
  }

  // On a GPU, the kernels and the composed form keep their own states instead of those of the CPU.
  double GpuActivationBytesPerToken(int64_t bytes_per_element) const override {
    const auto steps = static_cast<double>(form_.num_steps),
               state = steps * static_cast<double>(StateElements());
    const double kept =
        kernels::cuda::SupportsDeltaRuleBackward(KernelSizes(/*bf16=*/bytes_per_element == 2))
            ? state / TokensPerKeptDeltaState(/*is_cuda=*/true)
            : steps * static_cast<double>(heads_.num_v_heads) *
                  ops::ComposedDeltaRuleActivations(heads_.num_features, heads_.head_dim_v,
                                                    decay_ && decay_->per_channel());
    return 4 * (kept - state / TokensPerKeptDeltaState(/*is_cuda=*/false));
  }

  // Returns the workspace of the backward, which needs more than the forward. The composed form has
  // no workspace.
  double WorkspaceBytes(const GpuBatch& batch) const override {
    kernels::DeltaRuleArgs args = KernelSizes(batch.bf16);
    if (batch.gpu.is_cuda) args.shared_memory_bytes = batch.gpu.shared_memory_bytes;
    if (!kernels::cuda::SupportsDeltaRuleBackward(args)) return 0;
    constexpr int64_t kChunk = kernels::DefaultChunkSize(/*is_cuda=*/true);
    const int64_t row = batch.seq_len * form_.num_steps;
    args.batch = args.num_sequences = static_cast<int>(batch.batch);
    args.seq_len = static_cast<int>(row);
    args.num_chunks = static_cast<int>(batch.batch * ((row + kChunk - 1) / kChunk));
    return static_cast<double>(kernels::cuda::DeltaRuleBackwardBytes(args));
  }

 private:
  int64_t StateElements() const {
    return heads_.num_v_heads * heads_.num_features * heads_.head_dim_v;
  }
  // Returns the kernels' arguments that the memory of a call depends on, except the number of
  // tokens.
  kernels::DeltaRuleArgs KernelSizes(bool bf16) const {
    using kernels::DeltaDecay;
    kernels::DeltaRuleArgs args;
    args.num_heads = static_cast<int>(heads_.num_q_heads);
    args.num_value_heads = static_cast<int>(heads_.num_v_heads);
    args.head_dim_k = static_cast<int>(heads_.num_features);
    args.head_dim_v = static_cast<int>(heads_.head_dim_v);
    if (decay_)
      args.decay = decay_->per_channel() ? DeltaDecay::kPerTokenChannel : DeltaDecay::kPerToken;
    args.q.dtype = bf16 ? DType::kBF16 : DType::kF32;
    return args;
  }
  double query_scale() const { return 1 / std::sqrt(static_cast<double>(heads_.num_features)); }

  // Returns the operands of the delta rule: of tokens, or of steps if a token has several.
  HouseholderRow Row(const RecurrenceInputs& inputs, const at::Tensor& starts) const {
    const ops::DeltaGatesOutput gates = Gates(inputs);
    HouseholderRow row = {.q = inputs.q.x,
                          .k = inputs.k.x,
                          .v = inputs.v,
                          .log_decay = gates.log_decay,
                          .beta = gates.beta};
    if (form_.num_steps > 1) row = ToSteps(row, form_.num_steps, starts);
    const ops::UnitNormPair unit = Normalise(row.q, row.k);
    row.q = unit.q, row.k = unit.k;
    return row;
  }

  // Returns queries and keys [B, T, H, K] with normalised heads.
  ops::UnitNormPair Normalise(const at::Tensor& q, const at::Tensor& k) const {
    if (!form_.norm_by_sum) return ops::UnitNorm({.q = q, .k = k}, kDeltaNormEps);
    const auto by_sum = [](const at::Tensor& x) {
      return x / x.abs().sum(-1, /*keepdim=*/true).clamp_min(kDeltaNormEps);
    };
    return {.q = by_sum(q), .k = by_sum(k)};
  }

  // Returns the log decay [B, T, HV], [B, T, HV, K] or undefined, and beta [B, T, HV] (of all
  // steps), all fp32 (fp64 for fp64 inputs).
  ops::DeltaGatesOutput Gates(const RecurrenceInputs& inputs) const {
    const ops::LinearPart b = beta_.declared() ? inputs.products.back() : ops::LinearPart();
    ops::DeltaGatesOutput out;
    if (decay_) {
      out = (*decay_)(inputs.products, b, form_.beta_scale);
    } else if (b.y.defined()) {
      out = ops::DeltaGates(
          {.x = {}, .bias = {}, .a_log = {}, .b = b.y, .x_gradient = {}, .b_gradient = b.gradient},
          {.beta_scale = form_.beta_scale});
    }
    const at::Tensor& v = inputs.v;
    if (!out.beta.defined())
      out.beta = at::full({v.size(0), v.size(1), v.size(2)}, form_.beta_scale,
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

namespace {

// n - 1 steps of zeros for each token of x [B, T, ...]: [B, T, n - 1, ...].
at::Tensor OtherSteps(const at::Tensor& x, int64_t num_steps) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin() + 2, num_steps - 1);
  return at::zeros(shape, x.options().requires_grad(false));
}

// [B, T, n heads, ...] -> [B, n T, heads, ...].
at::Tensor EachStep(const at::Tensor& x, int64_t num_steps) {
  return x.unflatten(2, {num_steps, x.size(2) / num_steps}).flatten(1, 2);
}

}  // namespace

HouseholderRow ToSteps(const HouseholderRow& tokens, int64_t num_steps, const at::Tensor& starts) {
  const at::Tensor& q = tokens.q;
  HouseholderRow steps = {.q = at::cat({OtherSteps(q, num_steps), q.unsqueeze(2)}, 2).flatten(1, 2),
                          .k = EachStep(tokens.k, num_steps),
                          .v = EachStep(tokens.v, num_steps),
                          .log_decay = {},
                          .beta = EachStep(tokens.beta, num_steps)};
  at::Tensor decay = tokens.log_decay;
  if (!decay.defined() && !starts.defined()) return steps;
  if (!decay.defined()) decay = at::zeros_like(tokens.beta.narrow(2, 0, steps.beta.size(2)));
  if (starts.defined())
    decay = decay.masked_fill(starts.unsqueeze(2), -std::numeric_limits<double>::infinity());
  steps.log_decay = at::cat({decay.unsqueeze(2), OtherSteps(decay, num_steps)}, 2).flatten(1, 2);
  return steps;
}

at::Tensor AtLastSteps(const at::Tensor& steps, int64_t num_steps) {
  return steps.unflatten(1, {steps.size(1) / num_steps, num_steps}).select(2, num_steps - 1);
}

}  // namespace halflife::model
