#include "kernels/sequence/segment_scan.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "core/error.h"

namespace halflife::kernels {
namespace {

// What a forward leaves for its backward: the segment with its own graph, from leaves that stand
// for the inputs and for the state before.
struct Kept {
  Tensors inputs;
  SegmentState before;
  ScannedSegment segment;
  at::Tensor factor;    // of the state before, in the state after
  at::Tensor rescaled;  // [N, C]: from the exchanged state's log scale to that of segment.after
  GradientBefore gradient_before;
};

Tensors AsLeaves(const Tensors& tensors, const std::vector<bool>& wanted) {
  Tensors leaves;
  for (size_t i = 0; i < tensors.size(); ++i)
    leaves.push_back(tensors[i].defined() ? tensors[i].detach().requires_grad_(wanted[i])
                                          : at::Tensor());
  return leaves;
}

// With log scales: what multiplies a gradient of the values after, at the scale that the ranks
// agree on, to make it one at the segment's own.
at::Tensor Rescaled(const SegmentState& own, const SegmentState& agreed) {
  const at::Tensor factor = (own.log_scale - agreed.log_scale).exp();
  return at::where(own.log_scale.isneginf().logical_or(agreed.log_scale.isneginf()), 0, factor)
      .to(own.values[0].scalar_type());
}

void KeepTransition(const SegmentSummary& summary, Kept& kept) {
  SegmentState agreed = summary.own;
  if (kept.before.values.empty()) {
    kept.factor = at::zeros_like(summary.log_transition).to(summary.own.values[0].scalar_type());
  } else {
    Passed passed = PassThrough(summary, kept.before);
    kept.factor = passed.factor, agreed = passed.after;
  }
  if (agreed.log_scale.defined()) kept.rescaled = Rescaled(kept.segment.after, agreed);
}

Tensors DifferentiableOutputs(const ScannedSegment& segment) {
  return {segment.outputs.begin(),
          segment.outputs.end() - static_cast<std::ptrdiff_t>(segment.num_constant)};
}

// dL/d(values before) through this rank's outputs; zeros on the first rank, which nobody reads.
Tensors LocalGradient(const Kept& kept, const Tensors& douts) {
  if (kept.before.values.empty()) {
    Tensors zeros;
    for (const at::Tensor& x : kept.segment.after.values) zeros.push_back(at::zeros_like(x));
    return zeros;
  }
  if (kept.gradient_before) return kept.gradient_before(kept.before, kept.segment.outputs, douts);
  Tensors local = Differentiate(DifferentiableOutputs(kept.segment), douts, kept.before.values,
                                /*keep_graph=*/true);
  for (size_t i = 0; i < local.size(); ++i)
    if (!local[i].defined()) local[i] = at::zeros_like(kept.before.values[i]);
  return local;
}

// Takes what was kept: the graph's other nodes may live on after this one's backward.
Tensors BackwardOf(Kept kept, const RowSegment& row, const BackwardCall& call) {
  HL_CHECK(!kept.inputs.empty(), "a second backward through a segment of a row");
  Tensors outputs = DifferentiableOutputs(kept.segment);
  Tensors douts(call.grads.begin(),
                call.grads.begin() + static_cast<std::ptrdiff_t>(outputs.size()));
  const Tensors dafter = GradientAfter(LocalGradient(kept, douts), kept.factor, row);
  for (size_t i = 0; i < dafter.size(); ++i) {
    at::Tensor gradient = dafter[i];
    if (kept.rescaled.defined()) {
      const at::Tensor factor = Beside(kept.rescaled, gradient);
      gradient = at::where(factor == 0, 0, factor * gradient);
    }
    outputs.push_back(kept.segment.after.values[i]);
    douts.push_back(gradient);
  }
  Tensors wanted;
  for (size_t i = 0; i < kept.inputs.size(); ++i)
    if (call.wanted[i]) wanted.push_back(kept.inputs[i]);
  const Tensors found = Differentiate(outputs, douts, wanted, /*keep_graph=*/false);
  Tensors gradients;
  for (size_t i = 0, next = 0; i < kept.inputs.size(); ++i)
    gradients.push_back(call.wanted[i] ? found[next++] : at::Tensor());
  return gradients;
}

}  // namespace

Tensors RunSegment(const SegmentScan& scan, const RowSegment& row) {
  row.group->NoteAsked();
  std::vector<bool> wanted;
  for (const at::Tensor& x : scan.inputs)
    wanted.push_back(c10::GradMode::is_enabled() && x.defined() && x.requires_grad());
  const bool differentiated = std::count(wanted.begin(), wanted.end(), true) > 0;
  const auto forward = [&]() -> Forwarded {
    const SegmentSummary summary = scan.summarise();
    const auto kept = std::make_shared<Kept>();
    kept->before = StateBefore(summary, row);
    kept->inputs = AsLeaves(scan.inputs, wanted);
    kept->before.values = AsLeaves(kept->before.values,
                                   std::vector<bool>(kept->before.values.size(), differentiated));
    {
      const c10::AutoGradMode with_graph(differentiated);
      kept->segment = scan.run(kept->inputs, kept->before);
    }
    Forwarded result = {
        .outputs = {}, .saved = {}, .backward = {}, .num_constant = kept->segment.num_constant};
    for (const at::Tensor& x : kept->segment.outputs) result.outputs.push_back(x.detach());
    if (!differentiated) return result;
    KeepTransition(summary, *kept);
    kept->gradient_before = scan.gradient_before;
    result.backward = [row, kept](const BackwardCall& call) {
      return BackwardOf(std::exchange(*kept, Kept()), row, call);
    };
    return result;
  };
  return Apply({.name = scan.name, .inputs = scan.inputs, .forward = forward});
}

at::Tensor CutByStarts(const at::Tensor& log_transition, const RowSegment& row) {
  if (!row.has_start.defined()) return log_transition;
  return log_transition.masked_fill(Beside(row.has_start, log_transition),
                                    -std::numeric_limits<double>::infinity());
}

}  // namespace halflife::kernels
