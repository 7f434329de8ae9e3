// Polynomial attention of rows that are split over several ranks.
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/polynomial_attention/features.h"
#include "ops/polynomial_attention/polynomial_attention.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

PolynomialState ToPolynomialState(const SegmentState& state) {
  if (state.values.empty()) return {};
  return {.kv = state.values[0], .norm = state.values.size() > 1 ? state.values[1] : at::Tensor()};
}
SegmentState ToSegmentState(const PolynomialState& state) {
  SegmentState segment = {.values = {state.kv}};
  if (state.norm.defined()) segment.values.push_back(state.norm);
  return segment;
}

// The inputs that can need a gradient.
struct Heads {
  at::Tensor q, k, v;
};
PolynomialAttentionInputs WithHeads(PolynomialAttentionInputs in, const Heads& heads) {
  in.q = heads.q, in.k = heads.k, in.v = heads.v;
  return in;
}

PolynomialAttentionInputs Detached(PolynomialAttentionInputs in) {
  in.q = in.q.detach(), in.k = in.k.detach(), in.v = in.v.detach();
  return in;
}

// Returns [B, T, H, V] for all heads of `inputs`.
at::Tensor Attend(const PolynomialAttentionInputs& inputs,
                  const PolynomialAttentionConfig& config) {
  PolynomialAttentionInputs alone = inputs;
  alone.segment.reset();
  PolynomialAttentionConfig with_state = config;
  with_state.want_final_state = true;
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    PolynomialAttentionInputs in = WithHeads(alone, FromList<Heads>(x));
    in.initial_state = ToPolynomialState(before);
    const PolynomialAttentionOutput y = PolynomialAttention(in, with_state);
    if (!y.norm_denom.defined())
      return {.outputs = {y.out}, .after = ToSegmentState(y.final_state)};
    return {.outputs = {y.out, y.norm_denom},
            .num_constant = 1,
            .after = ToSegmentState(y.final_state)};
  };
  const auto summarise = [&]() -> SegmentSummary {
    const SegmentState own = ToSegmentState(Summarise(alone, with_state));
    const at::Tensor& kv = own.values[0];
    return {.own = own,
            .log_transition =
                CutByStarts(at::zeros({kv.size(0), kv.size(1)}, kv.options()), *inputs.segment)};
  };
  const auto nothing = [&]() -> SegmentSummary {
    const int64_t batch = inputs.q.size(0), heads = inputs.q.size(2), dim_v = inputs.v.size(3);
    const int64_t features =
        kernels::FeatureLayout(static_cast<int>(inputs.q.size(3)), config.weights).count;
    const at::Tensor kv =
        at::zeros({batch, heads, features, dim_v}, inputs.q.options().dtype(ComputeType(inputs.q)));
    SegmentSummary summary = {.own = {.values = {kv}},
                              .log_transition = at::zeros({batch, heads}, kv.options())};
    if (config.normalise) summary.own.values.push_back(kv.select(3, 0));
    return summary;
  };
  const auto gradient_before = [in = Detached(alone), with_state](const SegmentState& before,
                                                                  const Tensors& outputs,
                                                                  const Tensors& douts) -> Tensors {
    PolynomialAttentionInputs from = in;
    from.initial_state = ToPolynomialState(before);
    const PolynomialAttentionOutput output = {
        .out = outputs[0],
        .final_state = {},
        .norm_denom = outputs.size() > 1 ? outputs[1] : at::Tensor()};
    return ToSegmentState(BackwardSummarise(from, with_state, output, douts[0])).values;
  };
  return RunSegment({.name = "PolynomialAttentionSegment",
                     .inputs = ToList(Heads{.q = inputs.q, .k = inputs.k, .v = inputs.v}),
                     .run = run,
                     .summarise = summarise,
                     .nothing = nothing,
                     .gradient_before = gradient_before},
                    *inputs.segment)[0];
}

}  // namespace

PolynomialAttentionOutput OverSegments(const PolynomialAttentionInputs& inputs,
                                       const PolynomialAttentionConfig& config) {
  HL_CHECK(!inputs.initial_state.kv.defined() && !config.want_final_state,
           "polynomial attention: a segment with an initial or a final state. Pass no state and "
           "request none.");
  const auto run = [&](const Piece& piece) {
    PolynomialAttentionInputs in = WithHeads(inputs, FromList<Heads>(piece.tensors));
    in.q_gradient = piece.gradients[0], in.k_gradient = piece.gradients[1];
    in.v_gradient = piece.gradients[2];
    in.out_place = piece.output;
    return Attend(in, config);
  };
  // Threads divide the heads of rows among themselves, so each piece has heads for every thread.
  const int64_t batch = std::max<int64_t>(inputs.q.size(0), 1);
  const RowSegment& row = *inputs.segment;
  const int64_t least = std::max<int64_t>((row.threads + batch - 1) / batch, 1);
  return {.out = InPieces({{.tensor = inputs.q, .of_tokens = true},
                           {.tensor = inputs.k, .of_tokens = true},
                           {.tensor = inputs.v, .of_tokens = true}},
                          least, row, inputs.v, run),
          .final_state = {}};
}

}  // namespace halflife::ops
