#include "kernels/wkv4/segments.h"

#include <ATen/TensorOperators.h>

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

}  // namespace

WkvOutputs OverSegments(const WkvInputs& inputs) {
  HL_CHECK(!inputs.initial.numerator.defined(), "Wkv4: an initial state of a segment");
  const Tensors given = {inputs.k, inputs.v, inputs.log_decay, inputs.bonus};
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    const auto [out, final] = Wkv4({.k = x[0],
                                    .v = x[1],
                                    .log_decay = x[2],
                                    .bonus = x[3],
                                    .starts = inputs.starts,
                                    .initial = ToMemory(before),
                                    .round_to_bf16 = inputs.round_to_bf16});
    return {.outputs = {out}, .after = ToSegmentState(final)};
  };
  const auto summarise = [&]() -> SegmentSummary {
    const SegmentState own = run(given, {}).after;
    const at::Tensor decay = inputs.log_decay.detach().to(ComputeType(inputs.k));
    const at::Tensor over_segment =
        (decay * inputs.k.size(1)).unsqueeze(0).expand(own.values[0].sizes());
    return {.own = own, .log_transition = CutByStarts(over_segment, *inputs.segment)};
  };
  const SegmentScan scan = {
      .name = "Wkv4Segment", .inputs = given, .run = run, .summarise = summarise};
  return {.out = RunSegment(scan, *inputs.segment)[0], .final = {}};
}

}  // namespace halflife::kernels
