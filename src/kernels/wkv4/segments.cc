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

WkvInputs ChannelsOf(WkvInputs in, int64_t first, int64_t count) {
  in.k = in.k.narrow(2, first, count), in.v = in.v.narrow(2, first, count);
  in.log_decay = in.log_decay.narrow(0, first, count);
  in.bonus = in.bonus.narrow(0, first, count);
  return in;
}

}  // namespace

WkvOutputs OverSegments(const WkvInputs& inputs) {
  HL_CHECK(!inputs.initial.numerator.defined(), "Wkv4: an initial state of a segment");
  const auto run = [&](int64_t first, int64_t count) {
    return Mix(ChannelsOf(inputs, first, count));
  };
  return {.out = InPiecesOfChannels(inputs.k.size(2), inputs.k.is_cuda(), run), .final = {}};
}

}  // namespace halflife::kernels
