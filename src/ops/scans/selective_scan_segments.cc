#include "ops/scans/selective_scan_segments.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"

namespace halflife::ops {
namespace {

SelectiveScanInputs WithTensors(SelectiveScanInputs in, const Tensors& x,
                                const SegmentState& before) {
  in.x = x[0], in.delta = x[1], in.delta_bias = x[2], in.a = x[3], in.b = x[4], in.c = x[5];
  in.skip = x[6];
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

// Returns [B, T, I] for all channels of `inputs`.
at::Tensor Scan(const SelectiveScanInputs& inputs) {
  const Tensors given = {inputs.x, inputs.delta, inputs.delta_bias, inputs.a,
                         inputs.b, inputs.c,     inputs.skip};
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    const auto [y, final] = SelectiveScan(WithTensors(inputs, x, before));
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
                            .inputs = given,
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
    in.x = piece.tensors[0], in.delta = piece.tensors[1], in.delta_bias = piece.tensors[2];
    in.a = piece.tensors[3], in.skip = piece.tensors[4];
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
                        kLeastChannels, *inputs.segment, inputs.x, run),
          .final = {}};
}

}  // namespace halflife::ops
