#include "ops/decay_attention/decay_value_read.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "core/error.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

constexpr DecayAttentionConfig kUnscaled = {.scale = 1};

// The operands that can need a gradient.
struct ValueReadTensors {
  at::Tensor q, k, v, log_decay, initial_state;
};
struct ValueReadOp {
  using Inputs = ValueReadTensors;
  using Outputs = DecayValueReadOutput;
  using Saved = ValueReadTensors;
};

// Returns the inputs of the decay attention whose queries are `queries` [B, T, H, K].
DecayAttentionInputs Attention(const ValueReadTensors& x, const at::Tensor& queries,
                               const std::shared_ptr<const SequenceChunks>& chunks) {
  return {.q = queries,
          .k = x.k,
          .v = x.v,
          .log_decay = x.log_decay,
          .chunks = chunks,
          .initial_state = {.kv = x.initial_state}};
}

// Returns queries for calls whose results do not depend on them.
at::Tensor NoQueries(const ValueReadTensors& x) {
  return at::zeros({x.q.size(0), x.q.size(1), x.q.size(2), x.k.size(3)},
                   x.q.options().requires_grad(false));
}

DecayValueReadOutput Differentiable(const ValueReadTensors& x,
                                    const std::shared_ptr<const SequenceChunks>& chunks) {
  const auto backward = [chunks](const BackwardOf<ValueReadOp>& call) -> ValueReadTensors {
    const DecayAttentionInputs attention = Attention(call.saved, call.grads.out, chunks);
    const DecayAttentionGrads grads =
        Backward(attention, kUnscaled, call.saved.q, {.kv = call.grads.final_state});
    const c10::AutoGradMode no_graph(false);
    return {.q = DecayAttention(attention, kUnscaled).out,
            .k = grads.dk,
            .v = grads.dv,
            .log_decay = grads.dlog_decay,
            .initial_state = grads.dinitial_state.kv};
  };
  const auto forward = [&]() -> ForwardOf<ValueReadOp> {
    const DecayAttentionInputs attention = Attention(x, NoQueries(x), chunks);
    return {.outputs = {.out = Backward(attention, kUnscaled, x.q, {}).dq,
                        .final_state = DecayAttention(attention, kUnscaled).final_state.kv},
            .saved = x,
            .backward = backward};
  };
  return Apply<ValueReadOp>({.name = "DecayValueRead", .inputs = x, .forward = forward});
}

// Reads rows that are split across ranks. The state is that of decay attention, and so are its
// summary and the gradient of the state before a segment.
at::Tensor OverRanks(const ValueReadTensors& tensors, const DecayValueReadInputs& inputs) {
  const auto chunks = inputs.chunks;
  const auto run = [=](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    ValueReadTensors in = FromList<ValueReadTensors>(x);
    if (!before.values.empty()) in.initial_state = before.values[0];
    const auto [out, final_state] = Differentiable(in, chunks);
    return {.outputs = {out}, .after = {.values = {final_state}}};
  };
  const auto summarise = [&]() -> SegmentSummary {
    const DecaySegment segment =
        Summarise(Attention(tensors, NoQueries(tensors), chunks), kUnscaled);
    return {.own = {.values = {segment.state.kv}}, .log_transition = segment.log_transition};
  };
  const auto nothing = [&]() -> SegmentSummary {
    const auto options = tensors.q.options().dtype(ComputeType(tensors.q)).requires_grad(false);
    const int64_t batch = tensors.q.size(0), heads = tensors.q.size(2), dim_k = tensors.k.size(3);
    return {.own = {.values = {at::zeros({batch, heads, dim_k, tensors.v.size(3)}, options)}},
            .log_transition = at::zeros({batch, heads, dim_k}, options)};
  };
  const ValueReadTensors detached = {.q = tensors.q.detach(),
                                     .k = tensors.k.detach(),
                                     .v = tensors.v.detach(),
                                     .log_decay = tensors.log_decay.detach(),
                                     .initial_state = {}};
  const auto gradient_before = [=](const SegmentState&, const Tensors&,
                                   const Tensors& douts) -> Tensors {
    return {BackwardSummarise(Attention(detached, douts[0], chunks), kUnscaled, detached.q).kv};
  };
  return RunSegment({.name = "DecayValueReadSegment",
                     .inputs = ToList(tensors),
                     .run = run,
                     .summarise = summarise,
                     .nothing = nothing,
                     .gradient_before = gradient_before},
                    *inputs.segment)[0];
}

}  // namespace

DecayValueReadOutput DecayValueRead(const DecayValueReadInputs& inputs) {
  const auto& [q, k, v, g, chunks, initial_state, segment] = inputs;
  HL_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && g.dim() == 4 && q.size(3) == v.size(3) &&
               g.size(3) == k.size(3) && q.size(2) >= k.size(2) && q.size(2) >= v.size(2) &&
               q.size(2) >= g.size(2),
           "DecayValueRead got q ", Describe(q), ", k ", Describe(k), ", v ", Describe(v),
           " and log_decay ", Describe(g),
           ". Use [B, T, H, V] for q, with no fewer heads than the others, [B, T, Hk, K] for k, "
           "[B, T, Hv, V] for v and [B, T, Hd, K] for log_decay.");
  const ValueReadTensors tensors = {
      .q = q, .k = k, .v = v, .log_decay = g, .initial_state = initial_state};
  if (segment == nullptr) return Differentiable(tensors, chunks);
  HL_CHECK(!initial_state.defined(),
           "DecayValueRead: a segment with an initial state. Pass no state: it comes from the "
           "previous rank.");
  return {.out = OverRanks(tensors, inputs), .final_state = {}};
}

}  // namespace halflife::ops
