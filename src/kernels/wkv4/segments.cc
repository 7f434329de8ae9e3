#include "kernels/wkv4/segments.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "kernels/sequence/segment_scan.h"
#include "kernels/torch/dispatch.h"

namespace halflife::kernels {
namespace {

// Nothing seen is a denominator of 0 here, a log scale of -inf there.
WkvMemory ToMemory(const SegmentState& state) {
  if (state.values.empty()) return {};
  return {.numerator = state.values[0],
          .denominator = state.values[1],
          .log_scale = ScaleOrZero(state.log_scale)};
}
SegmentState ToSegmentState(const WkvMemory& memory) {
  return {.values = {memory.numerator, memory.denominator},
          .log_scale = ScaleOfSeen(memory.log_scale, memory.denominator.detach() == 0)};
}

// [B, T, D] of all channels of `inputs`.
at::Tensor Mix(const WkvInputs& inputs) {
  const Tensors given = {inputs.k, inputs.v, inputs.log_decay, inputs.bonus};
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    const auto [out, final] = Wkv4({.k = x[0],
                                    .v = x[1],
                                    .log_decay = x[2],
                                    .negative_exp = inputs.negative_exp,
                                    .bonus = x[3],
                                    .starts = inputs.starts,
                                    .initial = ToMemory(before),
                                    .round_to_bf16 = inputs.round_to_bf16});
    return {.outputs = {out}, .after = ToSegmentState(final)};
  };
  const auto summarise = [&]() -> SegmentSummary {
    const SegmentState own = run(given, {}).after;
    const at::Tensor of_channels = inputs.log_decay.detach().to(ComputeType(inputs.k)),
                     decay = inputs.negative_exp ? of_channels.exp().neg() : of_channels;
    const at::Tensor over_segment =
        (decay * inputs.k.size(1)).unsqueeze(0).expand(own.values[0].sizes());
    return {.own = own, .log_transition = CutByStarts(over_segment, *inputs.segment)};
  };
  const auto nothing = [&]() -> SegmentSummary {
    const at::Tensor channels = at::zeros({inputs.k.size(0), inputs.k.size(2)},
                                          inputs.k.options().dtype(ComputeType(inputs.k)));
    return {.own = {.values = {channels, channels}, .log_scale = channels},
            .log_transition = channels};
  };
  const SegmentScan scan = {.name = "Wkv4Segment",
                            .inputs = given,
                            .run = run,
                            .summarise = summarise,
                            .nothing = nothing};
  return RunSegment(scan, *inputs.segment)[0];
}

}  // namespace

WkvOutputs OverSegments(const WkvInputs& inputs) {
  HL_CHECK(!inputs.initial.numerator.defined(), "Wkv4: an initial state of a segment");
  const auto run = [&](const Tensors& piece) {
    WkvInputs in = inputs;
    in.k = piece[0], in.v = piece[1], in.log_decay = piece[2], in.bonus = piece[3];
    return Mix(in);
  };
  return {.out = InPieces({{inputs.k, 2}, {inputs.v, 2}, {inputs.log_decay, 0}, {inputs.bonus, 0}},
                          kLeastChannels, *inputs.segment, run),
          .final = {}};
}

}  // namespace halflife::kernels
