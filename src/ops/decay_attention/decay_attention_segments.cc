// Decay attention over rows that are split across ranks: the segments exchange their states.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/decay_attention/decay_attention_internal.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

// The inputs that can need a gradient.
struct ScannedTensors {
  at::Tensor q, k, v, log_decay, key_scale, norm_q, norm_k;
};
ScannedTensors ToScannedTensors(const DecayAttentionInputs& in) {
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .log_decay = in.log_decay,
          .key_scale = in.key_scale,
          .norm_q = in.norm_q,
          .norm_k = in.norm_k};
}
DecayAttentionInputs WithTensors(DecayAttentionInputs in, const ScannedTensors& x) {
  in.q = x.q, in.k = x.k, in.v = x.v, in.log_decay = x.log_decay, in.key_scale = x.key_scale;
  in.norm_q = x.norm_q, in.norm_k = x.norm_k;
  return in;
}

// Converts between the two encodings of a sequence that has seen no key: its log scale is 0 in a
// DecayState and -inf in a SegmentState.
DecayState ToDecayState(const SegmentState& state) {
  if (state.values.empty()) return {};
  DecayState decay = {.kv = state.values[0]};
  if (state.values.size() > 1) decay.norm = state.values[1];
  if (state.log_scale.defined()) decay.log_scale = ScaleOrZero(state.log_scale);
  return decay;
}
SegmentState ToSegmentState(const DecayState& state) {
  SegmentState segment = {.values = {state.kv}};
  if (state.norm.defined()) segment.values.push_back(state.norm);
  if (state.log_scale.defined())
    segment.log_scale = ScaleOfSeen(state.log_scale, (state.norm.detach() == 0).all(2));
  return segment;
}

// Returns the logarithm of the decay over the whole segment, [B, H, K or 1].
at::Tensor LogTransition(const DecayAttentionInputs& in, int64_t num_heads) {
  const int64_t batch = in.q.size(0), seq_len = in.q.size(1);
  const at::Tensor& g = in.log_decay;
  if (!g.defined())
    return at::zeros({batch, num_heads, 1}, in.q.options().dtype(ComputeType(in.q)));
  const bool constant = g.dim() <= 2;
  at::Tensor sum = constant ? g.detach() * seq_len : g.detach().sum(1);  // [(B,) Hd (, K)]
  if (constant) sum = sum.unsqueeze(0);
  if (g.dim() % 2 == 1) sum = sum.unsqueeze(-1);
  sum = binding::OfHeads(sum, num_heads, /*dim=*/1);
  return sum.to(ComputeType(in.q)).expand({batch, num_heads, sum.size(2)}).contiguous();
}

SegmentSummary ToSummary(const DecaySegment& segment) {
  return {.own = ToSegmentState(segment.state), .log_transition = segment.log_transition};
}

// Returns the summary of a segment without tokens, with the same shapes as every other summary.
SegmentSummary Nothing(const DecayAttentionInputs& in, const DecayAttentionConfig& config) {
  const int64_t batch = in.q.size(0), heads = binding::NumHeads(in);
  const int64_t dim_k = in.q.size(3), dim_v = in.v.size(3);
  const auto zeros = [&](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::zeros(sizes, in.q.options().dtype(dtype));
  };
  const at::ScalarType compute = ComputeType(in.q);
  const bool per_channel = in.log_decay.defined() && in.log_decay.dim() % 2 == 0;
  SegmentSummary summary = {
      .own = {.values = {zeros({batch, heads, dim_k, dim_v}, compute)}},
      .log_transition = zeros({batch, heads, per_channel ? dim_k : 1}, compute)};
  if (config.norm == kernels::NormKind::kSumOfKeys)
    summary.own.values.push_back(zeros({batch, heads, dim_k}, compute));
  if (config.allow_growth) summary.own.log_scale = zeros({batch, heads}, at::kDouble);
  return summary;
}

DecayAttentionInputs Alone(DecayAttentionInputs in) {
  in.segment.reset();
  return in;
}

// Returns true if the kernels can summarise the call. Their summary supports neither growth nor a
// separate denominator (norm_q, norm_k): both are prepared outside the kernels.
bool HasSummary(const DecayAttentionInputs& in, const DecayAttentionConfig& config) {
  return !config.allow_growth && !in.norm_q.defined();
}

}  // namespace

DecayState PassThrough(const DecaySegment& segment, const DecayState& before) {
  if (!before.kv.defined()) return segment.state;
  return ToDecayState(PassThrough(ToSummary(segment), ToSegmentState(before)).after);
}

DecayAttentionOutput OverSegments(const DecayAttentionInputs& inputs,
                                  const DecayAttentionConfig& config) {
  HL_CHECK(!inputs.initial_state.kv.defined(),
           "decay attention: a segment with an initial state. Pass no state: it comes from the "
           "previous rank.");
  const RowSegment& row = *inputs.segment;
  const DecayAttentionInputs alone = Alone(inputs);
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    DecayAttentionInputs in = WithTensors(alone, FromList<ScannedTensors>(x));
    in.initial_state = ToDecayState(before);
    const DecayAttentionOutput output = DecayAttention(in, config);
    return {.outputs = {output.out}, .after = ToSegmentState(output.final_state)};
  };
  const auto summarise = [&]() -> SegmentSummary {
    if (HasSummary(alone, config)) return ToSummary(Summarise(alone, config));
    const DecayState own = DecayAttention(alone, config).final_state;
    return {.own = ToSegmentState(own),
            .log_transition = CutByStarts(LogTransition(alone, own.kv.size(1)), row)};
  };
  SegmentScan scan = {.name = "DecayAttentionSegment",
                      .inputs = ToList(ToScannedTensors(inputs)),
                      .run = run,
                      .summarise = summarise,
                      .nothing = [&] { return Nothing(alone, config); }};
  if (HasSummary(alone, config)) {
    Tensors detached;
    for (const at::Tensor& x : scan.inputs)
      detached.push_back(x.defined() ? x.detach() : at::Tensor());
    scan.gradient_before = [in = WithTensors(alone, FromList<ScannedTensors>(detached)), config](
                               const SegmentState& before, const Tensors&,
                               const Tensors& douts) -> Tensors {
      DecayAttentionInputs from = in;
      from.initial_state = ToDecayState(before);
      return ToSegmentState(BackwardSummarise(from, config, douts[0])).values;
    };
  }
  return {.out = RunSegment(scan, row)[0], .final_state = {}};
}

}  // namespace halflife::ops
