// Focus pooling of rows that are split over several ranks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/error.h"
#include "ops/focus_pool/focus_pool.h"
#include "ops/sequence/segment_scan.h"
#include "ops/sequence/tokens_before.h"
#include "ops/torch/tensor_struct.h"

namespace halflife::ops {
namespace {

// An empty state has a mass of 0 in FocusPoolState, and a log scale of -inf in SegmentState.
FocusPoolState ToFocusState(const SegmentState& state) {
  if (state.values.empty()) return {};
  return {
      .log_scale = ScaleOrZero(state.log_scale), .mass = state.values[0], .sum = state.values[1]};
}
SegmentState ToSegmentState(const FocusPoolState& state) {
  return {.values = {state.mass, state.sum},
          .log_scale = ScaleOfSeen(state.log_scale, state.mass.detach() == 0)};
}

// The inputs that can need a gradient, and the outputs of a segment.
struct PooledInputs {
  at::Tensor log_weight, u;
};
struct PooledOutputs {
  at::Tensor out, row_max, row_sum;
};

FocusPoolOutput PoolWindow(FocusPoolInputs inputs, const FocusPoolConfig& config) {
  const auto row = std::exchange(inputs.segment, nullptr);
  row->group->RecordRead();
  if (config.window == 1) return FocusPool(inputs, config);
  const int64_t length = config.window - 1;
  const at::ScalarType wide = inputs.log_weight.scalar_type();
  inputs.initial_state = {.tail_present = SeenBefore(length, *row).to(wide),
                          .tail_log_weight = DocumentBefore(inputs.log_weight, length, *row),
                          .tail_u = DocumentBefore(inputs.u, length, *row).to(wide)};
  return FocusPool(inputs, config);
}

}  // namespace

FocusPoolOutput OverSegments(const FocusPoolInputs& inputs, const FocusPoolConfig& config) {
  HL_CHECK(
      !inputs.initial_state.mass.defined() && !inputs.initial_state.tail_present.defined() &&
          !config.want_state,
      "FocusPool: a segment with an initial or a final state. Pass no state and request none.");
  if (config.window > 0) return PoolWindow(inputs, config);
  FocusPoolConfig with_state = config;
  with_state.want_state = true;
  const PooledInputs given = {.log_weight = inputs.log_weight, .u = inputs.u};
  const auto run = [&](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    const auto in = FromList<PooledInputs>(x);
    const FocusPoolOutput y = FocusPool({.log_weight = in.log_weight,
                                         .u = in.u,
                                         .chunks = inputs.chunks,
                                         .initial_state = ToFocusState(before)},
                                        with_state);
    const PooledOutputs outputs = {.out = y.out, .row_max = y.row_max, .row_sum = y.row_sum};
    return {.outputs = ToList(outputs), .num_constant = 2, .after = ToSegmentState(y.final_state)};
  };
  const auto summarise = [&]() -> SegmentSummary {
    const SegmentState own = run(ToList(given), {}).after;
    const at::Tensor& mass = own.values[0];
    return {
        .own = own,
        .log_transition = CutByStarts(at::zeros(mass.sizes(), mass.options()), *inputs.segment)};
  };
  const auto nothing = [&]() -> SegmentSummary {
    const at::Tensor& u = inputs.u;
    const at::Tensor mass = at::zeros({u.size(0), u.size(2)}, inputs.log_weight.options());
    const at::Tensor sum = at::zeros({u.size(0), u.size(2), u.size(3)}, mass.options());
    return {.own = {.values = {mass, sum}, .log_scale = mass}, .log_transition = mass};
  };
  const auto out = FromList<PooledOutputs>(RunSegment({.name = "FocusPoolSegment",
                                                       .inputs = ToList(given),
                                                       .run = run,
                                                       .summarise = summarise,
                                                       .nothing = nothing},
                                                      *inputs.segment));
  return {.out = out.out, .row_max = out.row_max, .row_sum = out.row_sum, .final_state = {}};
}

}  // namespace halflife::ops
