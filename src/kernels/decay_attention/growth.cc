#include "kernels/decay_attention/growth.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/decay_attention/binding.h"

namespace halflife::kernels {
namespace {

void CheckConfig(const DecayAttentionConfig& config, bool constant, const at::Tensor& log_decay) {
  HL_CHECK_AS(ExitCode::kUsage, config.norm == NormKind::kSumOfKeys,
              "decay attention: allow_growth without the normaliser, whose output would grow with "
              "the state; norm = kSumOfKeys would work");
  HL_CHECK_AS(ExitCode::kUsage, constant, "decay attention: allow_growth with log_decay ",
              Describe(log_decay), "; a constant one, [Hd] or [Hd, K], would work");
}

// mu of each of H heads, [H] fp64.
at::Tensor GrowthOfHeads(const at::Tensor& log_decay, int64_t num_heads) {
  at::Tensor mu = log_decay.detach().to(at::kDouble);
  if (mu.dim() == 2) mu = mu.amax(1);
  const at::Tensor head = at::arange(num_heads, mu.options().dtype(at::kLong));
  return mu.clamp_min(0).index_select(0, (head * mu.size(0)).floor_divide(num_heads));
}
// log_decay - mu, in the type that the kernels read.
at::Tensor Lowered(const at::Tensor& log_decay, at::ScalarType compute) {
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
  HL_CHECK(FitsBeside(q, log_scale, want) && log_scale.scalar_type() == at::kDouble && has_state,
           "decay attention: log_scale ", Describe(log_scale),
           has_state ? " of states " : " without states ", want, " on ", q.device().str(),
           "; fp64 beside the state that it scales would work");
}

// How many of the tokens from the run's begin to each are marked.
at::Tensor CountWithinRun(const at::Tensor& marked, const at::Tensor& begin) {
  const at::Tensor sums = marked.to(at::kLong).cumsum(1);             // [B, T, H]
  const at::Tensor before = at::constant_pad_nd(sums, {0, 0, 1, 0});  // [B, 1 + T, H]
  return sums - before.gather(1, begin.expand_as(sums));
}

// Whether a sequence starts with anything in its state, [sequences, H] bool.
at::Tensor HoldsState(const DecayState& initial, const at::Tensor& log_scale) {
  at::Tensor holds = at::zeros_like(log_scale, log_scale.options().dtype(at::kBool));
  if (initial.kv.defined()) holds = (initial.kv.detach() != 0).flatten(2).any(2);
  return initial.norm.defined() ? holds.logical_or((initial.norm.detach() != 0).any(2)) : holds;
}

// Steps of mu that l has made at each token, [B, T, H]: all tokens of a run that goes on from a
// state, else those after the first key.
at::Tensor StepsOfScale(const TokenRuns& runs, const at::Tensor& carried,
                        const at::Tensor& key_scale) {
  const at::Tensor begin = runs.begin.unsqueeze(2);
  at::Tensor count;
  if (key_scale.defined()) {
    const at::Tensor heard = carried.logical_or(key_scale.detach() != 0);
    count = CountWithinRun(CountWithinRun(heard, begin) > 0, begin);
  } else {
    count = at::arange(begin.size(1), begin.options()).view({1, -1, 1}) - begin + 1;
  }
  return (count - 1 + carried.to(at::kLong)).clamp_min(0);
}

}  // namespace

ScaledInputs ScaleGrowth(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  const at::Tensor& g = inputs.log_decay;
  CheckConfig(config, g.defined() && g.dim() <= 2, g);
  ScaledInputs scaled = {.inputs = inputs, .key_factor = {}, .final_log_scale = {}};
  const int64_t batch = inputs.q.size(0), seq_len = inputs.q.size(1);
  if (inputs.chunks == nullptr)
    scaled.inputs.chunks =
        MakeSequenceChunks({.batch = batch, .seq_len = seq_len}, inputs.q.device());
  const SequenceChunks& chunks = *scaled.inputs.chunks;
  const int64_t sequences = chunks.num_sequences();
  const int64_t heads = std::max({inputs.q.size(2), inputs.k.size(2), inputs.v.size(2), g.size(0)});
  const DecayState& initial = inputs.initial_state;
  binding::CheckStateShapes("initial_state", initial, inputs.q,
                            {sequences, heads, inputs.q.size(3), inputs.v.size(3)});
  CheckLogScale(inputs.q, initial.log_scale, {sequences, heads}, initial.kv.defined());

  const at::Tensor mu = GrowthOfHeads(g, heads);
  const at::Tensor before = initial.log_scale.defined()
                                ? initial.log_scale.detach()
                                : at::zeros({sequences, heads}, mu.options());
  const TokenRuns& runs = chunks.runs();
  // [sequences, H] for each token of a run, [B, T, H]; zero for what a document starts
  const auto of_runs = [&](const at::Tensor& x) {
    return at::cat({x, at::zeros({1, heads}, x.options())})
        .index_select(0, runs.sequence.flatten())
        .view({batch, seq_len, heads});
  };
  const at::Tensor holds = HoldsState(initial, before);
  const at::Tensor log_scale =
      of_runs(before * holds) + StepsOfScale(runs, of_runs(holds), inputs.key_scale) * mu;
  scaled.key_factor = (-log_scale).exp().to(ComputeType(inputs.q));
  scaled.inputs.key_scale = Scaled(inputs.key_scale, scaled.key_factor);
  scaled.inputs.log_decay = Lowered(g, ComputeType(inputs.q));
  scaled.inputs.initial_state.log_scale.reset();
  scaled.final_log_scale = at::cat({log_scale.flatten(0, 1), before}).index_select(0, runs.last);
  return scaled;
}

DecayAttentionStepInputs ScaleGrowthOfStep(const DecayAttentionStepInputs& inputs,
                                           const DecayAttentionConfig& config, DecayState& state) {
  CheckConfig(config, inputs.log_decay.defined() && inputs.constant_decay, inputs.log_decay);
  const int64_t batch = inputs.q.size(0), heads = state.kv.size(1);
  HL_CHECK(state.log_scale.defined(), "decay attention step: growth without a log_scale; fp64 [",
           batch, ", ", heads, "], zeros for an empty state, would work");
  CheckLogScale(inputs.q, state.log_scale, {batch, heads}, true);
  DecayAttentionStepInputs scaled = inputs;
  const at::Tensor holds = (state.norm != 0).any(2);  // the first key is taken as it is
  state.log_scale.add_(GrowthOfHeads(inputs.log_decay, heads)).mul_(holds);
  scaled.key_scale = Scaled(inputs.key_scale, (-state.log_scale).exp().to(ComputeType(inputs.q)));
  scaled.log_decay = Lowered(inputs.log_decay, ComputeType(inputs.q));
  return scaled;
}

}  // namespace halflife::kernels
