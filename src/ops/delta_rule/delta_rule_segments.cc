// The delta rule over rows that are split across ranks: the segments exchange their states. A
// segment's transition is a dense K x K matrix per value head, because every token mixes the
// channels of its key.
#include <ATen/ops/zeros.h>

#include "core/error.h"
#include "ops/delta_rule/delta_rule_internal.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

// The inputs that can need a gradient.
struct DeltaScanned {
  at::Tensor q, k, v, log_decay, beta;
};
DeltaRuleInputs WithTensors(DeltaRuleInputs in, const DeltaScanned& x) {
  in.q = x.q, in.k = x.k, in.v = x.v, in.log_decay = x.log_decay, in.beta = x.beta;
  return in;
}

// Returns a summary with the shapes of every other one.
SegmentSummary EmptyDeltaSummary(const DeltaRuleInputs& in) {
  const int64_t batch = in.q.size(0), heads = in.v.size(2), dim_k = in.q.size(3);
  const auto options = in.q.options().dtype(ComputeType(in.q)).requires_grad(false);
  return {.own = {.values = {at::zeros({batch, heads, dim_k, in.v.size(3)}, options)}},
          .transition_matrix = at::zeros({batch, heads, dim_k, dim_k}, options)};
}

}  // namespace

DeltaRuleOutput DeltaRuleOverSegments(const DeltaRuleInputs& inputs, double scale) {
  HL_CHECK(!inputs.initial_state.defined(),
           "delta rule: a segment with an initial state. Pass no state: it comes from the previous "
           "rank.");
  HL_CHECK(NumDeltaSequences(inputs) == inputs.q.size(0), "delta rule: a segment with ",
           NumDeltaSequences(inputs), " sequences in ", inputs.q.size(0),
           " rows. Use document_starts instead of cu_seqlens.");
  const RowSegment& row = *inputs.segment;
  DeltaRuleInputs alone = inputs;
  alone.segment.reset();
  const bool has_kernels = HasDeltaRuleKernels(alone);
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    DeltaRuleInputs in = WithTensors(alone, FromList<DeltaScanned>(x));
    if (!before.values.empty()) in.initial_state = before.values[0];
    const auto [out, final_state] = DeltaRule(in, scale);
    return {.outputs = {out}, .after = {.values = {final_state}}};
  };
  const auto summarise = [&]() -> SegmentSummary {
    const auto [transition, state] =
        has_kernels ? KernelDeltaRuleSummary(alone) : ComposedDeltaRuleSummary(alone);
    return {.own = {.values = {state}}, .transition_matrix = CutMatrixByStarts(transition, row)};
  };
  const DeltaScanned scanned = {.q = inputs.q,
                                .k = inputs.k,
                                .v = inputs.v,
                                .log_decay = inputs.log_decay,
                                .beta = inputs.beta};
  SegmentScan scan = {.name = "DeltaRuleSegment",
                      .inputs = ToList(scanned),
                      .run = run,
                      .summarise = summarise,
                      .nothing = [&] { return EmptyDeltaSummary(alone); }};
  if (has_kernels) {
    Tensors detached;
    for (const at::Tensor& x : scan.inputs)
      detached.push_back(x.defined() ? x.detach() : at::Tensor());
    scan.gradient_before = [in = WithTensors(alone, FromList<DeltaScanned>(detached)), scale](
                               const SegmentState&, const Tensors&,
                               const Tensors& douts) -> Tensors {
      return {KernelDeltaRuleAdjoint(in, scale, douts[0])};
    };
  }
  return {.out = RunSegment(scan, row)[0], .final_state = {}};
}

}  // namespace halflife::ops
