#include "ops/rows/delta_gates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/delta_gates_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

struct DeltaGatesOp {
  // bias and a_log are kept as they were given, because their sinks are found by tensor identity.
  struct Inputs {
    at::Tensor x, bias, a_log, b;
  };
  struct Outputs {
    at::Tensor log_decay, beta;
  };
  using Saved = Inputs;
};

at::Tensor InRowsOfOneStride(const at::Tensor& x) {
  return !x.defined() || RowStride(x).has_value() ? x : x.contiguous();
}
int64_t StrideOrZero(const at::Tensor& x) { return x.defined() ? RowStride(x).value() : 0; }
at::Tensor EmptyFloats(const at::Tensor& like) {
  return like.defined() ? at::empty(like.sizes(), like.options().dtype(at::kFloat)) : at::Tensor();
}
at::Tensor EmptyIfDefined(const ColumnSlice& place, const at::Tensor& like) {
  return like.defined() ? place.EmptyLike(like) : at::Tensor();
}
const at::Tensor& EitherOf(const DeltaGatesOp::Inputs& in) { return in.x.defined() ? in.x : in.b; }

// The parameters as the kernels read them.
struct GateParameters {
  at::Tensor bias, a_log;    // contiguous
  std::vector<float> rates;  // empty if the CUDA kernels run
  kernels::DeltaGatesForm form;

  GateParameters(const DeltaGatesOp::Inputs& in, const DeltaGatesConfig& config) {
    form = {.bound = static_cast<float>(config.bound),
            .beta_scale = static_cast<float>(config.beta_scale),
            .num_betas = in.b.defined() ? in.b.size(-1) : 0};
    if (!in.x.defined()) return;
    bias = in.bias.contiguous(), a_log = in.a_log.contiguous();
    form.bias = Elements<float>(bias), form.a_log = Elements<float>(a_log);
    form.num_heads = a_log.numel(), form.channels = bias.numel() / a_log.numel();
    if (RunsOnCuda(in.x)) return;
    for (int64_t i = 0; i < form.num_decays(); ++i)
      rates.push_back(std::exp(form.a_log[i / form.channels]));
    form.rates = rates.data();
  }
};

DeltaGatesOp::Outputs DeltaGatesForwardFused(const DeltaGatesOp::Inputs& in,
                                             const GateParameters& parameters) {
  const at::Tensor& either = EitherOf(in);
  const DeltaGatesOp::Outputs outs = {.log_decay = EmptyFloats(in.x), .beta = EmptyFloats(in.b)};
  WithStorage(either, [&]<typename T>() {
    const kernels::DeltaGatesRows<T> rows = {.x = Elements<T>(in.x),
                                             .b = Elements<T>(in.b),
                                             .log_decay = MutableElements<float>(outs.log_decay),
                                             .beta = MutableElements<float>(outs.beta),
                                             .form = parameters.form,
                                             .num_rows = NumRows(either),
                                             .x_stride = StrideOrZero(in.x),
                                             .b_stride = StrideOrZero(in.b)};
    RunRows(
        either, {.count = rows.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
        [&](int64_t begin, int64_t end) { kernels::cpu::DeltaGatesForward(rows, begin, end); },
        [&](auto stream) { kernels::cuda::DeltaGatesForward(rows, stream); });
  });
  return outs;
}

template <typename T>
void DeltaGatesBackwardOnCpu(const kernels::DeltaGatesGradRows<T>& rows,
                             const kernels::DeltaGatesSums& sums) {
  const kernels::DeltaGatesForm& form = rows.form;
  const int64_t dim = form.num_decays();
  std::vector<float> columns(dim);
  const PartialSums partial =
      SumBlocks({.count = rows.num_rows, .per_task = kernels::cpu::kRowsPerPartial}, 2 * dim,
                [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::DeltaGatesBackward(rows, begin, end, sum);
                });
  const kernels::cpu::SumPlaces<float> places = {
      {.out = sums.dbias, .size = dim, .added = sums.dbias_added},
      {.out = columns.data(), .size = dim}};
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, places);
  if (sums.da_log == nullptr) return;
  for (int64_t head = 0; head < form.num_heads; ++head) {
    float sum = 0;
    for (int64_t i = 0; i < form.channels; ++i) sum += columns[head * form.channels + i];
    sums.da_log[head] = sums.da_log_added ? sums.da_log[head] + sum : sum;
  }
}

// Overwrites or adds to the sums of the parameters.
void RunDeltaGatesBackward(const BackwardOf<DeltaGatesOp>& call, const GateParameters& parameters,
                           const DeltaGatesOp::Inputs& grads, const kernels::DeltaGatesSums& sums) {
  const DeltaGatesOp::Saved& in = call.saved;
  const at::Tensor& either = EitherOf(in);
  const at::Tensor dlog_decay = Contiguous(call.grads.log_decay),
                   dbeta = Contiguous(call.grads.beta);
  WithStorage(either, [&]<typename T>() {
    const kernels::DeltaGatesGradRows<T> rows = {.x = Elements<T>(in.x),
                                                 .b = Elements<T>(in.b),
                                                 .dlog_decay = Elements<float>(dlog_decay),
                                                 .dbeta = Elements<float>(dbeta),
                                                 .dx = MutableElements<T>(grads.x),
                                                 .db = MutableElements<T>(grads.b),
                                                 .form = parameters.form,
                                                 .num_rows = NumRows(either),
                                                 .x_stride = StrideOrZero(in.x),
                                                 .b_stride = StrideOrZero(in.b),
                                                 .dx_stride = StrideOrZero(grads.x),
                                                 .db_stride = StrideOrZero(grads.b)};
    RunOn(
        either, [&] { DeltaGatesBackwardOnCpu(rows, sums); },
        [&](auto stream) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::DeltaGatesWorkspaceFloats(rows.num_rows, rows.form)},
                        either.options().dtype(at::kFloat));
          kernels::cuda::DeltaGatesBackward(rows, sums, MutableElements<float>(workspace), stream);
        });
  });
}

// The parameters that a backward needs in addition to the saved tensors.
struct DeltaGatesPlan {
  DeltaGatesConfig config;
  ColumnSlice x_gradient, b_gradient;
};

DeltaGatesOp::Inputs DeltaGatesBackwardFused(const BackwardOf<DeltaGatesOp>& call,
                                             const DeltaGatesPlan& plan) {
  const DeltaGatesOp::Saved& in = call.saved;
  const GateParameters parameters(in, plan.config);
  DeltaGatesOp::Inputs grads = {.x = EmptyIfDefined(plan.x_gradient, in.x),
                                .bias = {},
                                .a_log = {},
                                .b = EmptyIfDefined(plan.b_gradient, in.b)};
  kernels::DeltaGatesSums sums;
  std::optional<GradientBuffer> bias, a_log;
  if (in.x.defined()) {
    bias.emplace(in.bias, call.Wants(&DeltaGatesOp::Inputs::bias));
    a_log.emplace(in.a_log, call.Wants(&DeltaGatesOp::Inputs::a_log));
    sums = {.dbias = MutableElements<float>(bias->sum()),
            .da_log = MutableElements<float>(a_log->sum()),
            .dbias_added = bias->added(),
            .da_log_added = a_log->added()};
  }
  RunDeltaGatesBackward(call, parameters, grads, sums);
  if (in.x.defined()) grads.bias = bias->Finish(), grads.a_log = a_log->Finish();
  return grads;
}

DeltaGatesOutput DeltaGatesFused(const DeltaGatesInputs& given, const DeltaGatesConfig& config) {
  const DeltaGatesOp::Inputs inputs = {
      .x = given.x, .bias = given.bias, .a_log = given.a_log, .b = given.b};
  const auto forward = [&]() -> ForwardOf<DeltaGatesOp> {
    DeltaGatesOp::Inputs in = inputs;
    in.x = InRowsOfOneStride(in.x), in.b = InRowsOfOneStride(in.b);
    const DeltaGatesPlan plan = {
        .config = config, .x_gradient = given.x_gradient, .b_gradient = given.b_gradient};
    return {.outputs = DeltaGatesForwardFused(in, GateParameters(in, config)),
            .saved = in,
            .backward = [plan](const auto& call) { return DeltaGatesBackwardFused(call, plan); }};
  };
  const auto [log_decay, beta] =
      Apply<DeltaGatesOp>({.name = "DeltaGates", .inputs = inputs, .forward = forward});
  return {.log_decay = log_decay, .beta = beta};
}

// The same in LibTorch calls, differentiated by autograd: for fp64.
DeltaGatesOutput DeltaGatesComposed(const DeltaGatesInputs& in, const DeltaGatesConfig& config) {
  DeltaGatesOutput out;
  if (in.b.defined()) out.beta = at::sigmoid(in.b.to(ComputeType(in.b))) * config.beta_scale;
  if (!in.x.defined()) return out;
  const at::ScalarType compute = ComputeType(in.x);
  const int64_t num_heads = in.a_log.numel();
  const at::Tensor z = (in.x.to(compute) + in.bias.to(compute))
                           .unflatten(-1, {num_heads, in.x.size(-1) / num_heads});
  const at::Tensor rate = in.a_log.to(compute).exp().unsqueeze(-1);
  // Above the threshold softplus(z) is z, here up to less than a rounding of fp64.
  const at::Tensor decay = config.bound < 0 ? at::sigmoid(z * rate) * config.bound
                                            : at::softplus(z, /*beta=*/1, /*threshold=*/40) * -rate;
  out.log_decay = decay.flatten(-2);
  return out;
}

void CheckDeltaGates(const DeltaGatesInputs& in, const DeltaGatesConfig& config) {
  const at::Tensor &x = in.x, &b = in.b;
  HL_CHECK(x.defined() || b.defined(),
           "DeltaGates got neither x nor b. Pass the logits of a decay, of beta or of both.");
  CheckDTypes("DeltaGates", {x, in.bias, in.a_log, b});
  HL_CHECK(!x.defined() ||
               (x.dim() >= 1 && x.size(-1) >= 1 && FitsWith(x, in.bias, {x.size(-1)}) &&
                in.a_log.defined() && in.a_log.dim() == 1 && in.a_log.numel() >= 1 &&
                FitsWith(x, in.a_log, {in.a_log.numel()}) && x.size(-1) % in.a_log.numel() == 0),
           "DeltaGates got x ", Describe(x), " with bias ", Describe(in.bias), " and a_log ",
           Describe(in.a_log),
           ". Use x [..., D], bias [D] and a_log [H] on one device, where H divides D.");
  HL_CHECK(
      !x.defined() || !b.defined() ||
          (b.scalar_type() == x.scalar_type() && b.device() == x.device() && b.dim() == x.dim() &&
           b.sizes().slice(0, b.dim() - 1) == x.sizes().slice(0, x.dim() - 1)),
      "DeltaGates got x ", Describe(x), " with b ", Describe(b),
      ". Use the same tokens, dtype and device.");
  HL_CHECK(config.bound <= 0, "DeltaGates got the bound ", config.bound,
           ". Use a number below 0, or 0 for none.");
}

}  // namespace

DeltaGatesOutput DeltaGates(const DeltaGatesInputs& in, const DeltaGatesConfig& config) {
  CheckDeltaGates(in, config);
  const bool fused = IsFused(in.x.defined() ? in.x : in.b) &&
                     (!in.x.defined() || (in.bias.scalar_type() == at::kFloat &&
                                          in.a_log.scalar_type() == at::kFloat));
  return fused ? DeltaGatesFused(in, config) : DeltaGatesComposed(in, config);
}

}  // namespace halflife::ops
