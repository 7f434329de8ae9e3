// Constant decays above 1 with the normaliser, over any length, using the kernels for decays up to
// 1.
//
// Let mu = max(0, largest log_decay of the head), S_t = exp(l_t) S^_t, z_t = exp(l_t) z^_t and l_t
// = l_0 + mu t. Then
//
//   S_t = exp(log_decay) S_{t-1} + c_t k_t^T v_t   becomes
//   S^_t = exp(log_decay - mu) S^_{t-1} + exp(-l_t) c_t k_t^T v_t.
//
// The decay is now at most 1, and the scale of new keys shrinks instead of the weight of old keys
// growing. Numerator and denominator of a row contain the same factor exp(l_t), so the output is
// the same as with S and does not depend on mu. Gradients with mu and l held constant are therefore
// exact. norm_eps is added to the denominator read from z^, in which the first key has a weight of
// order one. If exp(-l_t) underflows to 0 in fp32, the key weighs less than 1e-38 of the first key
// in the growing channel. Before the first key that key_scale does not mask, there is no state and
// l is 0, also at a document's start; l counts from that key.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/rows/decay_growth_args.h"
#include "ops/decay_attention/decay_attention_internal.h"
#include "ops/sequence/state_exchange.h"
#include "ops/torch/autograd.h"

namespace halflife::ops {
namespace {

void CheckConfig(const DecayAttentionConfig& config, bool constant, const at::Tensor& log_decay) {
  HL_CHECK_AS(ExitCode::kUsage, config.norm == kernels::NormKind::kSumOfKeys,
              "decay attention: allow_growth without the normalizer, so the output would grow with "
              "the state. Set norm = kSumOfKeys.");
  HL_CHECK_AS(ExitCode::kUsage, constant, "decay attention: allow_growth with log_decay ",
              Describe(log_decay), ". Use a constant log_decay, [Hd] or [Hd, K], or none.");
}

// mu for each of the H heads, [H] fp64; 0 without a decay.
at::Tensor GrowthOfHeads(const at::Tensor& log_decay, int64_t num_heads, at::Device device) {
  if (!log_decay.defined())
    return at::zeros({num_heads}, at::TensorOptions(device).dtype(at::kDouble));
  at::Tensor mu = log_decay.detach().to(at::kDouble);
  if (mu.dim() == 2) mu = mu.amax(1);
  return binding::OfHeads(mu.clamp_min(0), num_heads);
}
// log_decay - mu, in the dtype that the kernels read.
at::Tensor Lowered(const at::Tensor& log_decay, at::ScalarType compute) {
  if (!log_decay.defined()) return {};
  const at::Tensor x = log_decay.to(compute);
  const at::Tensor largest = x.dim() == 2 ? x.detach().amax(1, true) : x.detach();
  return x - largest.clamp_min(0);
}
at::Tensor Scaled(const at::Tensor& key_scale, const at::Tensor& factor) {
  return key_scale.defined() ? key_scale.to(factor.scalar_type()) * factor : factor;
}

void CheckLogScale(const at::Tensor& q, const at::Tensor& log_scale, at::IntArrayRef want,
                   bool has_state) {
  if (!log_scale.defined()) return;
  HL_CHECK(FitsWith(q, log_scale, want) && log_scale.scalar_type() == at::kDouble && has_state,
           "decay attention: log_scale ", Describe(log_scale),
           has_state ? " does not fit states " : " has no states ", want, " on ", q.device().str(),
           ". Use fp64, with the state that it scales.");
}

// For each token, the number of marked tokens from the start of its run up to and including it.
at::Tensor CountWithinRun(const at::Tensor& marked, const at::Tensor& begin) {
  const at::Tensor sums = marked.to(at::kLong).cumsum(1);             // [B, T, H]
  const at::Tensor before = at::constant_pad_nd(sums, {0, 0, 1, 0});  // [B, 1 + T, H]
  return sums - before.gather(1, begin.expand_as(sums));
}

constexpr double kNothing = -std::numeric_limits<double>::infinity();  // log of a weight of 0

// Returns M (log_key_scale) in fp64; -inf for keys that key_scale masks.
at::Tensor LogScaleOfKeys(const at::Tensor& log_key_scale, const at::Tensor& key_scale) {
  const at::Tensor scale = log_key_scale.detach().to(at::kDouble);
  return key_scale.defined() ? scale.masked_fill(key_scale.detach() == 0, kNothing) : scale;
}
// exp(M - l). It is at most 1, except for masked keys, for which l does not bound M; those are
// clamped.
at::Tensor KeyFactor(const at::Tensor& log_key_scale, const at::Tensor& log_scale,
                     at::ScalarType compute) {
  if (!log_key_scale.defined()) return (-log_scale).exp().to(compute);
  return (log_key_scale.detach().to(at::kDouble) - log_scale).clamp_max(0).exp().to(compute);
}

// log_decay ([Hd], [Hd, K] or undefined) minus the increase of l at each token. The result is per
// token.
at::Tensor LoweredBySteps(const at::Tensor& log_decay, const at::Tensor& steps,
                          at::ScalarType compute) {
  const at::Tensor lowered = -steps.to(compute);  // [..., H]
  if (!log_decay.defined()) return lowered;
  const at::Tensor decay = binding::OfHeads(log_decay.to(compute), steps.size(-1));
  return decay.dim() == 1 ? lowered + decay : lowered.unsqueeze(-1) + decay;
}

// For each token, the largest x [B, T, H] from the start of its run up to and including it.
at::Tensor LargestWithinRun(const at::Tensor& x, const at::Tensor& begin) {
  const int64_t seq_len = x.size(1);
  const at::Tensor before =  // number of earlier tokens of the run, [B, T, 1]
      (at::arange(seq_len, begin.options()).unsqueeze(0) - begin).unsqueeze(2);
  at::Tensor largest = x;  // over the last `reach` tokens
  for (int64_t reach = 1; reach < seq_len; reach *= 2) {
    const at::Tensor earlier =
        at::cat({largest.narrow(1, 0, reach), largest.narrow(1, 0, seq_len - reach)}, 1);
    largest = at::where(before >= reach, at::maximum(largest, earlier), largest);
  }
  return largest;
}

// Returns where sequences start with a non-zero state, [sequences, H] bool.
at::Tensor HoldsState(const DecayState& initial, const at::Tensor& log_scale) {
  at::Tensor holds = at::zeros_like(log_scale, log_scale.options().dtype(at::kBool));
  if (initial.kv.defined()) holds = (initial.kv.detach() != 0).flatten(2).any(2);
  return initial.norm.defined() ? holds.logical_or((initial.norm.detach() != 0).any(2)) : holds;
}

// Returns the number of times that l has grown by mu at each token, [B, T, H]: once per token in a
// run that continues from a state, and otherwise once per token after the first key.
at::Tensor StepsOfScale(const TokenRuns& runs, const at::Tensor& carried,
                        const at::Tensor& key_scale) {
  const at::Tensor begin = runs.begin.unsqueeze(2);
  at::Tensor count;
  if (key_scale.defined()) {
    const at::Tensor has_key = carried.logical_or(key_scale.detach() != 0);
    count = CountWithinRun(CountWithinRun(has_key, begin) > 0, begin);
  } else {
    count = at::arange(begin.size(1), begin.options()).view({1, -1, 1}) - begin + 1;
  }
  return (count - 1 + carried.to(at::kLong)).clamp_min(0);
}

// l at each token, and its increase since the previous token, [B, T, H] fp64.
struct LogScale {
  at::Tensor at_token;
  at::Tensor step;  // only with log_key_scale
};

// `before`: l of the state from which the token's run continues, valid where `carried`.
LogScale LogScaleOf(const DecayAttentionInputs& inputs, const TokenRuns& runs,
                    const at::Tensor& before, const at::Tensor& carried, const at::Tensor& mu) {
  if (!inputs.log_key_scale.defined())
    return {before + StepsOfScale(runs, carried, inputs.key_scale) * mu, {}};
  const at::Tensor keys = LogScaleOfKeys(inputs.log_key_scale, inputs.key_scale);
  const at::Tensor begin = runs.begin.unsqueeze(2);
  const at::Tensor place = at::arange(keys.size(1), begin.options()).view({1, -1, 1}) - begin;
  const at::Tensor grown = (place + 1) * mu;  // growth of the state from before the run
  const at::Tensor past = before.masked_fill(carried.logical_not(), kNothing);
  const at::Tensor largest = at::maximum(LargestWithinRun(keys - grown, runs.begin), past) + grown;
  LogScale scale = {.at_token = ScaleOrZero(largest), .step = {}};
  const int64_t num_later = std::max<int64_t>(keys.size(1) - 1, 0);
  const at::Tensor earlier = at::cat({scale.at_token.narrow(1, 0, keys.size(1) - num_later),
                                      scale.at_token.narrow(1, 0, num_later)},
                                     1);
  // Before the first key, any step is correct: there is no state to lower.
  scale.step = (scale.at_token - at::where(place == 0, before, earlier)).clamp_min(0).maximum(mu);
  return scale;
}

// Returns true if the inputs are those of a plain training step, without key scales and without an
// initial state. A fused kernel handles this case.
bool StartsWithoutScales(const DecayAttentionInputs& inputs) {
  return IsFused(inputs.q) && !inputs.key_scale.defined() && !inputs.log_key_scale.defined() &&
         !inputs.initial_state.kv.defined() && !inputs.initial_state.norm.defined();
}

// The fused form for a plain training step: lowers the decays to at most 1 and computes the factors
// of keys that compensate for it, in one pass. For whole sequences without an initial state and
// without key scales. Supports fp32 decays of up to 512 heads on devices with kernels.
struct LoweredGrowth {
  at::Tensor log_decay;        // shape of the input; differentiable
  at::Tensor key_factor;       // [B, T, H] fp32
  at::Tensor final_log_scale;  // [sequences, H] fp64
};

void LowerGrowthOnCpu(const kernels::DecayGrowthArgs& args) {
  std::vector<double> growth(args.heads);
  std::vector<float> factors(args.seq_len * args.heads);
  kernels::cpu::DecayGrowth(args, growth.data(), factors.data());
}

struct LowerGrowthOp {
  struct Inputs {
    at::Tensor log_decay;
  };
  struct Outputs {
    at::Tensor lowered, key_factor, final_log_scale;
  };
  struct Saved {};
};

LowerGrowthOp::Outputs RunLowerGrowth(const at::Tensor& log_decay, int64_t num_heads,
                                      const SequenceChunks& chunks) {
  const TokenRuns& runs = chunks.runs();
  const at::Tensor lowered = at::empty_like(log_decay),
                   factor =
                       at::empty({chunks.batch, chunks.seq_len, num_heads}, log_decay.options()),
                   final_scale = at::empty({chunks.num_sequences(), num_heads},
                                           log_decay.options().dtype(at::kDouble));
  const kernels::DecayGrowthArgs args = {.log_decay = Elements<float>(log_decay),
                                         .begin = Elements<int64_t>(runs.begin),
                                         .last = Elements<int64_t>(runs.last),
                                         .lowered = MutableElements<float>(lowered),
                                         .key_factor = MutableElements<float>(factor),
                                         .final_log_scale = MutableElements<double>(final_scale),
                                         .batch = chunks.batch,
                                         .seq_len = chunks.seq_len,
                                         .heads = num_heads,
                                         .decay_heads = log_decay.size(0),
                                         .width = log_decay.numel() / log_decay.size(0),
                                         .sequences = chunks.num_sequences()};
  RunOn(
      log_decay, [&] { LowerGrowthOnCpu(args); },
      [&](auto stream) { kernels::cuda::DecayGrowth(args, stream); });
  return {.lowered = lowered, .key_factor = factor, .final_log_scale = final_scale};
}

// log_decay is [Hd] or [Hd, K], and Hd divides H.
bool CanLowerGrowth(const at::Tensor& log_decay, int64_t num_heads) {
  return log_decay.defined() && (log_decay.dim() == 1 || log_decay.dim() == 2) &&
         log_decay.numel() > 0 && num_heads <= kernels::kGrowthMaxHeads &&
         num_heads % log_decay.size(0) == 0 && log_decay.scalar_type() == at::kFloat &&
         IsFused(log_decay);
}

LoweredGrowth LowerGrowth(const at::Tensor& log_decay, int64_t num_heads,
                          const SequenceChunks& chunks) {
  HL_CHECK(CanLowerGrowth(log_decay, num_heads) && chunks.device == log_decay.device(),
           "LowerGrowth got log_decay ", Describe(log_decay), " for ", num_heads,
           " heads, and chunks on ", chunks.device.str(),
           ". Use [Hd] or [Hd, K] fp32 on the same device, with Hd a divisor of H.");
  const auto backward = [](const BackwardOf<LowerGrowthOp>& call) -> LowerGrowthOp::Inputs {
    return {.log_decay = call.grads.lowered};
  };
  const auto forward = [&]() -> ForwardOf<LowerGrowthOp> {
    return {.outputs = RunLowerGrowth(log_decay.contiguous(), num_heads, chunks),
            .saved = {},
            .backward = backward,
            .num_constant = 2};
  };
  const LowerGrowthOp::Outputs out = Apply<LowerGrowthOp>({.name = "LowerGrowth",
                                                           .inputs = {.log_decay = log_decay},
                                                           .undefined_grads = true,
                                                           .forward = forward});
  return {.log_decay = out.lowered,
          .key_factor = out.key_factor,
          .final_log_scale = out.final_log_scale};
}

}  // namespace

ScaledInputs ScaleGrowth(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  const at::Tensor& g = inputs.log_decay;
  CheckConfig(config, !g.defined() || g.dim() <= 2, g);
  ScaledInputs scaled = {.inputs = inputs, .key_factor = {}, .final_log_scale = {}};
  const int64_t batch = inputs.q.size(0), seq_len = inputs.q.size(1);
  if (inputs.chunks == nullptr)
    scaled.inputs.chunks =
        MakeSequenceChunks({.batch = batch, .seq_len = seq_len}, inputs.q.device());
  const SequenceChunks& chunks = *scaled.inputs.chunks;
  const int64_t sequences = chunks.num_sequences();
  const int64_t heads = binding::NumHeads(inputs);
  const DecayState& initial = inputs.initial_state;
  binding::CheckStateShapes("initial_state", initial, inputs.q,
                            {sequences, heads, inputs.q.size(3), inputs.v.size(3)});
  CheckLogScale(inputs.q, initial.log_scale, {sequences, heads}, initial.kv.defined());
  if (StartsWithoutScales(inputs) && CanLowerGrowth(g, heads)) {
    const LoweredGrowth lowered = LowerGrowth(g, heads, chunks);
    scaled.inputs.log_decay = lowered.log_decay;
    scaled.key_factor = scaled.inputs.key_scale = lowered.key_factor;
    scaled.final_log_scale = lowered.final_log_scale;
    return scaled;
  }

  const at::Tensor mu = GrowthOfHeads(g, heads, inputs.q.device());
  const at::Tensor before = initial.log_scale.defined()
                                ? initial.log_scale.detach()
                                : at::zeros({sequences, heads}, mu.options());
  const TokenRuns& runs = chunks.runs();
  // Expands [sequences, H] to the tokens of each run, [B, T, H]; zero in documents that start
  // inside a row.
  const auto of_runs = [&](const at::Tensor& x) {
    return at::cat({x, at::zeros({1, heads}, x.options())})
        .index_select(0, runs.sequence.flatten())
        .view({batch, seq_len, heads});
  };
  const at::Tensor holds = HoldsState(initial, before);
  const LogScale scale = LogScaleOf(inputs, runs, of_runs(before * holds), of_runs(holds), mu);
  const at::ScalarType compute = ComputeType(inputs.q);
  scaled.key_factor = KeyFactor(inputs.log_key_scale, scale.at_token, compute);
  scaled.inputs.key_scale = Scaled(inputs.key_scale, scaled.key_factor);
  scaled.inputs.log_decay =
      scale.step.defined() ? LoweredBySteps(g, scale.step, compute) : Lowered(g, compute);
  scaled.inputs.log_key_scale.reset();
  scaled.inputs.initial_state.log_scale.reset();
  scaled.final_log_scale =
      at::cat({scale.at_token.flatten(0, 1), before}).index_select(0, runs.last);
  return scaled;
}

DecayAttentionStepInputs ScaleGrowthOfStep(const DecayAttentionStepInputs& inputs,
                                           const DecayAttentionConfig& config, DecayState& state) {
  const at::Tensor& g = inputs.log_decay;
  CheckConfig(config, !g.defined() || inputs.constant_decay, g);
  const int64_t batch = inputs.q.size(0), heads = state.kv.size(1);
  HL_CHECK(state.log_scale.defined(),
           "decay attention step: growth without a log_scale. Use fp64 [", batch, ", ", heads,
           "], zeros for an empty state.");
  CheckLogScale(inputs.q, state.log_scale, {batch, heads}, true);
  DecayAttentionStepInputs scaled = inputs;
  const at::ScalarType compute = ComputeType(inputs.q);
  const at::Tensor mu = GrowthOfHeads(g, heads, inputs.q.device());
  const at::Tensor holds = (state.norm != 0).any(2);  // the first key is not scaled
  if (inputs.log_key_scale.defined()) {
    const at::Tensor keys = LogScaleOfKeys(inputs.log_key_scale, inputs.key_scale);
    const at::Tensor past = (state.log_scale + mu).masked_fill(holds.logical_not(), kNothing);
    const at::Tensor after = ScaleOrZero(at::maximum(keys, past));
    scaled.log_decay =
        LoweredBySteps(g, (after - state.log_scale).clamp_min(0).maximum(mu), compute);
    scaled.constant_decay = false;
    scaled.log_key_scale.reset();
    state.log_scale.copy_(after);
  } else {
    state.log_scale.add_(mu).mul_(holds);
    scaled.log_decay = Lowered(g, compute);
  }
  scaled.key_scale =
      Scaled(inputs.key_scale, KeyFactor(inputs.log_key_scale, state.log_scale, compute));
  return scaled;
}

}  // namespace halflife::ops
