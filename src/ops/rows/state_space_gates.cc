#include "ops/rows/state_space_gates.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/state_space_gates_args.h"
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
    RunRows(
        x, {.count = rows.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
        [&](int64_t begin, int64_t end) { kernels::cpu::StepGateForward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::StepGateForward(rows, stream); });
  });
  return result;
}

template <typename T>
void StepGateBackwardOnCpu(const kernels::StepGateGradRows<T>& rows,
                           const kernels::StepGateSums& sums) {
  const int64_t dim = rows.dim;
  const PartialSums partial =
      SumBlocks({.count = rows.num_rows, .per_task = kernels::cpu::kRowsPerPartial}, 2 * dim,
                [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::StepGateBackward(rows, begin, end, sum);
                });
  const kernels::cpu::SumPlaces<float> places = {
      {.out = sums.dbias, .size = dim, .added = sums.dbias_added},
      {.out = sums.da_log, .size = dim, .added = sums.da_log_added}};
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, places);
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
              at::empty({kernels::cuda::NumRowPartials(rows.num_rows) * 2 * rows.dim},
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

namespace {

struct SkipGateOp {
  struct Inputs {
    at::Tensor y, x, skip, gate;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor y, x;
    at::Tensor skip;  // as it was given, because its sink is found by tensor identity
    at::Tensor gate;
  };
};

at::Tensor WithRowStride(const at::Tensor& x) {
  return !x.defined() || RowStride(x).has_value() ? x : x.contiguous();
}

// `in` has a contiguous y and skip, and rows at a constant distance in x and gate.
template <typename T>
kernels::SkipGateRows<T> SkipGateRowsOf(const SkipGateOp::Saved& in, const at::Tensor& skip) {
  return {.y = Elements<T>(in.y),
          .x = Elements<T>(in.x),
          .gate = Elements<T>(in.gate),
          .skip = Elements<float>(skip),
          .num_rows = NumRows(in.y),
          .num_heads = skip.numel(),
          .head_dim = in.y.size(-1) / skip.numel(),
          .x_stride = RowStride(in.x).value(),
          .gate_stride = in.gate.defined() ? RowStride(in.gate).value() : 0};
}

at::Tensor SkipGateForwardFused(const SkipGateOp::Saved& in) {
  const at::Tensor out = at::empty(in.y.sizes(), in.y.options()), skip = in.skip.contiguous();
  WithStorage(out, [&]<typename T>() {
    kernels::SkipGateRows<T> rows = SkipGateRowsOf<T>(in, skip);
    rows.out = MutableElements<T>(out);
    RunRows(
        out, {.count = rows.num_rows, .per_task = kernels::cpu::kSkipGateRowsPerBlock},
        [&](int64_t begin, int64_t end) { kernels::cpu::SkipGateForward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::SkipGateForward(rows, stream); });
  });
  return out;
}

template <typename T>
void SkipGateBackwardOnCpu(const kernels::SkipGateGradRows<T>& rows, float* dskip, bool added) {
  const int64_t num_heads = rows.forward.num_heads;
  const PartialSums partial =
      SumBlocks({.count = rows.forward.num_rows, .per_task = kernels::cpu::kSkipGateRowsPerBlock},
                num_heads, [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::SkipGateBackward(rows, begin, end, sum);
                });
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, num_heads, dskip, added);
}

SkipGateOp::Inputs SkipGateBackwardFused(const BackwardOf<SkipGateOp>& call,
                                         const ColumnSlice& place) {
  const SkipGateOp::Saved& in = call.saved;
  const at::Tensor dout = call.grads.out.contiguous(), skip = in.skip.contiguous();
  const at::Tensor dy = at::empty(in.y.sizes(), in.y.options()),
                   dx = at::empty(in.y.sizes(), in.y.options()),
                   dgate = in.gate.defined() ? place.EmptyLike(in.gate) : at::Tensor();
  GradientBuffer sum(in.skip, call.Wants(&SkipGateOp::Inputs::skip));
  auto* const dskip = MutableElements<float>(sum.sum());
  WithStorage(dout, [&]<typename T>() {
    const kernels::SkipGateGradRows<T> rows = {
        .forward = SkipGateRowsOf<T>(in, skip),
        .dout = Elements<T>(dout),
        .dy = MutableElements<T>(dy),
        .dx = MutableElements<T>(dx),
        .dgate = MutableElements<T>(dgate),
        .dgate_stride = dgate.defined() ? RowStride(dgate).value() : 0};
    RunOn(
        dout, [&] { SkipGateBackwardOnCpu(rows, dskip, sum.added()); },
        [&](auto stream) {
          const at::Tensor partials =
              at::empty({kernels::cuda::NumRowPartials(rows.forward.num_rows) * rows.forward.dim()},
                        skip.options());
          kernels::cuda::SkipGateBackward(rows, dskip, sum.added(),
                                          MutableElements<float>(partials), stream);
        });
  });
  return {.y = dy, .x = dx, .skip = sum.Finish(), .gate = dgate};
}

at::Tensor SkipGateFused(const SkipGateInputs& in) {
  const auto forward = [&]() -> ForwardOf<SkipGateOp> {
    const SkipGateOp::Saved saved = {.y = in.y.contiguous(),
                                     .x = WithRowStride(in.x),
                                     .skip = in.skip,
                                     .gate = WithRowStride(in.gate)};
    return {.outputs = {.out = SkipGateForwardFused(saved)},
            .saved = saved,
            .backward = [place = in.gate_gradient](const auto& call) {
              return SkipGateBackwardFused(call, place);
            }};
  };
  return Apply<SkipGateOp>({.name = "SkipGate",
                            .inputs = {.y = in.y, .x = in.x, .skip = in.skip, .gate = in.gate},
                            .forward = forward})
      .out;
}

}  // namespace

at::Tensor SkipGate(const SkipGateInputs& in) {
  CheckDTypes("SkipGate", {in.y, in.x, in.skip, in.gate});
  const bool fits = in.y.defined() && in.y.dim() >= 1 && IsLike(in.y, in.x) &&
                    (!in.gate.defined() || IsLike(in.y, in.gate)) && in.skip.defined() &&
                    in.skip.dim() == 1 && in.skip.numel() > 0 &&
                    in.y.size(-1) % in.skip.numel() == 0 && in.skip.device() == in.y.device();
  HL_CHECK(fits, "SkipGate got y ", Describe(in.y), " with x ", Describe(in.x), ", skip ",
           Describe(in.skip), " and gate ", Describe(in.gate),
           ". Use y, x and gate [..., H P] of one dtype and skip [H], on one device.");
  if (IsFused(in.y) && in.skip.scalar_type() == at::kFloat) return SkipGateFused(in);
  const at::ScalarType compute = ComputeType(in.y);
  const std::vector<int64_t> heads = {in.skip.numel(), in.y.size(-1) / in.skip.numel()};
  const at::Tensor scaled =
      (in.x.to(compute).unflatten(-1, heads) * in.skip.to(compute).unsqueeze(-1)).flatten(-2);
  at::Tensor out = in.y.to(compute) + scaled;
  if (in.gate.defined()) out = out * at::silu(in.gate.to(compute));
  return out.to(in.y.scalar_type());
}

}  // namespace halflife::ops
