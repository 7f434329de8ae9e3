// The selective scan of rows that are split over several ranks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/scans/selective_scan.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

// The inputs that can need a gradient.
struct SelectiveScanned {
  at::Tensor x, delta, delta_bias, a, b, c, skip;
};
SelectiveScanInputs WithTensors(SelectiveScanInputs in, const SelectiveScanned& given,
                                const SegmentState& before) {
  in.x = given.x, in.delta = given.delta, in.delta_bias = given.delta_bias, in.a = given.a;
  in.b = given.b, in.c = given.c, in.skip = given.skip;
  in.initial = before.values.empty() ? at::Tensor() : before.values[0];
  in.segment.reset();
  return in;
}

// Returns a times the sum of the segment's steps, [B, I, N]: the logarithm of its state transition.
at::Tensor LogTransition(const SelectiveScanInputs& in) {
  const at::ScalarType compute = ComputeType(in.x);
  const at::Tensor steps =
      at::softplus(in.delta.detach().to(compute) + in.delta_bias.detach().to(compute)).sum(1);
  const at::Tensor given = in.a.detach().to(compute);
  return steps.unsqueeze(2) * (in.negative_exp ? given.exp().neg() : given);
}

// One block of channels: the tensors that are cut along the channels, and the gradients' slices.
struct ChannelBlock {
  at::Tensor x, delta, delta_bias, a, skip;
};

// Returns [B, T, I] for all channels of `inputs`.
at::Tensor Scan(const SelectiveScanInputs& inputs) {
  const SelectiveScanned given = {.x = inputs.x,
                                  .delta = inputs.delta,
                                  .delta_bias = inputs.delta_bias,
                                  .a = inputs.a,
                                  .b = inputs.b,
                                  .c = inputs.c,
                                  .skip = inputs.skip};
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    const auto [y, final] =
        SelectiveScan(WithTensors(inputs, FromList<SelectiveScanned>(x), before));
    return {.outputs = {y}, .after = {.values = {final}}};
  };
  const auto summarise = [&]() -> SegmentSummary {
    SelectiveScanInputs sum = WithTensors(inputs, given, {});
    sum.y_place = {};  // no caller reads y here
    return {.own = {.values = {SelectiveScan(sum).final}},
            .log_transition = CutByStarts(LogTransition(inputs), *inputs.segment)};
  };
  const auto nothing = [&]() -> SegmentSummary {
    const at::Tensor state = at::zeros({inputs.x.size(0), inputs.a.size(0), inputs.a.size(1)},
                                       inputs.x.options().dtype(ComputeType(inputs.x)));
    return {.own = {.values = {state}}, .log_transition = state};
  };
  const SegmentScan scan = {.name = "SelectiveScanSegment",
                            .inputs = ToList(given),
                            .run = run,
                            .summarise = summarise,
                            .nothing = nothing};
  return RunSegment(scan, *inputs.segment)[0];
}

}  // namespace

SelectiveScanOutputs OverSegments(const SelectiveScanInputs& inputs) {
  HL_CHECK(!inputs.initial.defined(),
           "SelectiveScan: a segment with an initial state. Pass no state: it comes from the "
           "previous rank.");
  const auto run = [&](const Piece& piece) {
    SelectiveScanInputs in = inputs;
    const auto block = FromList<ChannelBlock>(piece.tensors);
    in.x = block.x, in.delta = block.delta, in.delta_bias = block.delta_bias;
    in.a = block.a, in.skip = block.skip;
    // a block of channels is only one of several readers of b and c
    in.b_gradient = in.c_gradient = {};
    in.x_gradient = piece.gradients[0], in.delta_gradient = piece.gradients[1];
    in.y_place = piece.output;
    return Scan(in);
  };
  return {.y = InPieces({{.tensor = inputs.x, .of_tokens = true},
                         {.tensor = inputs.delta, .of_tokens = true},
                         {.tensor = inputs.delta_bias, .of_tokens = false},
                         {.tensor = inputs.a, .of_tokens = false},
                         {.tensor = inputs.skip, .of_tokens = false}},
                        kMinChannels, *inputs.segment, inputs.x, run),
          .final = {}};
}

}  // namespace halflife::ops
