#include "model/mixers/linear/decay_recurrence.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "model/projections.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/rows/rotary.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// Backward keeps one fp32 state per 256 tokens on the CPU. On a GPU, that is the size of two bf16
// terms per 256 tokens, or of one term per 128 tokens; see GpuActivationBytesPerToken.
constexpr double kTokensPerKeptState = 256;

class DecayRecurrence : public Recurrence {
 public:
  DecayRecurrence(const PartContext& context, const RecurrenceHeads& heads, const DecayForm& form);

  MixerTraits traits() const override;
  std::vector<at::Tensor> Weights() const override;
  RecurrenceOutput Scan(const RecurrenceInputs& inputs, const MixerCall& call) const override;
  at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice& token,
                  std::span<at::Tensor> state) const override;
  RecurrenceCost CostPerToken(int64_t seq_len) const override;
  double GpuActivationBytesPerToken(int64_t bytes_per_element) const override;
  double WorkspaceBytes(const GpuBatch& batch) const override;

 private:
  // The inputs of decay attention. Names and shapes as in ops::DecayAttentionInputs.
  struct Operands {
    at::Tensor q, k, v, log_decay, log_key_scale, norm_q, norm_k;
    std::optional<ops::LowRankDecay> low_rank = {};  // of a step, in place of log_decay
    ops::ColumnSlice q_gradient, k_gradient;
  };
  Operands MakeOperands(const RecurrenceInputs& inputs, const SequenceSlice& slice,
                        bool is_step) const;
  void Rotate(const SequenceSlice& slice, Operands& operands) const;
  void ScaleQueries(const SequenceSlice& slice, Operands& operands) const;
  // Divides the queries by their ScoreSums. `keys` [B, N, Hk, F] are those of all tokens so far,
  // including the own ones.
  void NormScores(const at::Tensor& keys, const at::Tensor& positions, Operands& operands) const;
  ops::DecayAttentionConfig KernelConfig() const;
  kernels::DecayKind KernelDecay() const;

  double query_scale() const;
  bool rotates() const { return form_.rope_theta > 0 || !form_.rotary_frequencies.empty(); }
  bool normalised() const { return form_.normaliser != Normaliser::kNone; }
  bool log_scaled() const { return form_.allow_growth || heads_.keys_have_log_scale; }
  // The state starts with the tensors of decay attention. The keys that score_norm reads follow.
  size_t num_decay_tensors() const { return 1 + normalised() + log_scaled(); }
  ops::DecayState ToDecayState(std::span<const at::Tensor> state) const;
  void Keep(const ops::DecayState& after, std::span<at::Tensor> state) const;

  RecurrenceHeads heads_;
  DecayForm form_;
  std::unique_ptr<LogDecay> decay_;  // null: none
};

DecayRecurrence::DecayRecurrence(const PartContext& context, const RecurrenceHeads& heads,
                                 const DecayForm& form)
    : heads_(heads), form_(form) {
  HL_CHECK_AS(
      ExitCode::kUsage,
      heads.num_features <= kernels::kMaxHeadDimK && heads.head_dim_v <= kernels::kMaxHeadDimV,
      "a head has ", heads.num_features, " features and ", heads.head_dim_v,
      " values; decay attention takes at most ", kernels::kMaxHeadDimK, " and ",
      kernels::kMaxHeadDimV, ". Use more heads, or a narrower feature map.");
  if (form.make_decay) decay_ = form.make_decay(context);
  HL_CHECK(normalised() || !log_scaled(), "features with a log scale, or a decay that may grow, ",
           "without a normaliser");
  HL_CHECK(!form_.score_norm || (decay_ != nullptr && decay_->constant()),
           "score_norm without a constant decay");
}

MixerTraits DecayRecurrence::traits() const {
  const int log_scale = log_scaled() ? 2 : -1;
  MixerTraits traits;
  if (decay_ != nullptr) traits.max_tokens = decay_->max_tokens();
  traits.reads_position_ids = rotates();
  traits.state = {{.name = "kv",
                   .shape = {heads_.num_heads, heads_.num_features, heads_.head_dim_v},
                   .log_scale = log_scale}};
  if (normalised())
    traits.state.push_back({.name = "key_sum",
                            .shape = {heads_.num_heads, heads_.num_features},
                            .log_scale = log_scale});
  if (log_scaled())
    traits.state.push_back(
        {.name = "log_scale", .shape = {heads_.num_heads}, .exchange = StateExchange::kLogScale});
  if (form_.score_norm) {
    traits.causal_in_bits = false;  // each sum includes later keys, as zeros
    traits.splits_rows = false;
    traits.state.push_back({.name = "keys",
                            .shape = {StateTensor::kGrows, heads_.num_k_heads, heads_.num_features},
                            .compute_dtype = true,
                            .exchange = StateExchange::kGather});
  }
  return traits;
}

std::vector<at::Tensor> DecayRecurrence::Weights() const {
  return decay_ == nullptr ? std::vector<at::Tensor>() : decay_->Weights();
}

RecurrenceOutput DecayRecurrence::Scan(const RecurrenceInputs& inputs,
                                       const MixerCall& call) const {
  Operands operands = MakeOperands(inputs, call.slice, /*is_step=*/false);
  RecurrenceOutput result;
  if (call.want_state) result.state.resize(num_decay_tensors());
  if (form_.score_norm) {
    const at::Tensor keys =
        call.num_past == 0
            ? operands.k
            : at::cat({call.initial->tensors[num_decay_tensors()].narrow(1, 0, call.num_past),
                       operands.k},
                      1);
    NormScores(keys, call.slice.positions, operands);
    operands.q_gradient = {};  // the division reads the queries
    if (call.want_state) result.state.push_back(keys);
  }
  const auto [o, after] = ops::DecayAttention(
      {.q = operands.q,
       .k = operands.k,
       .v = operands.v,
       .log_decay = operands.log_decay,
       .log_key_scale = operands.log_key_scale,
       .norm_q = operands.norm_q,
       .norm_k = operands.norm_k,
       .chunks = call.slice.chunks,
       .initial_state = call.carried() ? ToDecayState(call.initial->tensors) : ops::DecayState(),
       .segment = call.slice.segment,
       .q_gradient = operands.q_gradient,
       .k_gradient = operands.k_gradient,
       .v_gradient = inputs.v_gradient},
      KernelConfig());
  result.o = o;
  if (call.want_state) Keep(after, result.state);
  return result;
}

at::Tensor DecayRecurrence::Step(const RecurrenceInputs& inputs, const SequenceSlice& token,
                                 std::span<at::Tensor> state) const {
  Operands operands = MakeOperands(inputs, token, /*is_step=*/true);
  if (form_.score_norm) {
    at::Tensor& keys = state[num_decay_tensors()];
    AppendToken(operands.k, token.begin, keys);
    NormScores(keys.narrow(1, 0, token.begin + 1), token.positions, operands);
  }
  const auto at_token = [](const at::Tensor& y) { return y.defined() ? y.squeeze(1) : y; };
  const bool constant = decay_ != nullptr && decay_->constant();
  ops::DecayState memory = ToDecayState(state);
  const at::Tensor o = ops::DecayAttentionStep(
      {.q = at_token(operands.q),
       .k = at_token(operands.k),
       .v = at_token(operands.v),
       .log_decay = constant ? operands.log_decay : at_token(operands.log_decay),
       .constant_decay = constant,
       .low_rank = operands.low_rank.value_or(ops::LowRankDecay()),
       .log_key_scale = at_token(operands.log_key_scale),
       .norm_q = at_token(operands.norm_q),
       .norm_k = at_token(operands.norm_k)},
      KernelConfig(), memory);
  Keep(memory, state);
  return o;
}

DecayRecurrence::Operands DecayRecurrence::MakeOperands(const RecurrenceInputs& inputs,
                                                        const SequenceSlice& slice,
                                                        bool is_step) const {
  Operands operands = {.q = inputs.q.x,
                       .k = inputs.k.x,
                       .v = inputs.v,
                       .q_gradient = inputs.q.gradient,
                       .k_gradient = inputs.k.gradient};
  if (form_.normaliser == Normaliser::kUnrotatedKeys)
    operands.norm_q = operands.q, operands.norm_k = operands.k;
  if (rotates()) Rotate(slice, operands);
  if (form_.query_scale.of) ScaleQueries(slice, operands);
  if (decay_ != nullptr) {
    const QueriesAndKeys placed = decay_->AtPositions({.q = operands.q, .k = operands.k}, slice);
    operands.q = placed.q, operands.k = placed.k;
    if (is_step) operands.low_rank = decay_->ToLowRank(inputs.products);
    if (!operands.low_rank) operands.log_decay = (*decay_)(inputs.x, inputs.products);
  }
  // The buffers belong to the first consumers of q and k.
  if (!operands.q.is_same(inputs.q.x)) operands.q_gradient = {};
  if (!operands.k.is_same(inputs.k.x)) operands.k_gradient = {};
  if (inputs.k.log_scale.defined())  // one per query head
    operands.log_key_scale =
        RepeatHeads(inputs.k.log_scale.unsqueeze(3), heads_.num_heads).squeeze(3);
  return operands;
}

void DecayRecurrence::Rotate(const SequenceSlice& slice, Operands& operands) const {
  const at::ScalarType dtype = ops::ComputeType(operands.q);
  const at::Tensor& positions = slice.position_ids();
  const auto table =
      form_.rotary_frequencies.empty()
          ? slice.rotary->Of(positions, heads_.num_features, form_.rope_theta, dtype)
          : slice.rotary->Of(positions, form_.rotary_frequencies, /*factor=*/1, dtype);
  const ops::RotatedPair rotated = ops::ApplyRotary(
      operands.q, operands.k, table, {.q = operands.q_gradient, .k = operands.k_gradient});
  operands.q = rotated.q, operands.k = rotated.k;
}

void DecayRecurrence::ScaleQueries(const SequenceSlice& slice, Operands& operands) const {
  const at::ScalarType compute = ops::ComputeType(operands.q);
  PositionTensors::Key key = {"query scale", form_.query_scale.key};
  key.values.push_back(static_cast<double>(compute));
  const at::Tensor scale = slice.of_positions->Of(slice.positions, key, [&] {
    return form_.query_scale.of(slice.positions).unsqueeze(-1).to(compute);
  });
  operands.q = (operands.q * scale).to(operands.q.scalar_type());
}

void DecayRecurrence::NormScores(const at::Tensor& keys, const at::Tensor& positions,
                                 Operands& operands) const {
  constexpr double kMin = 1, kMax = 5e4;  // as in torchscale
  const at::Tensor sums = ScoreSums({.q = operands.q,
                                     .k = keys,
                                     .positions = positions,
                                     .log_decay = operands.log_decay,
                                     .scale = query_scale()});
  operands.q = (operands.q / sums.clamp(kMin, kMax).unsqueeze(3)).to(operands.q.scalar_type());
}

double DecayRecurrence::query_scale() const {
  return form_.scale_queries ? 1 / std::sqrt(static_cast<double>(heads_.num_features)) : 1;
}

ops::DecayAttentionConfig DecayRecurrence::KernelConfig() const {
  return {.scale = query_scale(),
          .norm = normalised() ? kernels::NormKind::kSumOfKeys : kernels::NormKind::kNone,
          .norm_eps = form_.normaliser_eps,
          .allow_growth = log_scaled()};
}

ops::DecayState DecayRecurrence::ToDecayState(std::span<const at::Tensor> state) const {
  ops::DecayState memory = {.kv = state[0]};
  if (normalised()) memory.norm = state[1];
  if (log_scaled()) memory.log_scale = state[2].to(at::kDouble);
  return memory;
}

void DecayRecurrence::Keep(const ops::DecayState& after, std::span<at::Tensor> state) const {
  state[0] = after.kv;
  if (normalised()) state[1] = after.norm;
  if (log_scaled()) state[2] = after.log_scale.to(after.kv.scalar_type());
}

RecurrenceCost DecayRecurrence::CostPerToken(int64_t seq_len) const {
  const int64_t features = heads_.num_heads * heads_.num_features;
  const int64_t columns = heads_.head_dim_v + normalised();
  // ScoreSums multiply each query with all earlier keys, (seq_len + 1) / 2 on average.
  const double scores = form_.score_norm ? static_cast<double>(features * (seq_len + 1)) : 0;
  RecurrenceCost cost = {.mixing_flops = 4 * static_cast<double>(features * columns) + scores};
  if (decay_ != nullptr) {
    cost.matrix_elements = decay_->num_matrix_elements();
    cost.activations = static_cast<double>(decay_->num_activations());
    cost.fp32_activations = static_cast<double>(decay_->num_fp32_activations());
  }
  // States and denominators.
  cost.fp32_activations += static_cast<double>(features * heads_.head_dim_v) / kTokensPerKeptState +
                           static_cast<double>(heads_.num_heads * normalised());
  return cost;
}

// With decays per channel, a GPU keeps a state per 128 tokens. It has two bf16 terms for fp32
// operands and with the kernels' normaliser, and is then twice what CostPerToken counts.
double DecayRecurrence::GpuActivationBytesPerToken(int64_t bytes_per_element) const {
  const bool two_terms = bytes_per_element > 2 || normalised();
  if (!kernels::IsPerChannel(KernelDecay()) || !two_terms) return 0;
  const int64_t state = heads_.num_heads * heads_.num_features * heads_.head_dim_v;
  return 4 * static_cast<double>(state) / kTokensPerKeptState;
}

kernels::DecayKind DecayRecurrence::KernelDecay() const {
  using kernels::DecayKind;
  // The changes of the keys' log scale are part of the decay, which then differs per token.
  const bool per_token = heads_.keys_have_log_scale || (decay_ != nullptr && !decay_->constant());
  const bool per_channel = decay_ != nullptr && decay_->per_channel();
  if (per_token) return per_channel ? DecayKind::kPerTokenChannel : DecayKind::kPerToken;
  if (decay_ == nullptr) return DecayKind::kNone;
  return per_channel ? DecayKind::kPerHeadChannel : DecayKind::kPerHead;
}

double DecayRecurrence::WorkspaceBytes(const GpuBatch& batch) const {
  // With kUnrotatedKeys, the numerator and the denominator are two fp32 scans without a normaliser.
  const bool own_denominator = form_.normaliser == Normaliser::kUnrotatedKeys;
  kernels::DecayAttentionArgs args;
  args.batch = args.num_sequences = static_cast<int>(batch.batch);
  args.seq_len = static_cast<int>(batch.seq_len);
  args.num_heads = args.num_q_heads = static_cast<int>(heads_.num_heads);
  args.num_k_heads = args.num_v_heads = static_cast<int>(heads_.num_k_heads);
  args.decay_kind = KernelDecay();
  const bool of_keys = decay_ != nullptr && !decay_->constant() && !heads_.keys_have_log_scale;
  args.num_decay_heads = of_keys ? args.num_k_heads : args.num_heads;
  args.head_dim_k = static_cast<int>(heads_.num_features);
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

}  // namespace

RecurrenceFactory MakeDecayRecurrence(DecayForm form) {
  return [form = std::move(form)](const PartContext& context, const RecurrenceHeads& heads) {
    return std::make_unique<DecayRecurrence>(context, heads, form);
  };
}

namespace {

constexpr int64_t kBlock = 128;  // number of queries whose scores are in memory at a time

}  // namespace

at::Tensor ScoreSums(const ScoreRows& rows) {
  const at::NoGradGuard no_grad;
  const at::ScalarType compute = ops::ComputeType(rows.q);
  const int64_t num_queries = rows.q.size(1), num_keys = rows.k.size(1);
  const at::Tensor k =  // [B, H, K, N]
      RepeatHeads(rows.k, rows.q.size(2)).to(compute).permute({0, 2, 3, 1});
  const at::Tensor q = rows.q.to(compute).transpose(1, 2) * rows.scale;  // [B, H, T, K]
  const at::Tensor key = at::arange(num_keys, rows.positions.options());
  const at::Tensor log_decay = rows.log_decay.to(compute).view({-1, 1, 1});
  std::vector<at::Tensor> sums = {q.narrow(2, 0, 0).sum(3)};
  for (int64_t begin = 0; begin < num_queries; begin += kBlock) {
    const int64_t count = std::min(kBlock, num_queries - begin);
    const at::Tensor place = at::arange(count, key.options()) + (num_keys - num_queries + begin);
    const at::Tensor gap = place.unsqueeze(1) - key;  // [n, N]
    const at::Tensor seen = at::logical_and(
        gap >= 0, gap <= rows.positions.narrow(1, begin, count).unsqueeze(2));   // [B, n, N]
    const at::Tensor decay = at::exp(log_decay * gap.clamp_min(0).to(compute));  // [H, n, N]
    const at::Tensor scores = at::matmul(q.narrow(2, begin, count), k).abs() * decay;
    // Filled rather than multiplied by 0, which would keep a NaN of a key that is not visible.
    sums.push_back(scores.masked_fill(seen.logical_not().unsqueeze(1), 0).sum(3));
  }
  return at::cat(sums, 2).transpose(1, 2);
}

}  // namespace halflife::model
