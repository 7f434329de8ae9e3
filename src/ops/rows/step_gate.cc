#include "ops/rows/step_gate.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softplus.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/sum_partials.h"
#include "kernels/rows/step_gate_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

struct StepGateOp {
  struct Inputs {
    at::Tensor x, bias, a_log;
  };
  struct Outputs {
    at::Tensor step, log_decay;
  };
  // bias and a_log are kept as they were given, because their sinks are found by tensor identity.
  struct Saved {
    at::Tensor x, bias, a_log;
  };
};

// The parameters as the kernels read them.
struct StepGateParameters {
  at::Tensor bias, a_log;  // contiguous
  kernels::StepGateForm form;

  StepGateParameters(const at::Tensor& given_bias, const at::Tensor& given_a_log,
                     const StepGateConfig& config)
      : bias(given_bias.contiguous()), a_log(given_a_log.contiguous()) {
    form = {.bias = Elements<float>(bias),
            .a_log = Elements<float>(a_log),
            .least = static_cast<float>(config.least),
            .most = static_cast<float>(config.most)};
  }
};

StepGateOutput StepGateForwardFused(const at::Tensor& x, const StepGateParameters& parameters) {
  const StepGateOutput result = {.step = at::empty(x.sizes(), x.options().dtype(at::kFloat)),
                                 .log_decay = at::empty(x.sizes(), x.options().dtype(at::kFloat))};
  WithStorage(x, [&]<typename T>() {
    const kernels::StepGateRows<T> rows = {.x = Elements<T>(x),
                                           .step = MutableElements<float>(result.step),
                                           .log_decay = MutableElements<float>(result.log_decay),
                                           .form = parameters.form,
                                           .num_rows = NumRows(x),
                                           .dim = x.size(-1),
                                           .x_stride = RowStride(x).value()};
    RunOn(
        x,
        [&] {
          at::parallel_for(
              0, rows.num_rows, kernels::cpu::kStepGateRowsPerBlock,
              [&](int64_t begin, int64_t end) { kernels::cpu::StepGateForward(rows, begin, end); });
        },
        [&](auto stream) { kernels::cuda::StepGateForward(rows, stream); });
  });
  return result;
}

template <typename T>
void StepGateBackwardOnCpu(const kernels::StepGateGradRows<T>& rows,
                           const kernels::StepGateSums& sums) {
  constexpr int64_t kRows = kernels::cpu::kStepGateRowsPerBlock;
  const int64_t dim = rows.dim, num_blocks = (rows.num_rows + kRows - 1) / kRows;
  std::vector<float> partial(num_blocks * 2 * dim);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::StepGateBackward(rows, block * kRows,
                                     std::min(rows.num_rows, (block + 1) * kRows),
                                     partial.data() + block * 2 * dim);
  });
  const kernels::cpu::SumPlaces<float> places = {
      {.out = sums.dbias, .size = dim, .added = sums.dbias_added},
      {.out = sums.da_log, .size = dim, .added = sums.da_log_added}};
  kernels::cpu::SumPartials(partial.data(), num_blocks, places);
}

StepGateOp::Inputs StepGateBackwardFused(const BackwardOf<StepGateOp>& call,
                                         const StepGateConfig& config, const ColumnSlice& place) {
  const at::Tensor& x = call.saved.x;
  const StepGateParameters parameters(call.saved.bias, call.saved.a_log, config);
  const at::Tensor dstep = call.grads.step.contiguous(),
                   dlog_decay = call.grads.log_decay.contiguous();
  const at::Tensor dx = place.EmptyLike(x);
  GradientBuffer bias(call.saved.bias, call.Wants(&StepGateOp::Inputs::bias)),
      a_log(call.saved.a_log, call.Wants(&StepGateOp::Inputs::a_log));
  const kernels::StepGateSums sums = {.dbias = MutableElements<float>(bias.sum()),
                                      .da_log = MutableElements<float>(a_log.sum()),
                                      .dbias_added = bias.added(),
                                      .da_log_added = a_log.added()};
  WithStorage(x, [&]<typename T>() {
    const kernels::StepGateGradRows<T> rows = {.x = Elements<T>(x),
                                               .dstep = Elements<float>(dstep),
                                               .dlog_decay = Elements<float>(dlog_decay),
                                               .dx = MutableElements<T>(dx),
                                               .form = parameters.form,
                                               .num_rows = NumRows(x),
                                               .dim = x.size(-1),
                                               .x_stride = RowStride(x).value(),
                                               .dx_stride = RowStride(dx).value()};
    RunOn(
        x, [&] { StepGateBackwardOnCpu(rows, sums); },
        [&](auto stream) {
          const at::Tensor partials =
              at::empty({kernels::cuda::NumStepGatePartials(rows.num_rows) * 2 * rows.dim},
                        parameters.bias.options());
          kernels::cuda::StepGateBackward(rows, sums, MutableElements<float>(partials), stream);
        });
  });
  return {.x = dx, .bias = bias.Finish(), .a_log = a_log.Finish()};
}

StepGateOutput StepGateFused(const StepGateInputs& in, const StepGateConfig& config) {
  const auto forward = [&]() -> ForwardOf<StepGateOp> {
    const at::Tensor x = RowStride(in.x).has_value() ? in.x : in.x.contiguous();
    const StepGateOutput out =
        StepGateForwardFused(x, StepGateParameters(in.bias, in.a_log, config));
    return {.outputs = {.step = out.step, .log_decay = out.log_decay},
            .saved = {.x = x, .bias = in.bias, .a_log = in.a_log},
            .backward = [config, place = in.x_gradient](const auto& call) {
              return StepGateBackwardFused(call, config, place);
            }};
  };
  const auto [step, log_decay] =
      Apply<StepGateOp>({.name = "StepGate",
                         .inputs = {.x = in.x, .bias = in.bias, .a_log = in.a_log},
                         .forward = forward});
  return {.step = step, .log_decay = log_decay};
}

}  // namespace

StepGateOutput StepGate(const StepGateInputs& in, const StepGateConfig& config) {
  const at::Tensor &x = in.x, &bias = in.bias, &a_log = in.a_log;
  CheckDTypes("StepGate", {x, bias, a_log});
  HL_CHECK(x.defined() && x.dim() >= 1 && x.size(-1) >= 1 && FitsWith(x, bias, {x.size(-1)}) &&
               FitsWith(x, a_log, {x.size(-1)}),
           "StepGate got x ", Describe(x), " with bias ", Describe(bias), " and a_log ",
           Describe(a_log), ". Use x [..., H], bias [H] and a_log [H] on one device.");
  if (IsFused(x) && bias.scalar_type() == at::kFloat && a_log.scalar_type() == at::kFloat)
    return StepGateFused(in, config);
  const at::ScalarType compute = ComputeType(x);
  // Above the threshold softplus(z) is z, here up to less than a rounding of fp64.
  const at::Tensor z = x.to(compute) + bias.to(compute);
  const at::Tensor step =
      at::softplus(z, /*beta=*/1, /*threshold=*/40).clamp(config.least, config.most);
  return {.step = step, .log_decay = -a_log.to(compute).exp() * step};
}

}  // namespace halflife::ops
