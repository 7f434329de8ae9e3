// RWKV-4's time mixing of rows that are split over several ranks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/scans/wkv4.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

// An empty state has a denominator of 0 in WkvMemory, and a log scale of -inf in SegmentState.
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

// The inputs that can need a gradient.
struct WkvScanned {
  at::Tensor k, v, log_decay, bonus;
};
WkvInputs WithTensors(WkvInputs in, const WkvScanned& x) {
  in.k = x.k, in.v = x.v, in.log_decay = x.log_decay, in.bonus = x.bonus;
  return in;
}

// Returns [B, T, D] for all channels of `inputs`.
at::Tensor Mix(const WkvInputs& inputs) {
  const Tensors given = ToList(WkvScanned{
      .k = inputs.k, .v = inputs.v, .log_decay = inputs.log_decay, .bonus = inputs.bonus});
  WkvInputs alone = inputs;
  alone.segment.reset();
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    WkvInputs in = WithTensors(alone, FromList<WkvScanned>(x));
    in.initial = ToMemory(before);
    const auto [out, final] = Wkv4(in);
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
  HL_CHECK(
      !inputs.initial.numerator.defined(),
      "Wkv4: a segment with an initial state. Pass no state: it comes from the previous rank.");
  // The columns are copied: reading narrow rows at a large stride costs more than copies
  // (bench/RESULTS.md).
  const auto run = [&](const Piece& piece) {
    return Mix(WithTensors(inputs, FromList<WkvScanned>(piece.tensors)));
  };
  return {.out = InPieces({{.tensor = inputs.k, .of_tokens = true},
                           {.tensor = inputs.v, .of_tokens = true},
                           {.tensor = inputs.log_decay, .of_tokens = false},
                           {.tensor = inputs.bonus, .of_tokens = false}},
                          kMinChannels, *inputs.segment, inputs.k, run),
          .final = {}};
}

}  // namespace halflife::ops
